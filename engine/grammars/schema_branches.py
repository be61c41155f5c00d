"""Proves that the branches of a `oneOf` exclude each other, so that at most one can match.

The proof compares every branch with every other one, so it has a budget of work, which all of a
schema's proofs share: the number of compared schemas and pairs.
"""

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from specllama.engine.formats.json_schema import Work

Schema = dict[str, Any]
Resolve = Callable[[str], Any]

_MAX_PROPERTIES = 64
_TYPES = frozenset({"null", "boolean", "number", "string", "array", "object"})
_CHARACTERS = 16  # of a value per step of work
_NESTING = 8  # depth limit of the search for a difference


def exclude_each_other(
    branches: Sequence[Any],
    generated: Sequence[frozenset[str] | None],
    resolve: Resolve,
    work: Work,
) -> bool:
    """True if it is proven that no value generated for one of `branches` matches another one.

    `generated` has for each branch the only property names of generated objects; None: any names.
    `resolve` returns the target of a reference, or None. Raises OutOfWorkError.
    """
    sets = [_Possible.of(branch, resolve, work) for branch in branches]
    for bound, names in zip(sets, generated, strict=True):
        bound.generated = names
    return all(sets[i].excludes(sets[j], work) for i in range(len(sets)) for j in range(i))


class _Possible:
    """An upper bound of the values that a schema allows, to prove that two exclude each other.

    `types` are the possible types (integers are numbers). `values` are the only possible values, as
    canonical JSON; None: any. `low` and `high` bound the numbers. `required` are the properties
    that every object has. `named` are the only properties that an object may have, and `generated`
    the only ones of generated objects; None: any.
    """

    def __init__(self) -> None:
        self.types = _TYPES
        self.values: frozenset[str] | None = None
        self.low, self.high = float("-inf"), float("inf")
        self.above, self.below = float("-inf"), float("inf")  # exclusively
        self.required: dict[str, _Possible] = {}
        self.named: frozenset[str] | None = None
        self.generated: frozenset[str] | None = None

    @classmethod
    def of(cls, schema: Any, resolve: Resolve, work: Work, nesting: int = 0) -> "_Possible":
        bound = cls()
        if schema is False:
            bound.types = frozenset()
        if isinstance(schema, dict) and nesting <= _NESTING:
            bound._narrow(schema, resolve, work, nesting)
        return bound

    def _narrow(self, schema: Schema, resolve: Resolve, work: Work, nesting: int) -> None:
        work.spend(1)
        self._narrow_types(schema)
        for values in _finite(schema):
            known = frozenset(_canonical(value, work) for value in values)
            self.values = known if self.values is None else self.values & known
        self.low = max(self.low, _number(schema, "minimum", self.low))
        self.high = min(self.high, _number(schema, "maximum", self.high))
        self.above = max(self.above, _number(schema, "exclusiveMinimum", self.above))
        self.below = min(self.below, _number(schema, "exclusiveMaximum", self.below))
        properties = schema.get("properties", {})
        properties = properties if isinstance(properties, dict) else {}
        if schema.get("additionalProperties") is False and "patternProperties" not in schema:
            names = frozenset(properties)
            self.named = names if self.named is None else self.named & names
        required = schema.get("required")
        required = required[:_MAX_PROPERTIES] if isinstance(required, list) else []
        work.spend(len(properties) + len(required))
        for name in required:
            if isinstance(name, str):
                inner = properties.get(name)
                self.required[name] = _Possible.of(inner, resolve, work, nesting + 1)
        if nesting < _NESTING:
            if isinstance(name := schema.get("$ref"), str):
                target = resolve(name)
                if isinstance(target, dict):
                    self._narrow(target, resolve, work, nesting + 1)
            parts = schema.get("allOf")
            for part in parts[:_MAX_PROPERTIES] if isinstance(parts, list) else []:
                if isinstance(part, dict):
                    self._narrow(part, resolve, work, nesting + 1)

    def _narrow_types(self, schema: Schema) -> None:
        named = schema.get("type")
        names = [named] if isinstance(named, str) else named
        if isinstance(names, list) and all(isinstance(name, str) for name in names):
            self.types &= {"number" if name == "integer" else name for name in names}

    def excludes(self, other: "_Possible", work: Work) -> bool:
        """True if it is proven that both have no value in common."""
        work.spend(1)
        if self.values is not None and other.values is not None:
            work.spend(min(len(self.values), len(other.values)))
            if not self.values & other.values:
                return True
        return all(self._type_excludes(other, kind, work) for kind in self.types & other.types)

    def _type_excludes(self, other: "_Possible", kind: str, work: Work) -> bool:
        if any(s.values is not None and not s._has(kind) for s in (self, other)):
            return True
        if kind == "number":
            low, above = max(self.low, other.low), max(self.above, other.above)
            high, below = min(self.high, other.high), min(self.below, other.below)
            return low > high or above >= below or above >= high or low >= below
        if kind == "object":
            if self._lacks(other) or other._lacks(self):
                return True
            if self._misses(other) and other._misses(self):
                return True
            common = self.required.keys() & other.required.keys()
            return any(self.required[name].excludes(other.required[name], work) for name in common)
        return False

    def _lacks(self, other: "_Possible") -> bool:
        """True if `other` requires a property that objects of this schema can't have."""
        return self.named is not None and not self.named >= other.required.keys()

    def _misses(self, other: "_Possible") -> bool:
        """As `_lacks`, for generated objects."""
        return self.generated is not None and not self.generated >= other.required.keys()

    def _has(self, kind: str) -> bool:
        return any(_kind(value) == kind for value in self.values or ())


def _finite(schema: Schema) -> Iterator[list[Any]]:
    if "const" in schema:
        yield [schema["const"]]
    if isinstance(schema.get("enum"), list):
        yield schema["enum"]


def _number(schema: Mapping[str, Any], key: str, otherwise: float) -> float:
    value = schema.get(key)
    # The exclusive bounds of draft 4 are booleans. They only narrow, so they can be ignored here.
    if isinstance(value, bool) or not isinstance(value, int | float):
        return otherwise
    return value


def _canonical(value: Any, work: Work) -> str:
    """A text that is equal for equal values: 1.0 is 1, and names are sorted."""
    text = json.dumps(_integral(value), sort_keys=True)
    work.spend(1 + len(text) // _CHARACTERS)
    return text


def _integral(value: Any) -> Any:
    match value:
        case dict():
            return {name: _integral(inner) for name, inner in value.items()}
        case list():
            return [_integral(inner) for inner in value]
        case float() if value.is_integer():
            return int(value)
    return value


def _kind(canonical: str) -> str:
    kinds = {'"': "string", "{": "object", "[": "array", "n": "null", "t": "boolean"}
    return kinds.get(canonical[0], "boolean" if canonical == "false" else "number")
