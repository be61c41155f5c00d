"""JSON schemas: types as llama-server infers them, JSON pointers, and budgets for analysing the
schemas in requests."""

from typing import Any
from urllib.parse import unquote

TYPES = frozenset({"null", "boolean", "integer", "number", "string", "array", "object"})

_OBJECT = ("properties", "additionalProperties", "patternProperties")
_ARRAY = ("items", "prefixItems")
_STRING = ("pattern", "minLength", "maxLength")
_TEXTS = ("date", "time", "date-time", "uuid")


def says_type(schema: dict[str, Any]) -> bool:
    return any(schema.get(word) is not None for word in ("type", "const", "enum"))


def implied_type(schema: dict[str, Any]) -> str | None:
    """Returns the type that the keywords of a schema without `type` imply."""
    if any(word in schema and schema[word] is not True for word in _OBJECT):
        return "object"
    if any(word in schema for word in _ARRAY):
        return "array"
    is_string = any(word in schema for word in _STRING) or schema.get("format") in _TEXTS
    return "string" if is_string else None


def escaped(name: str) -> str:
    """Returns `name` as one part of a JSON pointer."""
    return name.replace("~", "~0").replace("/", "~1")


def at_pointer(document: Any, reference: str) -> Any:
    """Returns the target of a JSON pointer in a URI fragment (RFC 6901); None if it doesn't
    exist."""
    if reference == "#":
        return document
    if not reference.startswith("#/"):
        return None
    for part in unquote(reference[2:]).split("/"):
        name = part.replace("~1", "/").replace("~0", "~")
        if isinstance(document, dict):
            document = document.get(name)
        elif isinstance(document, list) and name.isdecimal() and int(name) < len(document):
            document = document[int(name)]
        else:
            return None
    return document


def types_of_value(value: Any) -> frozenset[str]:
    """Returns the names of the types that `value` has."""
    match value:
        case None:
            return frozenset({"null"})
        case bool():
            return frozenset({"boolean"})
        case int():
            return frozenset({"integer", "number"})
        case float():
            return frozenset({"integer", "number"} if value.is_integer() else {"number"})
        case str():
            return frozenset({"string"})
        case list():
            return frozenset({"array"})
    return frozenset({"object"})


class OutOfWorkError(Exception):
    """An analysis exceeds its budget of work."""


class Work:
    """A budget in steps instead of time, so that the result for a schema is the same on every
    machine."""

    def __init__(self, steps: int) -> None:
        self._left = steps

    def spend(self, steps: int) -> None:
        """Raises OutOfWorkError when the budget is exceeded, and for each later call."""
        self._left -= steps
        if self._left < 0:
            raise OutOfWorkError
