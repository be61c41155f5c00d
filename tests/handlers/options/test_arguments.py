"""Options, back to a command line."""

import string
from typing import Any

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from specllama.engine.options.declaration import Field
from specllama.handlers.options.arguments import arguments
from tests.support.option_values import FILES, OF_MODEL, TEXT, impossible, many, strategy
from tests.support.options_support import FIELDS, layered, model_options, server_options

pytestmark = pytest.mark.slow


def shown(field: Field) -> st.SearchStrategy[Any]:
    if field.name == "lora":
        path = st.text(string.ascii_letters + "/.,-", min_size=1)
        scale = st.just(1.0) | st.floats(-1e6, 1e6, allow_subnormal=False, width=32)
        return st.lists(st.tuples(path, scale), min_size=1).map(tuple)
    if field.name == "control_vector_scaled":
        return st.just((("a", 0.5), ("b:c", -2.0)))
    if field.name == "control_vector":
        return st.just(("a", "b,c"))
    return TEXT if field.name in FILES else strategy(field)


@st.composite
def shown_options(draw: st.DrawFn) -> dict[str, Any]:
    names = draw(st.lists(st.sampled_from(sorted(OF_MODEL)), unique=True))
    wanted: dict[str, Any] = {}
    for name in names:
        opt = FIELDS[name].opt
        if not {*opt.replaces, *opt.excludes} & wanted.keys() and not opt.secret:
            wanted[name] = draw(shown(FIELDS[name]))
    return wanted


@given(shown_options())
@many
def test_arguments_mean_the_options(wanted: dict[str, Any]) -> None:
    assume(not impossible(wanted))
    options = model_options(**wanted)
    words = arguments(options)
    assert words[0] == "specllama"
    assert layered({}, (), words[1:], files=False) == options


def test_arguments_are_those_of_the_model_and_no_secrets() -> None:
    options = server_options(
        hf_token="hf_secret", api_key=("secret",), port=1, host="0.0.0.0", models_max=2,
        ctx_size=4096, mmap=False, chat_template="-x", n_predict=-1, keep=-1, verbosity=1,
    )  # fmt: skip
    assert arguments(options.model) == [
        "specllama", "--no-mmap", "--ctx-size", "4096", "--keep", "-1", "--chat-template=-x",
    ]  # fmt: skip
    assert arguments(model_options()) == ["specllama"]


def test_where_a_download_lies_is_not_among_the_arguments() -> None:
    options = model_options(docker_repo="gemma3", model="/cache/x.gguf")
    assert arguments(options) == ["specllama", "--docker-repo", "gemma3"]
    options = model_options(hf_repo="a/b", model="/cache/x.gguf")
    assert arguments(options) == ["specllama", "--hf-repo", "a/b"]
    options = model_options(
        model_url="http://h/f", model="/x", mmproj_url="http://h/p", mmproj="/y"
    )
    assert arguments(options)[1:] == ["--model-url", "http://h/f", "--mmproj-url", "http://h/p"]
