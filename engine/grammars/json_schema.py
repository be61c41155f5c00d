"""Prepares a JSON schema for llguidance.

Keywords that can't be enforced are left out and reported. Only schemas that are malformed, too
large, or can't match any text are errors.
"""

import json
import re
from collections.abc import Iterator
from typing import Any, NamedTuple

from specllama.engine.formats.json_schema import OutOfWorkError, at_pointer
from specllama.engine.grammars.gbnf import GrammarError
from specllama.engine.grammars.schema_references import circle
from specllama.engine.grammars.schema_translation import Translation

MAX_LENGTH = 1 << 20  # characters
MAX_DEPTH = 100  # nesting levels; llguidance's parser allows 128
MAX_REFERENCED_DEPTH = 4000  # sum over all definitions; limits the compiler's recursion


class Prepared(NamedTuple):
    """A schema for llguidance as JSON, and the places of the keywords left out of it, as JSON
    pointers."""

    text: str
    relaxed: tuple[str, ...]


class Leniency(NamedTuple):
    """The parts of a schema to leave out although they could be translated: the keywords `without`;
    with `literal`, implied types and closed lists of properties; with `alone`, keywords next to
    references. See `Translation`."""

    without: frozenset[str] = frozenset()
    literal: bool = False
    alone: bool = False


EXACT = Leniency()
# Parts of llguidance's errors, and the keywords that cause them.
_BLAMED: tuple[tuple[str, tuple[str, ...]], ...] = (
    ("min/maxProperties", ("minProperties", "maxProperties")),
    ("patternProperty", ("patternProperties",)),
)
# Keywords that make a schema too complex, the likeliest first.
_COSTLY: tuple[tuple[str, ...], ...] = (
    ("pattern",),
    ("patternProperties",),
    ("format",),
    ("minLength", "maxLength"),
    ("minItems", "maxItems", "minProperties", "maxProperties"),
    ("multipleOf",),
)


def prepare(text: str, at: str = "#", leniency: Leniency = EXACT) -> Prepared:
    """The schema `text`, translated for llguidance; `at` is its place in the client's request.
    Raises GrammarError."""
    schema = _parsed(text)
    try:
        translation = Translation(schema, at=at, **leniency._asdict())
        result = translation.result()
    except OutOfWorkError:
        translation = Translation(schema, at=at, **leniency._replace(literal=True)._asdict())
        result = translation.result()
    _check_references(result)
    return Prepared(json.dumps(result, ensure_ascii=False), translation.left_out)


def more_lenient(text: str, error: GrammarError) -> Iterator[Leniency]:
    """Ways to prepare the schema `text` that may succeed after `prepare` or the compiler raised
    `error`; ways that leave out little come first."""
    why, used = str(error), set(re.findall(r'"(\w+)"\s*:', text))
    for sign, words in _BLAMED:
        if sign in why:
            yield Leniency(frozenset(words))
    alone = "circular" in why
    if alone:
        yield Leniency(alone=True)
    if "nsatisfiable" in why or "no text can match" in why:
        yield Leniency(literal=True)
        return
    found: set[str] = set()
    for words in _COSTLY:
        if used & set(words):
            found |= set(words)
            yield Leniency(frozenset(words), alone=alone)
    if found:
        yield Leniency(frozenset(found), alone=alone)
    if found and not alone and '"$ref"' in text:
        # The compiler reports one error at a time: keywords next to references may be another.
        yield Leniency(frozenset(found), alone=True)


def most_lenient(text: str) -> Leniency:
    """The way to prepare the schema `text` with the least work for the compiler."""
    words = {word for each in _COSTLY for word in each}
    used = words & set(re.findall(r'"(\w+)"\s*:', text))
    return Leniency(frozenset(used), alone='"$ref"' in text)


def _parsed(text: str) -> dict[str, Any]:
    if len(text) > MAX_LENGTH:
        raise GrammarError(f"the schema is longer than {MAX_LENGTH} characters")
    try:
        schema = json.loads(text)
    except RecursionError:
        raise GrammarError(_TOO_DEEP) from None
    except ValueError as error:
        raise GrammarError(f"the schema is not valid JSON: {error}") from None
    if schema is True or schema == {}:
        schema = {"type": "object"}  # any object: the usual meaning of {} here
    if not isinstance(schema, dict):
        raise GrammarError("a schema is a JSON object")
    if _depth(schema, MAX_DEPTH) > MAX_DEPTH:
        raise GrammarError(_TOO_DEEP)
    return schema


_TOO_DEEP = f"the schema is nested more than {MAX_DEPTH} levels deep"


def _depth(value: Any, limit: int) -> int:
    """The nesting depth of containers in `value`; stops counting above `limit`."""
    depth, level = 0, [value]
    while level and depth <= limit:
        level = [
            inner
            for outer in level
            if isinstance(outer, dict | list)
            for inner in (outer.values() if isinstance(outer, dict) else outer)
        ]
        depth += bool(level)
    return depth


def _check_references(prepared: dict[str, Any]) -> None:
    """Raises GrammarError if llguidance can't follow the references between definitions."""
    definitions = prepared.get("$defs", {})
    if sum(1 + _depth(each, MAX_DEPTH) for each in definitions.values()) > MAX_REFERENCED_DEPTH:
        raise GrammarError("the definitions are nested too deep through their references")
    names = [f"#/$defs/{name}" for name in definitions]
    if circle({name: at_pointer(prepared, name) for name in names}):
        raise GrammarError("no text can match: a reference only leads to itself")
