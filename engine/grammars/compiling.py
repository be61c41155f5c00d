"""Sources of constraints (a grammar, a JSON schema, or the rules of an answer), their translation
for llguidance, and its matchers.

The trial process and the engine process both start matchers with this module.
"""

import json
import threading
from collections.abc import Callable, Mapping
from hashlib import blake2b
from typing import TYPE_CHECKING, Any, Literal, TypeVar

import msgspec
from llguidance import LLMatcher, LLParserLimits, LLTokenizer

from specllama.engine import system
from specllama.engine.grammars import gbnf
from specllama.engine.grammars.gbnf import GrammarError
from specllama.engine.grammars.json_schema import (
    EXACT,
    Leniency,
    Prepared,
    most_lenient,
    prepare,
)
from specllama.engine.params import GrammarTrigger, JsonWhitespace, NamedGrammar, NamedSchema

if TYPE_CHECKING:
    from llguidance._lib import JsonCompileOptions

Kind = Literal["grammar", "json_schema", "answer"]

_FORMS: "dict[JsonWhitespace, JsonCompileOptions]" = {
    # As in llama.cpp: without a limit, models sometimes generate endless white space.
    "flexible": {"whitespace_pattern": r" |\n{1,2}[ \t]{0,20}"},
    "compact": {"whitespace_flexible": False, "item_separator": ",", "key_separator": ":"},
    "spaced": {"whitespace_flexible": False, "item_separator": ", ", "key_separator": ": "},
}
_JSON_OPTIONS: "dict[JsonWhitespace, JsonCompileOptions]" = {
    name: {**form, "lenient": False, "coerce_one_of": False} for name, form in _FORMS.items()
}
ALONE = "schema"
"""The name of the schema of a source that is a single schema."""
WHAT: dict[Kind, str] = {
    "grammar": "grammar",
    "json_schema": "JSON schema",
    "answer": "the constraint of the answer",
}


class SchemaError(Exception):
    """An error in one of the schemas of an answer; the message names the schema."""


class GrammarSource(msgspec.Struct, frozen=True):
    """Everything that a compiled grammar depends on. `shown` are the control tokens that count as
    text; `triggers` are set for a lazy grammar; `grammars` are the ones that it refers to.
    `whitespace` applies to its schemas."""

    kind: Kind
    text: str
    schemas: dict[str, NamedSchema] = {}
    shown: list[int] = []
    triggers: list[GrammarTrigger] = []
    grammars: dict[str, NamedGrammar] = {}
    whitespace: JsonWhitespace = "flexible"

    @property
    def key(self) -> bytes:
        return blake2b(msgspec.msgpack.encode(self)).digest()


def prepared(source: GrammarSource, *, leniently: bool = False) -> dict[str, Prepared]:
    """The schemas of `source` by their names (`ALONE` for a source that is a schema). With
    `leniently`, costly keywords are left out. Raises GrammarError and SchemaError."""
    if source.kind == "json_schema":
        return {ALONE: prepare(source.text, leniency=_leniency(source.text, leniently))}
    found: dict[str, Prepared] = {}
    for name, named in source.schemas.items():
        try:
            leniency = _leniency(named.schema, leniently)
            found[name] = prepare(named.schema, named.at, leniency)
        except GrammarError as error:
            raise SchemaError(f"Failed to parse {named.name}: {error}") from None
    return found


def can_be_lenient(source: GrammarSource) -> bool:
    """True if the schemas of `source` have costly keywords, which can be left out."""
    return any(most_lenient(each.schema) != EXACT for each in named_schemas(source).values())


def _leniency(text: str, leniently: bool) -> Leniency:
    return most_lenient(text) if leniently else EXACT


def named_schemas(source: GrammarSource) -> dict[str, NamedSchema]:
    """The original schemas of `source`, by the same names."""
    match source.kind:
        case "grammar":
            return {}
        case "json_schema":
            return {ALONE: NamedSchema(WHAT["json_schema"], source.text)}
        case "answer":
            return source.schemas


