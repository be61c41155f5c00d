"""Sources of constraints (a grammar, a JSON schema, or the rules of an answer), and their
translation for llguidance."""

import json
from collections.abc import Callable
from hashlib import blake2b
from typing import TYPE_CHECKING, Any, Literal

import msgspec
from llguidance import LLMatcher

from engine.params import GrammarTrigger, NamedSchema
from engine.worker.constraints import gbnf, json_schema
from engine.worker.constraints.gbnf import GrammarError

if TYPE_CHECKING:
    from llguidance._lib import JsonCompileOptions

Kind = Literal["grammar", "json_schema", "answer"]

_JSON_OPTIONS: "JsonCompileOptions" = {
    # As in llama.cpp: models that may go on with white space for ever sometimes do.
    "whitespace_pattern": r" |\n[ \t]{0,20}",
    "lenient": False,
    "coerce_one_of": False,
}
WHAT: dict[Kind, str] = {
    "grammar": "grammar",
    "json_schema": "JSON schema",
    "answer": "the constraint of the answer",
}


class SchemaError(Exception):
    """A fault in one of the schemas of an answer, which the message names."""


class Source(msgspec.Struct, frozen=True):
    """Everything that a compiled grammar depends on. `shown` are the control tokens that are
    text for it; `triggers` of a lazy one."""

    kind: Kind
    text: str
    schemas: dict[str, NamedSchema] = {}
    shown: list[int] = []
    triggers: list[GrammarTrigger] = []

    @property
    def key(self) -> bytes:
        return blake2b(msgspec.msgpack.encode(self)).digest()


def translated(source: Source, token_id: Callable[[str], int | None]) -> str:
    """`source` in the notation of llguidance; `token_id` as in `gbnf.to_lark`. Raises GrammarError
    and SchemaError."""
    match source.kind:
        case "grammar":
            lark = gbnf.to_lark(source.text, token_id)
        case "json_schema":
            if not source.shown:
                return from_schema(source.text)
            grammars = [{"name": "schema", "json_schema": _prepared(source.text)}]
            return _grammars("start: @schema\n", grammars, source)
        case "answer":
            grammars = []
            for name, named in source.schemas.items():
                try:
                    prepared = _prepared(named.schema)
                except GrammarError as error:
                    raise SchemaError(f"Failed to parse {named.name}: {error}") from None
                grammars.append({"name": name, "json_schema": prepared})
            lark = source.text
            return _grammars(lark, grammars, source)
    return _grammars(lark, [], source)


def from_schema(text: str) -> str:
    return LLMatcher.grammar_from_json_schema(json_schema.prepare(text), overrides=_JSON_OPTIONS)


def _prepared(text: str) -> dict[str, Any]:
    """A schema that carries the options with it, as one of several grammars."""
    schema: dict[str, Any] = json.loads(json_schema.prepare(text))
    return {"x-guidance": _JSON_OPTIONS, **schema}


def _grammars(lark: str, others: list[dict[str, Any]], source: Source) -> str:
    # A text that is forced would be spelled out, although one control token says the same.
    options = '%llguidance {"no_forcing": true}\n' if source.shown else ""
    return json.dumps({"grammars": [{"lark_grammar": options + lark}, *others]})
