"""Reads the JSON schemas of tools for arguments that are written one by one: the properties, and
the schemas of their values. Keywords that can't be enforced are left out and reported."""

import json
from collections.abc import Iterable
from typing import Any, NamedTuple

from specllama.engine.chat.grammar.lark import Lark
from specllama.engine.errors import EngineError, invalid_request
from specllama.engine.formats.json_schema import Work, at_pointer, escaped, implied_type, says_type

MAX_DEPTH = 32  # of references and alternatives
MAX_PROPERTIES = 1000
MAX_BRANCHES = 200  # of one property
MAX_NESTING = 8  # levels of parts that name properties
CHARACTERS = 256  # characters of a schema that count as one step of work

Schema = dict[str, Any]

TYPES = ("string", "number", "integer", "boolean", "object", "array", "null")
ANNOTATIONS = frozenset(
    [
        *("title", "description", "default", "examples", "$comment", "deprecated", "readOnly"),
        *("writeOnly", "type", "nullable", "example", "$schema", "$id", "$defs", "definitions"),
    ]
)
_PARTS = ("allOf", "anyOf", "oneOf")
# Keywords of the whole object, which can't be enforced for properties one by one.
_WHOLE = frozenset(
    [
        *(*_PARTS, "not", "if", "patternProperties", "propertyNames"),
        *("minProperties", "maxProperties", "dependentRequired", "dependentSchemas"),
        *("dependencies", "enum", "const", "unevaluatedProperties"),
    ]
)


class Branch(NamedTuple):
    """A schema, and its location."""

    schema: Any
    at: str


class Arguments(NamedTuple):
    """The schemas of a tool's arguments by name. `others` is the schema of arguments with any other
    name; None if these are not permitted."""

    named: dict[str, Branch]
    required: list[str]
    others: Branch | None