def translated(
    source: GrammarSource, schemas: Mapping[str, Prepared], token_id: Callable[[str], int | None]
) -> str:
    """`source` in llguidance's notation, with the prepared `schemas`; `token_id` is as in
    `gbnf.to_lark`. Raises GrammarError."""
    match source.kind:
        case "grammar":
            lark = gbnf.to_lark(source.text, token_id)
        case "json_schema":
            if not source.shown:
                return alone(schemas[ALONE], source.whitespace)
            lark = f"start: @{ALONE}\n"
        case "answer":
            lark = source.text
    # Otherwise llguidance would spell out a forced text that is a single control token.
    options = '%llguidance {"no_forcing": true}\n' if source.shown else ""
    others = [
        {"name": name, "json_schema": _carrying(each, source.whitespace)}
        for name, each in schemas.items()
    ]
    texts = [{"name": name, "lark_grammar": each.in_json} for name, each in source.grammars.items()]
    return json.dumps({"grammars": [{"lark_grammar": options + lark}, *others, *texts]})


def text_alone(lark: str) -> str:
    """A grammar with only the Lark text `lark`."""
    return json.dumps({"grammars": [{"lark_grammar": lark}]})


def alone(schema: Prepared, whitespace: JsonWhitespace) -> str:
    """A grammar with only `schema`."""
    return LLMatcher.grammar_from_json_schema(schema.text, overrides=_JSON_OPTIONS[whitespace])


def _carrying(schema: Prepared, whitespace: JsonWhitespace) -> dict[str, Any]:
    """A schema with the options in it, as one of several grammars. The options must be the last
    entry: llguidance removes them, and moves the last entry to their place."""
    return {**json.loads(schema.text), "x-guidance": _JSON_OPTIONS[whitespace]}


# Limits on the work for one mask, against hostile grammars. The fuel lasts for tens of
# milliseconds.
_LIMITS = LLParserLimits(
    max_items_in_row=4000,
    initial_lexer_fuel=2_000_000,
    step_lexer_fuel=400_000,
    step_max_items=800_000,
    max_lexer_states=50_000,
    max_grammar_size=500_000,
    verbose_errors=False,
)
TOO_COMPLEX = "the constraint is too complex, or forces an endless text"
_MEANINGS = {
    "panic": "it is too large",
    "NoExtensionBias": "no text can match",
    "oo many": TOO_COMPLEX,
    "TooComplex": TOO_COMPLEX,
    "fuel": TOO_COMPLEX,
    "max is": TOO_COMPLEX,
}


class ConstraintError(Exception):
    """The generation can't continue under its constraint."""


def begin(tokenizer: LLTokenizer, grammar: str) -> LLMatcher:
    """A matcher at the start of `grammar`. Raises GrammarError."""
    matcher = LLMatcher(tokenizer, grammar, log_level=0, limits=_LIMITS)
    if matcher.is_error():
        raise GrammarError(_reason(matcher))
    return matcher


def mask(matcher: LLMatcher) -> bytes:
    """A bit mask of the tokens that `matcher` allows next. Raises ConstraintError."""
    bits = matcher.compute_bitmask()
    if matcher.is_error():
        raise ConstraintError(_reason(matcher))
    return bits


def consume(matcher: LLMatcher, tokens: list[int]) -> None:
    """Advance `matcher` past `tokens`. Raises ConstraintError."""
    if not matcher.consume_tokens(tokens):
        raise ConstraintError(_reason(matcher))


def _reason(matcher: LLMatcher) -> str:
    """llguidance's error without the state of its parser."""
    message = matcher.get_error().split("\n<")[0].strip()
    for marker, meaning in _MEANINGS.items():
        if marker in message:
            return meaning
    return message or "no text can match"


T = TypeVar("T")

STACK = 256 << 20  # bytes of address space; only the used part takes memory


class DeepThread:
    """One thread with a large stack, which runs submitted work in order."""

    def __init__(self) -> None:
        self._executor: system.Executor | None = None
        self._lock = system.Lock()

    def submit(self, work: Callable[[], T]) -> system.Future[T]:
        with self._lock:
            if self._executor is None:
                self._executor = system.pool(1, "compile")
                before = threading.stack_size(STACK)
                try:
                    # The executor starts its thread with the first piece of work.
                    return self._executor.submit(work)
                finally:
                    threading.stack_size(before)
            return self._executor.submit(work)

    def close(self) -> None:
        with self._lock:
            if self._executor is not None:
                self._executor.shutdown(cancel_futures=True)
