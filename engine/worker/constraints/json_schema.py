"""Prepares a JSON schema for llguidance, so that the output follows it.

llguidance is exact for most of JSON Schema, but not for all: it takes patterns for Rust's
regular expressions, knows hardly any `oneOf`, rounds large numbers, obeys options inside of the
schema, and overflows the stack on long chains of references. Here all of this is translated or
refused by name. What remains are the keywords that it implements; annotations are dropped.
"""

import json
from collections.abc import Iterator, Mapping
from typing import Any

import jsonschema_rs

from engine.formats.ecma_regex import PatternError, to_rust
from engine.worker.constraints.gbnf import GrammarError
from engine.worker.constraints.schema_references import at_pointer, circle

MAX_LENGTH = 1 << 20  # characters
MAX_DEPTH = 100  # of JSON in JSON; llguidance's parser allows 128
MAX_REFERENCED_DEPTH = 4000  # of all definitions together, which bounds the compiler's recursion
MAX_INTEGER = 2**53  # beyond, a double is not exact
MAX_DECIMAL = 1e15
MIN_DECIMAL = 1e-9
MAX_DIGITS = 15

_SCHEMA = ("additionalProperties", "additionalItems")
_SCHEMA_OR_LIST = ("items",)
_LISTS = ("anyOf", "allOf", "oneOf", "prefixItems")
_MAPS = ("properties", "patternProperties", "$defs", "definitions")
_COUNTS = ("minItems", "maxItems", "minLength", "maxLength", "minProperties", "maxProperties")
_VALUES = (
    *("type", "enum", "const", "required", "format", "$ref", "$schema", "$id", "$anchor"),
    *("minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "multipleOf"),
)
# Keywords that restrict what is valid, with the values that don't.
_UNSUPPORTED: dict[str, list[Any]] = {
    "not": [False],
    "if": [True, {}],
    "contains": [],
    "uniqueItems": [False],
    "propertyNames": [True, {}],
    "dependentRequired": [{}],
    "dependentSchemas": [{}],
    "dependencies": [{}],
    "unevaluatedItems": [True, {}],
    "unevaluatedProperties": [True, {}],
    "$dynamicRef": [],
    "$recursiveRef": [],
}

_DIALECTS = frozenset(
    [
        "",
        *(f"http://json-schema.org/draft-0{number}/schema" for number in (4, 6, 7)),
        *(f"https://json-schema.org/draft/{date}/schema" for date in ("2019-09", "2020-12")),
    ]
)
# Formats that a validator may check. Any other one is an annotation, and dropped.
_FORMATS = frozenset(
    [
        *("date-time", "date", "time", "duration", "email", "idn-email", "hostname"),
        *("idn-hostname", "ipv4", "ipv6", "uri", "uri-reference", "iri", "iri-reference"),
        *("uuid", "uri-template", "json-pointer", "relative-json-pointer", "regex"),
    ]
)

# llguidance lets every minute have a leap second, and every year a leap day.
_NO_LEAP_SECOND = ":[0-9]{2}:[0-5]"
_NO_LEAP_DAY = "^[0-9]{4}-(02-(0[1-9]|1[0-9]|2[0-8])|(0[13-9]|1[0-2])-)"
_STRICTER = {
    "time": [_NO_LEAP_SECOND],
    "date": [_NO_LEAP_DAY],
    "date-time": [_NO_LEAP_DAY, _NO_LEAP_SECOND],
}

Schema = dict[str, Any]


def prepare(text: str) -> str:
    """The schema `text` in the form that llguidance compiles. Raises GrammarError."""
    if len(text) > MAX_LENGTH:
        raise GrammarError(f"the schema is longer than {MAX_LENGTH} characters")
    try:
        schema = json.loads(text)
    except RecursionError:
        raise GrammarError(_TOO_DEEP) from None
    except ValueError as error:
        raise GrammarError(f"the schema is not valid JSON: {error}") from None
    if schema is True or schema == {}:
        schema = {"type": "object"}  # any object, as everybody understands {} here
    if not isinstance(schema, dict):
        raise GrammarError("a schema is a JSON object")
    _check_depth(schema)
    dialect = schema.get("$schema", "")
    if not isinstance(dialect, str) or dialect.rstrip("#") not in _DIALECTS:
        # Checked here, because the validator would fetch the address.
        raise GrammarError(f"$schema: {_short(str(dialect))} is not supported")
    try:
        jsonschema_rs.meta.validate(schema)
    except jsonschema_rs.ValidationError as error:
        where = "".join(f"/{part}" for part in error.instance_path)
        raise GrammarError(f"{where or 'the schema'}: {error.message}") from None
    return json.dumps(_Preparation(schema).result(), ensure_ascii=False)


_TOO_DEEP = f"the schema is nested more than {MAX_DEPTH} levels deep"


def _check_depth(value: Any) -> None:
    if _depth(value, MAX_DEPTH) > MAX_DEPTH:
        raise GrammarError(_TOO_DEEP)


def _depth(value: Any, limit: int) -> int:
    """The depth of nested containers in `value`; counting ends above `limit`."""
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


class _Preparation:
    """The translation of one schema; its recursion is bounded by MAX_DEPTH."""

    def __init__(self, schema: Schema) -> None:
        self._schema = schema
        self._references: dict[str, str] = {}  # and where each was first met

    def result(self) -> Schema:
        prepared: Schema = self._translated(self._schema, "#")
        self._check_references(prepared)
        return prepared

    def _translated(self, schema: Any, where: str) -> Any:
        """The schema at `where`, which error messages name."""
        if not isinstance(schema, dict):
            return schema
        result: Schema = {}
        for key, value in schema.items():
            at = f"{where}/{key}"
            if key in _UNSUPPORTED:
                self._refuse(schema, key, value, where)
            elif key in _SCHEMA or (key in _SCHEMA_OR_LIST and not isinstance(value, list)):
                result[key] = self._translated(value, at)
            elif key in _LISTS or key in _SCHEMA_OR_LIST:
                result[key] = [self._translated(v, f"{at}/{i}") for i, v in enumerate(value)]
            elif key in _MAPS:
                result[key] = {
                    name: self._translated(v, f"{at}/{name}") for name, v in value.items()
                }
            elif key == "pattern":
                result[key] = _pattern(value, at)
            elif key in _COUNTS:
                result[key] = _count(value, at)
            elif key in _VALUES and not (key == "format" and value not in _FORMATS):
                _check_numbers(value, at)
                result[key] = value
                if key == "$ref":
                    self._references.setdefault(value, at)
        if "patternProperties" in result:
            result["patternProperties"] = {
                _pattern(name, f"{where}/patternProperties"): inner
                for name, inner in result["patternProperties"].items()
            }
        if stricter := _STRICTER.get(result.get("format", "")):
            patterns = [{"pattern": pattern} for pattern in stricter]
            result["allOf"] = [*result.get("allOf", []), *patterns]
        if "oneOf" in result:
            self._replace_one_of(schema, result, where)
        return result

    def _refuse(self, schema: Schema, key: str, value: Any, where: str) -> None:
        if any(value is v or (v == {} and value == {}) for v in _UNSUPPORTED[key]):
            return
        if key == "if" and not {"then", "else"} & schema.keys():
            return
        raise GrammarError(f"{where}: the keyword {key!r} is not supported")

    def _replace_one_of(self, schema: Schema, result: Schema, where: str) -> None:
        """Replaces `oneOf` by `anyOf`: of branches that exclude each other, one matches if any
        does."""
        branches = schema["oneOf"]
        if len(branches) > _MAX_BRANCHES:
            raise GrammarError(f"{where}/oneOf: more than {_MAX_BRANCHES} branches")
        sets = [_Possible.of(branch, self._resolve) for branch in branches]
        for i, first in enumerate(sets):
            for j in range(i):
                if not first.excludes(sets[j]):
                    raise GrammarError(
                        f"{where}/oneOf: branches {j} and {i} may match the same value, "
                        "which is not supported; anyOf has no such limit"
                    )
        if "anyOf" in result:
            any_of = [{"anyOf": result.pop("anyOf")}, {"anyOf": result.pop("oneOf")}]
            result["allOf"] = [*result.get("allOf", []), *any_of]
        else:
            result["anyOf"] = result.pop("oneOf")

    def _resolve(self, reference: str) -> Any:
        """The schema that a reference inside of this document names; None without one."""
        return at_pointer(self._schema, reference)

    def _check_references(self, prepared: Schema) -> None:
        total = 0
        for reference, where in self._references.items():
            if reference.startswith("#/"):
                target = at_pointer(prepared, reference)
                if target is None:
                    raise GrammarError(f"{where}: there is no schema at {reference!r}")
                total += 1 + _depth(target, MAX_DEPTH)
            else:
                total += MAX_DEPTH
        if total > MAX_REFERENCED_DEPTH:
            raise GrammarError("the definitions are nested too deep through their references")
        if found := circle({name: at_pointer(prepared, name) for name in self._references}):
            raise GrammarError(f"no text can match: {found!r} refers to nothing but itself")


def _pattern(pattern: str, where: str) -> str:
    try:
        return to_rust(pattern)
    except PatternError as error:
        raise GrammarError(f"{where}: the pattern {_short(pattern)}: {error}") from None


def _count(value: float, where: str) -> int:
    if value > MAX_INTEGER:
        raise GrammarError(f"{where}: {value} is too large")
    return int(value)  # 3.0 is the integer 3 in JSON Schema


def _check_numbers(value: Any, where: str) -> None:
    """Checks that all numbers in `value` are exact doubles whose decimals are few."""
    todo = [value]
    while todo:
        match todo.pop():
            case dict() as mapping:
                todo += mapping.values()
            case list() as items:
                todo += items
            case bool():
                pass
            case int() as number if abs(number) > MAX_INTEGER:
                raise GrammarError(f"{where}: the integer {_short(str(number))} is too large")
            case float() as number if number and not _is_exact(number):
                raise GrammarError(f"{where}: the number {number} is not supported")


def _is_exact(number: float) -> bool:
    digits = "".join(c for c in repr(abs(number)).split("e")[0] if c.isdigit()).strip("0")
    return MIN_DECIMAL <= abs(number) <= MAX_DECIMAL and len(digits) <= MAX_DIGITS


def _short(text: str) -> str:
    return repr(text if len(text) <= 80 else text[:77] + "...")


# ---- oneOf -------------------------------------------------------------------------------

_MAX_BRANCHES = 200
_MAX_PROPERTIES = 64
_TYPES = frozenset({"null", "boolean", "number", "string", "array", "object"})
_NESTING = 8  # how deep the search for a difference goes


class _Possible:
    """An upper bound of the values that a schema allows, to prove that two exclude each other.

    `types` are those that occur (integers are numbers); `values` are the only values, each as
    canonical JSON, or None for any; `low` and `high` bound the numbers; `required` are the
    properties that every object has.
    """

    def __init__(self) -> None:
        self.types = _TYPES
        self.values: frozenset[str] | None = None
        self.low, self.high = float("-inf"), float("inf")
        self.above, self.below = float("-inf"), float("inf")  # exclusively
        self.required: dict[str, _Possible] = {}

    @classmethod
    def of(cls, schema: Any, resolve: Any, nesting: int = 0) -> "_Possible":
        bound = cls()
        if schema is False:
            bound.types = frozenset()
        if isinstance(schema, dict) and nesting <= _NESTING:
            bound._narrow(schema, resolve, nesting)
        return bound

    def _narrow(self, schema: Schema, resolve: Any, nesting: int) -> None:
        if "type" in schema:
            named = schema["type"]
            names = {named} if isinstance(named, str) else set(named)
            self.types &= {"number" if name == "integer" else name for name in names}
        for values in _finite(schema):
            known = frozenset(map(_canonical, values))
            self.values = known if self.values is None else self.values & known
        self.low = max(self.low, _number(schema, "minimum", self.low))
        self.high = min(self.high, _number(schema, "maximum", self.high))
        self.above = max(self.above, _number(schema, "exclusiveMinimum", self.above))
        self.below = min(self.below, _number(schema, "exclusiveMaximum", self.below))
        properties = schema.get("properties", {})
        for name in schema.get("required", [])[:_MAX_PROPERTIES]:
            if name in properties:
                self.required[name] = _Possible.of(properties[name], resolve, nesting + 1)
        if nesting < _NESTING:
            if "$ref" in schema and isinstance(target := resolve(schema["$ref"]), dict):
                self._narrow(target, resolve, nesting + 1)
            for part in schema.get("allOf", [])[:_MAX_PROPERTIES]:
                if isinstance(part, dict):
                    self._narrow(part, resolve, nesting + 1)

    def excludes(self, other: "_Possible") -> bool:
        """True if certainly no value is in both."""
        if self.values is not None and other.values is not None and not self.values & other.values:
            return True
        return all(self._type_excludes(other, kind) for kind in self.types & other.types)

    def _type_excludes(self, other: "_Possible", kind: str) -> bool:
        if any(s.values is not None and not s._has(kind) for s in (self, other)):
            return True
        if kind == "number":
            low, above = max(self.low, other.low), max(self.above, other.above)
            high, below = min(self.high, other.high), min(self.below, other.below)
            return low > high or above >= below or above >= high or low >= below
        if kind == "object":
            common = self.required.keys() & other.required.keys()
            return any(self.required[name].excludes(other.required[name]) for name in common)
        return False

    def _has(self, kind: str) -> bool:
        return any(_kind(value) == kind for value in self.values or ())


def _finite(schema: Schema) -> Iterator[list[Any]]:
    if "const" in schema:
        yield [schema["const"]]
    if "enum" in schema:
        yield schema["enum"]


def _number(schema: Mapping[str, Any], key: str, otherwise: float) -> float:
    value = schema.get(key, otherwise)
    # In draft 4 the exclusive bounds are booleans; they only narrow, so they may be missed here.
    return otherwise if isinstance(value, bool) else value


def _canonical(value: Any) -> str:
    """The same text for equal values: 1.0 is 1, and the order of names doesn't count."""
    return json.dumps(_integral(value), sort_keys=True)


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
