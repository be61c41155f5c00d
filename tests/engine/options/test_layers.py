"""Options from several sources."""

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from specllama.engine.options import Layer, OptionError, Options, Setting, check_layer
from specllama.engine.shipped import model_path
from specllama.handlers.options import NAMES, parse
from tests.support.option_values import (
    NO_FILES,
    chosen,
    impossible,
    keys,
    many,
    settings_of,
    texts,
)
from tests.support.options_support import FIELDS, layered, model_options

# ---- which source wins -------------------------------------------------------------------


@given(st.data())
@many
def test_the_order_of_sources(data: st.DataObject) -> None:
    sources: list[dict[str, Any]] = [data.draw(chosen(tuple(NO_FILES))) for _ in range(4)]
    plain = [
        {
            name: value
            for name, value in source.items()
            # Ways to say one thing by several options are tested for themselves.
            if not (FIELDS[name].opt.replaces or FIELDS[name].opt.excludes)
            and not FIELDS[name].opt.supersedes
            and name != "hf_file"
        }
        for source in sources
    ]
    variables, everywhere, own, command = plain
    variables = {
        name: value
        for name, value in variables.items()
        if FIELDS[name].opt.env and FIELDS[name].show(value)
    }
    wanted = variables | everywhere | own | command
    assume(not impossible(wanted))
    environ = {FIELDS[name].opt.env: FIELDS[name].show(v) for name, v in variables.items()}
    layers = [
        Layer("f", settings_of(source, lambda f: data.draw(st.sampled_from(keys(f)))))
        for source in (everywhere, own)
    ]
    argv = []
    for name, value in command.items():
        field = FIELDS[name]
        if field.is_flag:
            argv.append(field.names[0] if value else field.negative_names[0])
        else:
            argv += [f"{field.canonical}={text}" for text in texts(field, value)]
    assert layered(environ, layers, argv, files=False) == model_options(**wanted)


def test_a_model_replaces_a_model_of_a_lower_source() -> None:
    def options(*layers: dict[str, str], argv: Sequence[str] = ()) -> Options:
        made = [Layer("f", [Setting(k, v) for k, v in layer.items()]) for layer in layers]
        return layered({}, made, argv, files=False)

    repo = {"hf-repo": "a/b", "hf-file": "c"}
    assert options(repo, {"model": "m"}) == model_options(model="m")
    assert options({"model": "m"}, repo) == model_options(hf_repo="a/b", hf_file="c")
    assert options(repo, {"hf-repo": "d/e"}) == model_options(hf_repo="d/e")
    assert options(repo, {"hf-file": "d"}) == model_options(hf_repo="a/b", hf_file="d")
    assert options(repo, argv=["-mu", "http://h/m.gguf"]) == model_options(
        model_url="http://h/m.gguf"
    )
    assert options({"mmproj": "p"}, {"mmproj-url": "http://h/p"}) == model_options(
        mmproj_url="http://h/p"
    )


@pytest.mark.parametrize(
    "argv",
    [
        ["-m", "m", "-hf", "a/b"],
        ["-mu", "http://h/m", "-m", "m"],
        ["-mm", "p", "-mmu", "http://h/p"],
    ],
)
def test_one_source_names_one_model(argv: list[str]) -> None:
    with pytest.raises(OptionError, match=r"^-[a-z]+: excludes --"):
        parse(argv, {})


def test_a_file_needs_its_repository() -> None:
    with pytest.raises(OptionError, match="it needs --hf-repo"):
        parse(["-hff", "f"], {})


def test_files_are_looked_at_unless_that_is_switched_off() -> None:
    missing = Layer("f", [Setting("model", "/no/such/file")])
    assert layered({}, [missing], [], files=False).engine.model.model == "/no/such/file"
    with pytest.raises(OptionError, match="--model: cannot open"):
        layered({}, [missing], [])


def test_a_layer_without_lines_is_named() -> None:
    with pytest.raises(OptionError, match=r"^the cache: ctx-size: "):
        check_layer(NAMES, Layer("the cache", [Setting("ctx-size", "x")]))


# ---- values ------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("option", "good", "bad"),
    [
        ("--hf-repo", ["a/b", "unsloth/phi-4-GGUF:q4_k_m", "a/b.c_d-E:UD-Q4_K_XL"],
         ["a", "a/", "/b", "a/b/c", "a/b:", "a/..", "../b", "a /b", "a/b:q 4", "a/b--c", "-a/b",
          "a/" + "b" * 97, "https://huggingface.co/a/b"]),
        ("--hf-file", ["f.gguf", "dir/f-00001-of-00002.gguf"],
         ["/f", "a/../f", "./f", "a//f", "a\\f", "f\n"]),
        ("--model-url", ["http://h/f.gguf", "https://h:1/f?x=1", "http://[::1]:8/f"],
         ["f.gguf", "ftp://h/f", "http://", "http://h:x/f", "http://h/a b", "file:///f",
          "http://[::1/f", "http://h:0/f"]),
        ("--docker-repo", ["gemma3", "ai/smollm2:135M-Q4_0", "localhost:5000/x"],
         ["Gemma3", "a:", "a b", "http://h/x", "h.io:0/x"]),
        ("--hf-token", ["hf_abc", " hf_abc "], ["a b", "ä", "a\nb", "x" * 2000]),
        ("--sleep-idle-seconds", ["-1", "1", "2147483647"], ["0", "-2", "1.5", "x", "2147483648"]),
        ("--models-max", ["0", "1"], ["-1", "x"]),
    ],
)  # fmt: skip
def test_values_are_checked(option: str, good: list[str], bad: list[str]) -> None:
    for text in good:
        layered({}, [Layer("f", [Setting("hf-repo", "a/b")])], [f"{option}={text}"])
    for text in bad:
        with pytest.raises(OptionError) as caught:
            parse([f"{option}={text}"], {})
        assert str(caught.value).startswith(f"{option}: ")


def test_secrets_are_not_quoted() -> None:
    for text in ("my secret", "my\udc80secret", "my\0secret"):
        with pytest.raises(OptionError) as caught:
            parse([], {"HF_TOKEN": text})
        assert "secret" not in str(caught.value)
    assert parse([], {"HF_TOKEN": "hf_x"}).model.source.hf_token == "hf_x"


def test_the_shipped_model_is_known_by_its_file(tmp_path: Path) -> None:
    link = tmp_path / "mine.gguf"
    link.symlink_to(model_path())
    for path in (link, Path(os.path.realpath(model_path()))):
        assert parse(["-m", str(path)], {}).model.engine.is_reproducible()
    other = tmp_path / "other.gguf"
    other.write_bytes(b"GGUF")
    assert not parse(["-m", str(other)], {}).model.engine.is_reproducible()


def test_defaults_of_many_models() -> None:
    options = parse([], {})
    assert (options.router.models_max, options.router.models_autoload) == (4, True)
    assert (options.model.entry.sleep_idle_seconds, options.model.source.mmproj_auto) == (-1, True)
    assert parse(["--no-mmproj"], {}).model.source.mmproj_auto is False
    assert parse(["--no-models-autoload"], {}).router.models_autoload is False
    assert parse([], {"LLAMA_OFFLINE": "1"}).model.source.offline is True


def test_names_that_only_the_documents_have() -> None:
    assert (
        parse(["-ctx", "8192", "-n", "1024", "-np", "2"], {}).model.engine.context.ctx_size == 8192
    )
    assert parse(["--n-gpu-layer", "8"], {}).model.engine.compute.n_gpu_layers == 8
