"""Collects the other schemas that apply to the same value as one part of a schema.

`properties` and `additionalProperties` refer to one schema only. But several schemas may apply to
the same value: the parts of `allOf`, a branch of `anyOf` and of `oneOf`, and the target of `$ref`.
Together they form a place. This module collects all properties that are named anywhere in a place.
"""

from collections.abc import Iterator
from typing import Any, NamedTuple

from specllama.engine.formats.json_schema import Work, implied_type, says_type
from specllama.engine.grammars.schema_references import References, base_of

Name = tuple[str, str]
"""A property's name under the keyword `properties`, or a pattern under `patternProperties`."""

_UNIONS = ("anyOf", "oneOf")


class Surroundings(NamedTuple):
    """`names` are all properties named in the place, including its branches. `closed`: some schema
    there names properties, and none allows others. `opened`: a schema outside of branches allows
    others. `typed`: a schema outside of branches has a type; `typed_branch`: one inside of a branch
    has. `hint` is the type implied by keywords, in case no type is given. `branches`: the place has
    branches."""

    names: frozenset[Name]
    closed: bool
    opened: bool
    typed: bool
    typed_branch: bool
    hint: str | None
    branches: bool


def surroundings(schema: Any, base: str, references: References, work: Work) -> Surroundings:
    """The properties of the place of `schema`. Raises OutOfWorkError."""
    names: set[Name] = set()
    named = allowed = opened = typed = typed_branch = branches = False
    hint: str | None = None
    for each, in_branch in _in_place(schema, base, references, work):
        if isinstance(properties := each.get("properties"), dict):
            work.spend(len(properties))
            named = True
            names |= {("properties", name) for name in properties}
        if isinstance(patterns := each.get("patternProperties"), dict):
            work.spend(len(patterns))
            names |= {("patternProperties", pattern) for pattern in patterns}
        if isinstance(required := each.get("required"), list):
            work.spend(len(required))
            names |= {("properties", name) for name in required if isinstance(name, str)}
        named |= each.get("unevaluatedProperties") is False
        if each.get("additionalProperties", False) is not False:
            allowed = True
            opened |= not in_branch
        if says_type(each):
            typed |= not in_branch
            typed_branch |= in_branch
        branches |= any(word in each for word in _UNIONS)
        if not in_branch and hint is None:
            hint = implied_type(each)
    closed = named and not allowed
    every = frozenset(names)
    return Surroundings(every, closed, opened, typed, typed_branch, hint, branches)


def _in_place(
    schema: Any, base: str, references: References, work: Work
) -> Iterator[tuple[dict[str, Any], bool]]:
    """Yields each schema in the place once, and whether it belongs to a branch."""
    seen: set[int] = set()
    todo = [(schema, base, False)]
    while todo:
        each, base, in_branch = todo.pop()
        if not isinstance(each, dict) or id(each) in seen:
            continue
        work.spend(20 if "$id" in each else 1)  # joining addresses is slow
        seen.add(id(each))
        yield each, in_branch
        base = base_of(each, base)
        for word in ("allOf", *_UNIONS):
            if isinstance(parts := each.get(word), list):
                todo += [(part, base, in_branch or word in _UNIONS) for part in parts]
        if isinstance(reference := each.get("$ref"), str):
            target, inner = references.target(reference, base)
            todo.append((target, inner, in_branch))
