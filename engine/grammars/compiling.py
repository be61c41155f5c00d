"""Sources of constraints (a grammar, a JSON schema, or the rules of an answer), their translation
for llguidance, and its matchers.

The trial of a grammar and the engine begin matchers in the same way.
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
    # As in llama.cpp: models that may go on with white space for ever sometimes do.
    "flexible": {"whitespace_pattern": r" |\n{1,2}[ \t]{0,20}"},
    "compact": {"whitespace_flexible": False, "item_separator": ",", "key_separator": ":"},
    "spaced": {"whitespace_flexible": False, "item_separator": ", ", "key_separator": ": "},
}
_JSON_OPTIONS: "dict[JsonWhitespace, JsonCompileOptions]" = {
    name: {**form, "lenient": False, "coerce_one_of": False} for name, form in _FORMS.items()
}
ALONE = "schema"
"""The name of a schema that is all of a source."""
WHAT: dict[Kind, str] = {
    "grammar": "grammar",
    "json_schema": "JSON schema",
    "answer": "the constraint of the answer",
}


class SchemaError(Exception):
    """A fault in one of the schemas of an answer, which the message names."""


class GrammarSource(msgspec.Struct, frozen=True):
    """Everything that a compiled grammar depends on. `shown` are the control tokens that are
    text for it; `triggers` of a lazy one; `grammars` are those that it refers to. `whitespace` is
    that of its schemas."""

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
    """The schemas of `source` by their names, `ALONE` if it is one; `leniently`, what may be
    costly is left out. Raises GrammarError and SchemaError."""
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
    """True if there is something in the schemas of `source` that may be costly and can be left
    out."""
    return any(most_lenient(each.schema) != EXACT for each in named_schemas(source).values())


def _leniency(text: str, leniently: bool) -> Leniency:
    return most_lenient(text) if leniently else EXACT


def named_schemas(source: GrammarSource) -> dict[str, NamedSchema]:
    """The schemas of `source` as they came, by the same names."""
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
    """`source` in the notation of llguidance, with its schemas prepared; `token_id` as in
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
    # A text that is forced would be spelled out, although one control token says the same.
    options = '%llguidance {"no_forcing": true}\n' if source.shown else ""
    others = [
        {"name": name, "json_schema": _carrying(each, source.whitespace)}
        for name, each in schemas.items()
    ]
    texts = [{"name": name, "lark_grammar": each.in_json} for name, each in source.grammars.items()]
    return json.dumps({"grammars": [{"lark_grammar": options + lark}, *others, *texts]})


def text_alone(lark: str) -> str:
    """A grammar of nothing but a text."""
    return json.dumps({"grammars": [{"lark_grammar": lark}]})


def alone(schema: Prepared, whitespace: JsonWhitespace) -> str:
    """A grammar of nothing but `schema`."""
    return LLMatcher.grammar_from_json_schema(schema.text, overrides=_JSON_OPTIONS[whitespace])


def _carrying(schema: Prepared, whitespace: JsonWhitespace) -> dict[str, Any]:
    """A schema that carries the options with it, as one of several grammars. They come last:
    llguidance takes them out, and puts the last entry in their place."""
    return {**json.loads(schema.text), "x-guidance": _JSON_OPTIONS[whitespace]}


# What a hostile grammar may use for one mask. The fuel is spent in tens of milliseconds.
_LIMITS = LLParserLimits(
    max_items_in_row=4000,
    initial_lexer_fuel=2_000_000,
    step_lexer_fuel=400_000,
    step_max_items=800_000,
    max_lexer_states=50_000,
    max_grammar_size=500_000,
    verbose_errors=False,
)
TOO_COMPLEX = "the constraint is too complex, or forces a text without end"
_MEANINGS = {
    "panic": "it is too large",
    "NoExtensionBias": "no text can match",
    "oo many": TOO_COMPLEX,
    "TooComplex": TOO_COMPLEX,
    "fuel": TOO_COMPLEX,
    "max is": TOO_COMPLEX,
}


class ConstraintError(Exception):
    """The generation can't go on under its constraint."""


def begin(tokenizer: LLTokenizer, grammar: str) -> LLMatcher:
    """A matcher at the beginning of `grammar`. Raises GrammarError."""
    matcher = LLMatcher(tokenizer, grammar, log_level=0, limits=_LIMITS)
    if matcher.is_error():
        raise GrammarError(_reason(matcher))
    return matcher


def mask(matcher: LLMatcher) -> bytes:
    """A bit for each token that `matcher` allows next. Raises ConstraintError."""
    bits = matcher.compute_bitmask()
    if matcher.is_error():
        raise ConstraintError(_reason(matcher))
    return bits


def consume(matcher: LLMatcher, tokens: list[int]) -> None:
    """Go on behind `tokens`. Raises ConstraintError."""
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

STACK = 256 << 20  # bytes of address space; only what is used becomes memory


class DeepThread:
    """One thread with a large stack that does one thing after the other."""

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
