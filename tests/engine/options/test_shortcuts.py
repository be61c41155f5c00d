"""Options that stand for several: the defaults for well-known models."""

from pathlib import Path
from typing import Any

import pytest

from specllama.engine.options import OptionError
from specllama.engine.options.declaration import compose
from specllama.engine.options.parser import gather, unknown_variables
from specllama.engine.options.shortcuts import SHORTCUTS
from specllama.handlers.options import NAMES, ServerOptions, given, parse, remarks
from tests.support.options_support import model_options, server_options
from tests.support.preset_files import presets, section

# ---- shortcuts ---------------------------------------------------------------------------

FIM = {"port": 8012, "ctx_size": -1, "batch_size": 1024, "ubatch_size": 1024, "cache_reuse": 256}
DRAFT = {
    "hf_repo_draft": "ggml-org/Qwen2.5-Coder-0.5B-Q8_0-GGUF",
    "model_draft": "qwen2.5-coder-0.5b-q8_0.gguf",
}
OSS = {"port": 8013, "ctx_size": 262144, "parallel": 2, "batch_size": 32768, "ubatch_size": 2048,
       "temp": 1.0, "top_p": 1.0, "top_k": 0, "min_p": 0.01, "jinja": True}  # fmt: skip
MEANT: dict[str, dict[str, Any]] = {
    "--embd-gemma-default": {
        "hf_repo": "ggml-org/embeddinggemma-300M-qat-q4_0-GGUF",
        "hf_file": "embeddinggemma-300M-qat-Q4_0.gguf",
        "port": 8011,
        "batch_size": 2048,
        "ubatch_size": 2048,
        "parallel": 32,
        "ctx_size": 65536,
        "embedding": True,
    },
    **{
        f"--fim-qwen-{size}-{kind}": {
            "hf_repo": f"ggml-org/Qwen2.5-Coder-{size.upper()}-Q8_0-GGUF",
            "hf_file": f"qwen2.5-coder-{size}-q8_0.gguf",
            **FIM,
            **(DRAFT if kind == "spec" else {}),
        }
        for size, kind in (
            ("1.5b", "default"),
            ("3b", "default"),
            ("7b", "default"),
            ("7b", "spec"),
            ("14b", "spec"),
        )
    },
    "--fim-qwen-30b-default": {
        "hf_repo": "ggml-org/Qwen3-Coder-30B-A3B-Instruct-Q8_0-GGUF",
        "hf_file": "qwen3-coder-30b-a3b-instruct-q8_0.gguf",
        **FIM,
    },
    "--gpt-oss-20b-default": {
        "hf_repo": "ggml-org/gpt-oss-20b-GGUF",
        "hf_file": "gpt-oss-20b-mxfp4.gguf",
        **OSS,
    },
    "--gpt-oss-120b-default": {"hf_repo": "ggml-org/gpt-oss-120b-GGUF", **OSS},
    **{
        f"--vision-gemma-{size}-default": {
            "hf_repo": f"ggml-org/gemma-3-{size}-it-qat-GGUF",
            "port": 8014,
        }
        for size in ("4b", "12b")
    },
}


def test_all_shortcuts_are_here() -> None:
    assert MEANT.keys() == SHORTCUTS.keys()


@pytest.mark.parametrize("name", sorted(MEANT))
def test_a_shortcut_stands_for_options(tmp_path: Path, name: str) -> None:
    assert parse([name], {}) == server_options(**MEANT[name])
    # In a file it is a model's, which has no port of its own.
    of_model = {key: value for key, value in MEANT[name].items() if key != "port"}
    text = f"[a]\nub = 7\n{name.lstrip('-')} = on"
    assert section(text, tmp_path) == model_options(**(of_model | {"ubatch_size": 7}))
    assert section(text.replace("= on", "= off"), tmp_path) == model_options(ubatch_size=7)


@pytest.mark.parametrize("name", sorted(MEANT))
def test_other_arguments_win_over_a_shortcut(name: str) -> None:
    given_too = ["--port", "1", "-b", "99", "-c", "5"]
    wanted = server_options(**(MEANT[name] | {"port": 1, "batch_size": 99, "ctx_size": 5}))
    assert parse([name, *given_too], {}) == parse([*given_too, name], {}) == wanted
    environ = {"LLAMA_ARG_CTX_SIZE": "77", "LLAMA_ARG_HF_FILE": "x", "LLAMA_ARG_HF_REPO": "a/b"}
    assert parse([name, "-c", "5"], environ) == server_options(**(MEANT[name] | {"ctx_size": 5}))
    assert parse([name, "-hf", "a/b"], {}).model.source.hf_file == ""


def test_shortcuts_take_no_value_and_exclude_each_other() -> None:
    with pytest.raises(OptionError, match="--gpt-oss-20b-default takes no value"):
        parse(["--gpt-oss-20b-default=1"], {})
    with pytest.raises(OptionError, match="excludes --gpt-oss-20b-default"):
        parse(["--fim-qwen-7b-spec", "--gpt-oss-20b-default"], {})
    assert parse(["--fim-qwen-3b-default"] * 2, {}).http.port == 8012
    with pytest.raises(OptionError, match=r"did you mean --fim-qwen-3b-default\?"):
        parse(["--fim-qwen-3b-defalt"], {})
    with pytest.raises(OptionError, match='"--gpt-oss-20b-default" follows'):
        parse(["-m", "--gpt-oss-20b-default"], {})


def test_options_without_an_effect_are_reported(tmp_path: Path) -> None:
    def warnings_of(*argv: str) -> list[str]:
        options = compose(ServerOptions, gather(given(argv, {}), ()))
        return remarks(options, argv, {})

    for name in SHORTCUTS:
        assert not warnings_of(name, name)
    assert "a library decodes" in warnings_of("--video-ffmpeg-dir", "d")[0]
    assert not warnings_of("-c", "5", "--mmproj", "p")
    environ = {"LLAMA_ARG_NONSENSE": "1"}
    assert remarks(server_options(), [], environ) == unknown_variables(NAMES, environ) != []
    text = "[a]\nvision-gemma-4b-default = 1\n[b]\nvision-gemma-4b-default = 0"
    assert not presets(text, tmp_path).warnings
