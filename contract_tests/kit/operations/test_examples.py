"""Examples of whole answers have the form of a server's answers."""

from typing import Any

import pytest

from contract_tests.kit import contract, lint
from contract_tests.kit.bodies import body, path
from contract_tests.kit.server import OwnServer, Start

ANSWERS = ("create_completion", "create_infill", "list_slots", "get_props", "get_response")


@pytest.fixture(scope="module")
def two_slots(module_server: Start) -> OwnServer:
    """The server that gave the examples."""
    server = module_server("--parallel", "2")
    for name in ("create_completion", "create_infill"):  # a slot that has served shows more
        server.ask(path(name), body(name))
    return server


def answer(server: OwnServer, name: str) -> Any:
    if name.startswith("create_"):
        return server.ask(path(name), body(name))
    where = path(name)
    if name == "get_response":
        kept = server.ask(path("create_response"), body("create_response"))
        where = where.replace("resp_0", kept["id"])
    return contract.check(server.get(where))


def differences(example: Any, real: Any, where: str = "answer") -> list[str]:
    """Returns the places where the two differ in members or types. Elements of a list are compared
    with the first one of the same `type`, if there is one; null matches anything."""
    if isinstance(example, dict) and isinstance(real, dict):
        found = [f"{where}: only one has {name}" for name in sorted(example.keys() ^ real.keys())]
        for name in example.keys() & real.keys():
            found += differences(example[name], real[name], f"{where}.{name}")
        return found
    if isinstance(example, list) and isinstance(real, list):
        found = []
        for value in example:
            alike = [each for each in real if _type(each) == _type(value)]
            found += differences(value, alike[0], f"{where}[]") if alike else []
        return found
    if example is None or real is None or _kind(example) == _kind(real):
        return []
    return [f"{where}: {_kind(example)} for {_kind(real)}"]


def _type(value: Any) -> Any:
    return value.get("type") if isinstance(value, dict) else None


def _kind(value: Any) -> str:
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    return "number" if is_number else type(value).__name__


@pytest.mark.parametrize("name", ANSWERS)
def test_an_example_has_the_form_of_an_answer(name: str, two_slots: OwnServer) -> None:
    media = contract.answers(contract.operations()[name], 200)[contract.JSON]
    examples = dict(lint.examples(media))
    assert examples
    real = answer(two_slots, name)
    for title, example in examples.items():
        assert not differences(example, real, title)


def test_other_forms_are_noticed() -> None:
    assert differences({"a": 1, "b": []}, {"a": "1", "c": []}) == [
        "answer: only one has b",
        "answer: only one has c",
        "answer.a: number for str",
    ]
    assert differences([{"a": True}], [{"a": 1}]) == ["answer[].a: bool for number"]
    thought, text = {"type": "thought", "a": 1}, {"type": "text", "b": 1}
    assert not differences([thought, text], [text])
    assert differences([thought], [{"type": "thought"}]) == ["answer[]: only one has a"]
    assert not differences({"a": None, "b": [1.5]}, {"a": {}, "b": [2]})
