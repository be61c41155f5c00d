"""Compares the fields of a native request, and their bounds, with llama.cpp's sources: `pytest
--llama-cpp DIR`."""

import re
from pathlib import Path
from typing import NamedTuple

import pytest

from contract_tests.kit import contract
from contract_tests.own.client_types import forms_of

_NUMBERS = {"INT32_MAX": 2147483647}
_FIELD = re.compile(r'new field_\w+\("([^"]+)"(.*?);', re.DOTALL)
_BOUNDS = re.compile(r"set_hard_limits\(([^,]+), ([^)]+?)(?:\(\))?\)")

INTERNAL = {"chat_format", "chat_parser"}
"""Fields that llama-server uses between its own parts."""
OTHER_BOUNDS = {
    "n_cmpl": "more than there are slots: the rest waits",
    "n": "the same",
    "t_max_predict_ms": "longer times count as the longest",
    "repeat_last_n": "-1 is the whole context, as llama-server's README says",
    "dry_penalty_last_n": "-1 is the whole context, as llama-server's README says",
}


class Field(NamedTuple):
    name: str
    low: str | None
    high: str | None


def declared(source: str) -> list[Field]:
    """Returns the fields that llama-server's schema declares, with the bounds that it enforces."""
    source = re.sub(r"#if 0\n.*?#endif", "", source, flags=re.DOTALL)
    source = re.sub(r"^\s*//.*$", "", source, flags=re.MULTILINE)
    found = []
    for name, rest in _FIELD.findall(source):
        bounds = _BOUNDS.search(rest)
        found.append(Field(name, *(bounds.groups() if bounds else (None, None))))
        found += [Field(alias, *found[-1][1:]) for alias in re.findall(r'add_alias\("(\w+)"', rest)]
    return found


@pytest.fixture(scope="module")
def theirs(request: pytest.FixtureRequest) -> list[Field]:
    folder = request.config.getoption("--llama-cpp")
    if not folder:
        pytest.skip("needs --llama-cpp, the folder of llama.cpp's sources")
    return declared((Path(folder) / "tools/server/server-schema.cpp").read_text("utf-8"))


def test_every_field_is_described(theirs: list[Field]) -> None:
    assert len(theirs) > 50, "the sources have another form than this test expects"
    body = contract.operations()["create_chat_completion"].definition["requestBody"]
    [form] = forms_of(body["content"][contract.JSON]["schema"])
    assert {field.name for field in theirs} - form["properties"].keys() == INTERNAL
    differing = set()
    for field in theirs:
        if field.low is None or field.high is None:
            continue
        [schema, *_] = forms_of(form["properties"][field.name])
        low, high = schema.get("x-clamped", (schema.get("minimum"), schema.get("maximum")))
        if (low, high) != (_number(field.low), _number(field.high)):
            differing.add(field.name)
    assert differing == OTHER_BOUNDS.keys()


def _number(text: str) -> float | None:
    """Returns a number of the source; None if it depends on the server's options."""
    text = text.strip()
    if text in _NUMBERS:
        return _NUMBERS[text]
    try:
        return float(text.removesuffix("f"))
    except ValueError:
        return None


def test_the_fields_are_read_from_such_a_source() -> None:
    source = """
    add((new field_num("n_predict", params.n_predict))
        ->set_hard_limits(-1, INT32_MAX)
        ->add_alias("max_tokens")
        ->set_desc("Text"));
    // add((new field_num("no_field", params.no_field))
    add((new field_bool("stream", params.stream))->set_desc("Text"));
#if 0
    add((new field_num("off", params.off)));
#endif
    """
    assert declared(source) == [
        Field("n_predict", "-1", "INT32_MAX"),
        Field("max_tokens", "-1", "INT32_MAX"),
        Field("stream", None, None),
    ]
    assert (_number("INT32_MAX"), _number("0.99f"), _number("params.n")) == (2147483647, 0.99, None)
