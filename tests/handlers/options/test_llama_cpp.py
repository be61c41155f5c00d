"""The options here against those in llama.cpp's own sources: `pytest --llama-cpp DIR`."""

import re
from pathlib import Path
from typing import NamedTuple

import pytest

from specllama.engine.options import unavailable
from specllama.engine.options.shortcuts import SHORTCUTS
from specllama.handlers.options import NAMES

_OPTION = re.compile(r"\badd_opt\(common_arg\(")
_COMMENT = re.compile(r"(?m)^\s*//.*$")
_FORMS = re.compile(r"\s*\{([^}]*)\},")
_QUOTED = re.compile(r'"([^"]*)"')
_EXAMPLES = re.compile(r"\.set_examples\(\{([^}]*)\}")
_EXCLUDED = re.compile(r"\.set_excludes\(\{([^}]*)\}")
_VARIABLE = re.compile(r'\.set_env\("([^"]*)"')
_SERVER = "LLAMA_EXAMPLE_SERVER"
_OF_ALL = "LLAMA_EXAMPLE_COMMON"


class Declared(NamedTuple):
    """An option of llama-server as its sources declare it."""

    names: list[str]
    negative_names: list[str]
    variables: list[str]
    takes_value: bool


def declared(source: str) -> list[Declared]:
    found = []
    for block in _OPTION.split(_COMMENT.sub("", source))[1:]:
        examples = _EXAMPLES.search(block)
        excluded = _EXCLUDED.search(block)
        if examples and not {_SERVER, _OF_ALL} & {*re.split(r"[,\s]+", examples[1])}:
            continue
        if excluded and _SERVER in excluded[1]:
            continue
        forms = _FORMS.match(block)
        assert forms, block[:200]
        rest = block[forms.end() :]
        negative = _FORMS.match(rest)
        if negative:
            rest = rest[negative.end() :]
        # A value's name stands between the forms and the help: two texts, or one and an expression.
        head = rest.partition("[](")[0]
        hint = re.match(r'\s*(?:"[^"\n]*"|\w+\(\)),\s*["\w]', head)
        found.append(
            Declared(
                _QUOTED.findall(forms[1]),
                _QUOTED.findall(negative[1]) if negative else [],
                _VARIABLE.findall(block),
                hint is not None,
            )
        )
    return found


@pytest.fixture(scope="module")
def theirs(request: pytest.FixtureRequest) -> list[Declared]:
    folder = request.config.getoption("--llama-cpp")
    if not folder:
        pytest.skip("needs --llama-cpp, the folder of llama.cpp's sources")
    return declared((Path(folder) / "common" / "arg.cpp").read_text("utf-8"))


def test_every_option_is_known(theirs: list[Declared]) -> None:
    assert len(theirs) > 200, "the sources look otherwise than this test expects"
    known = NAMES.by_name.keys() | NAMES.by_negative.keys() | SHORTCUTS.keys() | unavailable.NAMES
    names = {name for option in theirs for name in (*option.names, *option.negative_names)}
    assert names - known == set()


def test_every_variable_is_known(theirs: list[Declared]) -> None:
    known = NAMES.by_variable.keys() | unavailable.VARIABLES
    variables = {variable for option in theirs for variable in option.variables}
    assert variables - known == set()


def test_every_option_takes_a_value_as_there(theirs: list[Declared]) -> None:
    differing = set()
    for option in theirs:
        for name in option.names:
            if field := NAMES.by_name.get(name):
                takes = not field.is_flag
            elif name in unavailable.NAMES:
                takes = bool(unavailable.BY_NAME[name].metavar)
            else:
                takes = False
            if takes is not option.takes_value:
                differing.add(name)
    assert differing == set()


def test_negations_agree_with_llama_cpp(theirs: list[Declared]) -> None:
    for option in theirs:
        for name in option.negative_names:
            refused = unavailable.BY_NAME.get(name)
            assert name in NAMES.by_negative or (refused and name in refused.forms), name


def test_the_declarations_are_read_from_such_a_source() -> None:
    source = """
    add_opt(common_arg(
        {"-a", "--all"}, "N",
        string_format("text (default: %d)", 1), [](common_params & p, int value) {}
    ).set_examples({LLAMA_EXAMPLE_SERVER, LLAMA_EXAMPLE_CLI}).set_env("LLAMA_ARG_ALL"));
    add_opt(common_arg({"--on"}, {"--no-on"}, "text", [](common_params & p, bool value) {}));
    // a comment
    add_opt(common_arg({"--other"}, "text", [](common_params & p) {}
    ).set_examples({LLAMA_EXAMPLE_X}));
    """
    assert declared(source) == [
        Declared(["-a", "--all"], [], ["LLAMA_ARG_ALL"], True),
        Declared(["--on"], ["--no-on"], [], False),
    ]
