"""Tools whose schemas would take for ever: the analysis ends, and reports what it leaves out."""

from typing import Any

import pytest

from specllama.engine.chat.grammar import answer as answer_module
from specllama.engine.chat.grammar.answer import AnswerGrammar, answer_grammar
from specllama.engine.formats.json_schema import Work
from tests.support.answer_grammars import SYNTAXES, tool

pytestmark = pytest.mark.slow

LEAF = {"type": "integer"}


def fan(depth: int, link: Any) -> dict[str, Any]:
    """Definitions of which each one leads to the next in several ways."""
    definitions = {f"d{i}": link({"$ref": f"#/$defs/d{i + 1}"}) for i in range(depth)}
    definitions[f"d{depth}"] = LEAF
    return {"$defs": definitions, "properties": {"a": {"$ref": "#/$defs/d0"}}}


HOSTILE: dict[str, dict[str, Any]] = {
    "alternatives that none fits": fan(28, lambda x: {"type": "string", "anyOf": [x, x]}),
    "alternatives of strings": fan(28, lambda x: {"type": ["string"], "oneOf": [x, x, x]}),
    "a whole made of itself": {"properties": {"a": {}}, "allOf": [{"$ref": "#"}] * 60},
    "definitions for every property": {
        "$defs": {f"d{i}": {"title": "x" * 1000, "type": "object"} for i in range(500)},
        "properties": {f"p{i}": {"items": {"$ref": "#/$defs/d1"}} for i in range(900)},
    },
    "texts and numbers alike": {
        "properties": {"a": {"enum": [x for i in range(9000) for x in (i, str(i))]}}
    },
    "one large list of values": {
        "$defs": {"d": {"enum": [f"value {i}" for i in range(20_000)]}},
        "properties": {f"p{i}": {"$ref": "#/$defs/d"} for i in range(900)},
    },
}


def grammar(parameters: Any, n_tools: int = 1, name: str = "tagged") -> AnswerGrammar:
    tools: list[Any] = [tool(f"get{i}", parameters) for i in range(n_tools)]
    syntax, _ = SYNTAXES[name]
    made = answer_grammar(
        syntax, tools=tools, required=True, tool_name=None, parallel=False, thinking=False
    )
    assert made is not None
    return made


@pytest.fixture
def spent(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The steps that are spent."""
    every: list[int] = []
    spend = Work.spend

    def counted(self: Work, steps: int) -> None:
        every.append(steps)
        spend(self, steps)

    monkeypatch.setattr(Work, "spend", counted)
    return every


@pytest.mark.parametrize("n_tools", [1, 128])
@pytest.mark.parametrize("name", HOSTILE)
def test_the_work_is_bounded(spent: list[int], name: str, n_tools: int) -> None:
    made = grammar(HOSTILE[name], n_tools)
    # The last step of each tool may be a large one, but it isn't taken.
    bound = max(answer_module.MAX_WORK, n_tools * answer_module.MIN_WORK) + 3 * n_tools
    assert len(spent) <= bound
    assert {f"get{i}#" for i in range(n_tools)} <= set(made.relaxed)
    assert sum(len(each.schema) for each in made.schemas.values()) < 16 << 20


def test_many_usual_tools_stay_whole() -> None:
    properties = {f"p{i}": {"type": "string", "description": "x" * 200} for i in range(30)}
    options = {"anyOf": [{"type": "null"}, {"type": "array", "items": {"$ref": "#/$defs/d"}}]}
    definitions = {"d": {"type": "object", "properties": {"a": {"type": "integer"}}}}
    made = grammar({"$defs": definitions, "properties": {**properties, "o": options}}, 128)
    assert made.relaxed == []
