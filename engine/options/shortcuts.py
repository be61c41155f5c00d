"""llama-server's shortcuts for well-known models: one option that sets several.

A shortcut has the lowest priority within its source: all options that the source sets explicitly
override it, in any order.
"""

from collections.abc import Sequence
from typing import NamedTuple

from specllama.engine.options.names import ChosenValues
from specllama.engine.options.values import OptionError

GROUP = "Shortcuts"


class Shortcut(NamedTuple):
    """The options that a shortcut such as --fim-qwen-3b-default stands for."""

    help: str
    settings: dict[str, str]  # the texts of options, by field name


def _fim(repo: str, file: str) -> dict[str, str]:
    return {
        "hf_repo": repo,
        "hf_file": file,
        "port": "8012",
        "ctx_size": "-1",
        "batch_size": "1024",
        "ubatch_size": "1024",
        "cache_reuse": "256",
    }


def _gpt_oss(size: str) -> dict[str, str]:
    return {
        "hf_repo": f"ggml-org/gpt-oss-{size}-GGUF",
        "port": "8013",
        "ctx_size": str(2 * 131072),
        "parallel": "2",
        "batch_size": "32768",
        "ubatch_size": "2048",
        "temp": "1.0",
        "top_p": "1.0",
        "top_k": "0",
        "min_p": "0.01",
        "jinja": "on",
    }


def _gemma(size: str) -> dict[str, str]:
    return {
        "hf_repo": f"ggml-org/gemma-3-{size}-it-qat-GGUF",
        "port": "8014",
        "ctx_size": "-1",
        "jinja": "on",
    }


_CODER = "ggml-org/Qwen2.5-Coder-{}-Q8_0-GGUF"
_CODER_FILE = "qwen2.5-coder-{}-q8_0.gguf"
_DRAFT = {"hf_repo_draft": _CODER.format("0.5B"), "model_draft": _CODER_FILE.format("0.5b")}

SHORTCUTS: dict[str, Shortcut] = {
    "--embd-gemma-default": Shortcut(
        "EmbeddingGemma 300M, for embeddings.",
        {
            "hf_repo": "ggml-org/embeddinggemma-300M-qat-q4_0-GGUF",
            "hf_file": "embeddinggemma-300M-qat-Q4_0.gguf",
            "port": "8011",
            "ctx_size": str(32 * 2048),
            "parallel": "32",
            "batch_size": "2048",
            "ubatch_size": "2048",
            "embedding": "on",
        },
    ),
    "--fim-qwen-1.5b-default": Shortcut(
        "Qwen 2.5 Coder 1.5B, for infill.",
        _fim(_CODER.format("1.5B"), _CODER_FILE.format("1.5b")),
    ),
    "--fim-qwen-3b-default": Shortcut(
        "Qwen 2.5 Coder 3B, for infill.",
        _fim(_CODER.format("3B"), _CODER_FILE.format("3b")),
    ),
    "--fim-qwen-7b-default": Shortcut(
        "Qwen 2.5 Coder 7B, for infill.",
        _fim(_CODER.format("7B"), _CODER_FILE.format("7b")),
    ),
    "--fim-qwen-7b-spec": Shortcut(
        "Qwen 2.5 Coder 7B, for infill, with the 0.5B as draft model.",
        _fim(_CODER.format("7B"), _CODER_FILE.format("7b")) | _DRAFT,
    ),
    "--fim-qwen-14b-spec": Shortcut(
        "Qwen 2.5 Coder 14B, for infill, with the 0.5B as draft model.",
        _fim(_CODER.format("14B"), _CODER_FILE.format("14b")) | _DRAFT,
    ),
    "--fim-qwen-30b-default": Shortcut(
        "Qwen 3 Coder 30B A3B Instruct, for infill.",
        _fim(
            "ggml-org/Qwen3-Coder-30B-A3B-Instruct-Q8_0-GGUF",
            "qwen3-coder-30b-a3b-instruct-q8_0.gguf",
        ),
    ),
    "--gpt-oss-20b-default": Shortcut(
        "gpt-oss 20B, for chat.", _gpt_oss("20b") | {"hf_file": "gpt-oss-20b-mxfp4.gguf"}
    ),
    "--gpt-oss-120b-default": Shortcut("gpt-oss 120B, for chat.", _gpt_oss("120b")),
    "--vision-gemma-4b-default": Shortcut("Gemma 3 4B, for chats with images.", _gemma("4b")),
    "--vision-gemma-12b-default": Shortcut("Gemma 3 12B, for chats with images.", _gemma("12b")),
}


def read(chosen: ChosenValues, names: Sequence[str], source: str, *, whole_server: bool) -> None:
    """Adds the options of the shortcuts `names` of one source.

    Options of the whole server (the port) are skipped unless `whole_server`. Raises `OptionError`
    for more than one name, as each stands for a model.
    """
    for name in names:
        if name != names[0]:
            raise OptionError(f"{source}: {names[0]} excludes {name}")
    for name in names[:1]:
        for key, text in SHORTCUTS[name].settings.items():
            field = chosen.names.fields[key]
            if whole_server or chosen.names.concerns_model(field):
                chosen.read(field, name, text)