class ArgumentSchemas:
    """The schemas in `root`, the schema of a tool. Error messages call it `what`; `at` is its
    location (`engine.params.NamedSchema`)."""

    def __init__(self, lark: Lark, what: str, root: Schema, at: str) -> None:
        self._lark = lark
        self._what = what
        self._root = root
        self._at_root = at
        self._work = Work(lark.steps)
        self._carried: Schema | None = None
        self._carried_length = 0

    def spend(self, steps: int) -> None:
        """Counts the work. Raises OutOfWorkError, as all methods may do."""
        self._work.spend(steps)

    def leave_out(self, branch: Branch, *words: str) -> None:
        for word in words:
            self._lark.leave_out(f"{branch.at}/{escaped(word)}")

    def arguments(self) -> Arguments:
        """Returns the arguments of the tool."""
        whole = self._resolved(Branch(self._root, self._at_root))
        schema = whole.schema
        self.leave_out(whole, *sorted(_WHOLE & schema.keys()))
        properties = self._properties(whole, 0)
        required = schema.get("required", [])
        if not isinstance(required, list) or not all(isinstance(name, str) for name in required):
            self.leave_out(whole, "required")
            required = []
        others = schema.get("additionalProperties", True)
        other = Branch(others, f"{whole.at}/additionalProperties")
        every = {**properties, **{name: other for name in required if name not in properties}}
        if len(every) > MAX_PROPERTIES:
            raise self.error(f"more than {MAX_PROPERTIES} properties")
        is_closed = "properties" in schema and "additionalProperties" not in schema
        return Arguments(every, required, None if every or is_closed else other)

    def _properties(self, whole: Branch, depth: int) -> dict[str, Branch]:
        """Returns the properties in the schema and in its parts."""
        self.spend(1 + len(self._mapping(whole.schema, "properties")))
        found = {
            name: Branch(each, f"{whole.at}/properties/{escaped(name)}")
            for name, each in self._mapping(whole.schema, "properties").items()
        }
        for word in _PARTS:
            parts = whole.schema.get(word)
            for i, part in enumerate(parts if isinstance(parts, list) else []):
                if isinstance(part, dict) and depth < MAX_NESTING and len(found) <= MAX_PROPERTIES:
                    inner = self._resolved(Branch(part, f"{whole.at}/{word}/{i}"))
                    found = {**self._properties(inner, depth + 1), **found}
        return found

    def branches(self, branch: Branch, depth: int = 0) -> list[Branch]:
        """Returns the alternatives in a schema: a value follows at least one of them."""
        self.spend(1)
        if branch.schema is True:
            return [Branch({}, branch.at)]
        if branch.schema is False:
            return []
        if depth > MAX_DEPTH:
            self._lark.leave_out(branch.at)
            return [Branch({}, branch.at)]
        branch = self._resolved(branch)
        schema = branch.schema
        for word in (word for word in ("anyOf", "oneOf", "allOf") if word in schema):
            if "string" not in types_of(schema):
                return [branch]
            parts = schema[word]
            if not isinstance(parts, list) or (word == "allOf" and len(parts) != 1):
                self.leave_out(branch, word)
                schema = {name: value for name, value in schema.items() if name != word}
                continue
            self.leave_out(branch, *sorted(schema.keys() - ANNOTATIONS - {word}))
            return self._alternatives(branch, word, depth)
        if not says_type(schema) and (kind := implied_type(schema)):
            schema = {**schema, "type": kind}
        return [Branch(schema, branch.at)]

    def _alternatives(self, branch: Branch, word: str, depth: int) -> list[Branch]:
        found: list[Branch] = []
        for i, part in enumerate(branch.schema[word]):
            for each in self.branches(Branch(part, f"{branch.at}/{word}/{i}"), depth + 1):
                types = [name for name in types_of(each.schema) if name in types_of(branch.schema)]
                if types:
                    found.append(Branch({**each.schema, "type": types}, each.at))
            if len(found) > MAX_BRANCHES:
                self.leave_out(branch, word)
                return [Branch({}, branch.at)]
        return found

    def fixed_values(self, branch: Branch) -> list[Any] | None:
        """Returns the only permitted values of a schema; None if it permits others."""
        schema = branch.schema
        if "const" in schema:
            values = [schema["const"]]
        elif isinstance(schema.get("enum"), list) and schema["enum"]:
            values = schema["enum"]
        else:
            return None
        self.spend(len(values))
        self.leave_out(branch, *sorted(schema.keys() - ANNOTATIONS - {"const", "enum"}))
        fitting = [value for value in values if is_a(value, types_of(schema))]
        if not fitting:
            self.leave_out(branch, "type")
        return fitting or values

    def narrowed(self, branch: Branch, kinds: list[str]) -> Branch | None:
        """Returns `branch` restricted to values of some types; None if it has no such values."""
        if (fixed := self.fixed_values(branch)) is not None:
            values = [value for value in fixed if is_a(value, kinds)]
            return Branch({"enum": values}, branch.at) if values else None
        types = [name for name in types_of(branch.schema) if name in kinds]
        return Branch({**branch.schema, "type": types}, branch.at) if types else None

    def items(self, schema: Schema) -> Any:
        """Returns the schema of all items of a list; None if there is no such schema."""
        items = None if "prefixItems" in schema else schema.get("items")
        for _ in range(MAX_DEPTH):
            if not isinstance(items, dict) or "$ref" not in items:
                break
            items = self._at(items["$ref"])
        return items

    def json(self, branch: Branch) -> str:
        """Returns a reference to the JSON of `branch`."""
        schema: Any = branch.schema
        if isinstance(schema, dict):
            text = _dumped(schema)
            self.spend(1 + len(text) // CHARACTERS)
            if '"$ref"' in text:
                schema = {**self._definitions(), **schema}
        elif schema is True:
            schema = {"type": list(TYPES)}
        return self._lark.json(self._what, schema, branch.at)

    def _definitions(self) -> Schema:
        """Returns the definitions of the root, which each schema with a reference includes."""
        if self._carried is None:
            words = ("$defs", "definitions")
            self._carried = {word: self._root[word] for word in words if word in self._root}
            self._carried_length = len(_dumped(self._carried))
        self.spend(self._carried_length // CHARACTERS)
        return self._carried

    def error(self, why: str) -> EngineError:
        return invalid_request(f"Failed to parse {self._what}: {why}")

    def _resolved(self, branch: Branch) -> Branch:
        """Returns `branch`, or the schema that it refers to."""
        for _ in range(MAX_DEPTH):
            schema = branch.schema
            if not isinstance(schema, dict):
                raise self.error("schema must be an object")
            reference = schema.get("$ref")
            if reference is None:
                return branch
            self.leave_out(branch, *sorted(schema.keys() - ANNOTATIONS - {"$ref"}))
            place = self._at_root.partition("#")[0]
            branch = Branch(self._at(reference), f"{place}{reference}")
        raise self.error("a reference that doesn't lead to a schema")

    def _at(self, reference: Any) -> Any:
        target = at_pointer(self._root, reference) if isinstance(reference, str) else None
        if target is None:
            raise self.error(f"cannot resolve $ref {str(reference)[:80]}")
        return target

    def _mapping(self, schema: Schema, word: str) -> Schema:
        value = schema.get(word, {})
        if not isinstance(value, dict):
            raise self.error(f"{word!r} is not an object")
        return value


def types_of(schema: Schema) -> list[str]:
    types = schema.get("type", list(TYPES))
    return types if isinstance(types, list) else [types]


def is_free(schema: Schema) -> bool:
    """Returns whether all values of its types are allowed."""
    return not schema.keys() - ANNOTATIONS


def is_a(value: Any, types: Iterable[str]) -> bool:
    match value:
        case None:
            names = {"null"}
        case bool():
            names = {"boolean"}
        case int():
            names = {"integer", "number"}
        case float():
            names = {"number", "integer"} if value.is_integer() else {"number"}
        case str():
            names = {"string"}
        case list():
            names = {"array"}
        case _:
            names = {"object"}
    return bool(names & set(types))


def _dumped(schema: Schema) -> str:
    try:
        return json.dumps(schema)
    except RecursionError:
        return '"$ref"'  # nested too deep: a later step reports that
