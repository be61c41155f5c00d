"""Functions that mean something do what their parts say."""

import ast
from typing import Any

import pytest

from tools.models.lessons import infill, programs
from tools.models.lessons.infill import tree
from tools.models.lessons.source import Source

EXAMPLES: dict[str, Any] = {
    programs.TEXT: "12",
    programs.WORDS: ["12", "7", "30"],
    programs.NUMBER: 12,
    programs.NUMBERS: [12, 7, 30],
    programs.COUNTS: {"word": 12, "other": 7},
    programs.TRUTH: True,
}
TYPES: dict[str, Any] = {
    programs.TEXT: str,
    programs.WORDS: list,
    programs.NUMBER: (int, float),
    programs.NUMBERS: list,
    programs.COUNTS: dict,
    programs.TRUTH: bool,
}
GIVEN = {"x": "x", "e": "e", "r": "r", "s": "word", "n": "5", "c": "1"}


@pytest.mark.parametrize(
    ("kind", "step"), [(kind, step) for kind, steps in programs.STEPS.items() for step in steps]
)
def test_a_step_does_what_its_meaning_says(kind: str, step: programs.Step) -> None:
    made, code, _ = step
    found = eval(code.format(**GIVEN), {"x": EXAMPLES[kind]})
    assert isinstance(found, TYPES[made])
    if made == programs.WORDS:
        assert all(isinstance(each, str) for each in found)


@pytest.mark.parametrize(
    ("kind", "loop"), [(kind, loop) for kind, loops in programs.LOOPS.items() for loop in loops]
)
def test_a_loop_does_what_its_meaning_says(kind: str, loop: programs.Loop) -> None:
    made, first, inside, _ = loop
    body = "\n".join(f"    {each.format(**GIVEN)}" for each in inside)
    known = {"x": EXAMPLES[kind]}
    exec(f"r = {first.format(**GIVEN)}\nfor e in x:\n{body}\n", known)
    assert isinstance(known["r"], TYPES[made])


def test_functions_can_be_parsed_and_return_something() -> None:
    found = set()
    for seed in range(600):
        text = programs.program(Source(seed, level=1.0), ["alpha", "beta", "gamma"], "any_name")
        (made,) = tree(text).body  # type: ignore[attr-defined]
        assert isinstance(made, ast.FunctionDef)
        assert isinstance(made.body[-1], ast.Return)
        found.add(text)
    assert len(found) > 400


def test_the_meaning_of_a_function_is_about_its_parameters() -> None:
    """Each step's meaning is that of the step before it, not of a variable."""
    said = 0
    for seed in range(600):
        text = programs.program(Source(seed, level=1.0), ["alpha", "beta", "gamma"], "any_name")
        (made,) = tree(text).body  # type: ignore[attr-defined]
        described = ast.get_docstring(made)
        if described:
            said += 1
            assert any(each.arg in described for each in made.args.args), text
    assert said > 100


def test_none_is_one_of_the_evaluation() -> None:
    def shape(text: str) -> str:
        """The function without its names."""
        node = tree(text)
        for each in ast.walk(node):
            for field in ("name", "id", "arg"):
                if hasattr(each, field):
                    setattr(each, field, "_")
        return ast.dump(node)

    names = {"a": "a", "b": "b", "c": "c", "f": "f", "n": 5}
    held_out = {
        shape(Source(seed, held_out=True).phrase(infill.BODIES).format(**names, C="C"))
        for seed in range(100)
    }
    assert len(held_out) == len(infill.BODIES) // 5
    for seed in range(2000):
        text = programs.program(Source(seed, level=1.0), ["alpha", "beta", "gamma"], "any_name")
        assert shape(text) not in held_out
