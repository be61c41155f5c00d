"""Finds the changes between two descriptions that break a client of the first one.

A request breaks if less is allowed: an operation, a field, a type, a value or a part of a range was
removed, or something became required. An answer breaks if it may contain more, or is less certain
to contain something: a status, a media type or a field was removed or became optional, or another
type was added. New values of an enum in an answer don't break. Names of components and operations
are ignored.
"""

import json
import re
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

from tools.compat.shapes import LOWER, Kind, Node, Shape, Shapes

METHODS = ("get", "put", "post", "delete", "options", "head", "patch", "trace")
SCHEMAS = {"schema": "", "x-event-data-schema": " event", "x-line-schema": " line"}
"""The schemas of a media type object, and the names of their contents in messages."""

RESTRICTIONS = {
    "x-option": "needs a server with the option",
    "x-refuses-foreign-origins": "refuses pages of other origins",
    "x-max-body-size": "has a bound for its body",
}
"""Extensions of an operation that restrict its clients."""


class Break(NamedTuple):
    operation: str
    """Method and path."""
    where: str
    """Parts of the request or answer, joined by dots; empty for the whole operation."""
    what: str

    def __str__(self) -> str:
        return (
            f"{self.operation} {self.where}: {self.what}"
            if self.where
            else (f"{self.operation}: {self.what}")
        )


class _Operation(NamedTuple):
    name: str
    definition: Node
    parameters: Mapping[tuple[str, str], Node]
    public: bool


def breaks(old: Node, new: Node) -> list[Break]:
    """Returns the breaking changes without repetitions, in the order of the old description."""
    before, after = Shapes(old), Shapes(new)
    now = _operations(new, after)
    found: dict[Break, None] = {}
    for key, was in _operations(old, before).items():
        if key not in now:
            found[Break(was.name, "", "is gone")] = None
            continue
        if was.definition.get("x-refused"):
            continue  # no client has ever had anything from it
        comparison = _Comparison(before, after)
        for where, what in comparison.operation(was, now[key]):
            found[Break(was.name, where, what)] = None
    return list(found)


def _operations(document: Node, shapes: Shapes) -> dict[tuple[str, str], _Operation]:
    """Returns the operations by method and path; the names of the path's parameters are ignored."""
    found = {}
    for path, each in document["paths"].items():
        item = shapes.resolve(each)
        for method in METHODS:
            if method not in item:
                continue
            definition = item[method]
            listed = [*item.get("parameters", ()), *definition.get("parameters", ())]
            resolved = [shapes.resolve(parameter) for parameter in listed]
            security = definition.get("security", document.get("security", ()))
            found[method, re.sub(r"\{.*?\}", "{}", path)] = _Operation(
                f"{method.upper()} {path}",
                definition,
                {(one["in"], one["name"]): one for one in resolved if one["in"] != "path"},
                public=not security or {} in security,
            )
    return found


Found = Iterator[tuple[str, str]]


class _Comparison:
    def __init__(self, before: Shapes, after: Shapes) -> None:
        self._before = before
        self._after = after

    def operation(self, old: _Operation, new: _Operation) -> Found:
        if old.public and not new.public:
            yield "", "needs an API key"
        for extension, what in RESTRICTIONS.items():
            given = new.definition.get(extension)
            if given and not _held(extension, given, old):
                yield "", f"{what} ({extension})"
        yield from self._parameters(old.parameters, new.parameters)
        yield from self._bodies(old.definition, new.definition)
        yield from self._answers(old.definition["responses"], new.definition["responses"])

    def _parameters(
        self, old: Mapping[tuple[str, str], Node], new: Mapping[tuple[str, str], Node]
    ) -> Found:
        for key, was in old.items():
            where = f"{key[0]}.{key[1]}"
            if key not in new:
                yield where, "is gone"
                continue
            if new[key].get("required") and not was.get("required"):
                yield where, "is required"
            shapes = self._before.of(was["schema"]), self._after.of(new[key]["schema"])
            yield from narrowed(*shapes, where)
        for key in new.keys() - old.keys():
            if new[key].get("required"):
                yield f"{key[0]}.{key[1]}", "is new and required"

    def _bodies(self, old: Node, new: Node) -> Found:
        was = self._before.resolve(old.get("requestBody", {}))
        now = self._after.resolve(new.get("requestBody", {}))
        if now.get("required") and not was.get("required"):
            yield "request", "has to have a body"
        for kind, media in was.get("content", {}).items():
            other = now.get("content", {}).get(kind)
            if other is None:
                yield "request", f"{kind} is not accepted"
            elif "schema" in media and "schema" in other:
                shapes = self._before.of(media["schema"]), self._after.of(other["schema"])
                yield from narrowed(*shapes, "request")

    def _answers(self, old: Mapping[str, Node], new: Mapping[str, Node]) -> Found:
        for status, each in old.items():
            if status not in new:
                yield status, "is gone"
                continue
            was, now = self._before.resolve(each), self._after.resolve(new[status])
            left = {header.lower() for header in now.get("headers", {})}
            for header in was.get("headers", {}):
                if header.lower() not in left:
                    yield f"{status}.{header}", "is gone"
            for kind, media in was.get("content", {}).items():
                other = now.get("content", {}).get(kind)
                if other is None:
                    yield status, f"{kind} is gone"
                    continue
                if media.get("x-event-end") != other.get("x-event-end"):
                    yield status, f"the stream ends with {other.get('x-event-end', 'no sign')}"
                for place, what in SCHEMAS.items():
                    if place in media and place in other:
                        shapes = self._before.of(media[place]), self._after.of(other[place])
                        yield from widened(*shapes, f"{status}{what}")


def narrowed(old: Shape, new: Shape, where: str) -> Found:
    """Yields what a request may no longer contain."""
    if gone := [name for name in old.kinds if name not in new.kinds]:
        yield where, f"{_listed(gone)} is not accepted"
    if None not in (old.default, new.default) and old.default != new.default:
        yield where, f"the default is {new.default} instead of {old.default}"
    for name, was in old.kinds.items():
        now = new.kinds.get(name)
        # The bounds of integers are those of numbers.
        if now is None or (name == "integer" and "number" in old.kinds and "number" in new.kinds):
            continue
        yield from _narrowed_kind(was, now, where)


def _narrowed_kind(was: Kind, now: Kind, where: str) -> Found:
    if now.values is not None and (was.values is None or was.values - now.values):
        rest = (
            "all but " + _listed(sorted(now.values))
            if was.values is None
            else _listed(sorted(was.values - now.values))
        )
        yield where, f"{rest} is not accepted"
    if now.patterns is not None and (was.patterns is None or was.patterns - now.patterns):
        yield where, f"has to match {_listed(sorted(now.patterns))}"
    for bound, value in now.bounds.items():
        before = was.bounds.get(bound)
        if _bound_of_values(was, bound, value):
            continue
        if before is None or (value > before if bound in LOWER else value < before):
            yield where, f"{bound} is {value}, was {'none' if before is None else before}"
    if was.values is not None:
        return  # an enum has no bounds
    for name in sorted(now.required - was.required):
        new = "is required" if name in was.properties else "is new and required"
        yield f"{where}.{name}", new
    if now.closed and not was.closed:
        yield where, "accepts no other fields"
    for name, shape in was.properties.items():
        if name in now.properties:
            yield from narrowed(shape, now.properties[name], f"{where}.{name}")
        else:
            yield f"{where}.{name}", "is gone"
    if was.items and now.items:
        yield from narrowed(was.items, now.items, f"{where}[]")


def widened(old: Shape, new: Shape, where: str) -> Found:
    """Yields what an answer may now contain, and what it may now lack."""
    if more := [name for name in new.kinds if name not in old.kinds]:
        yield where, f"may be {_listed(more)}"
    for name, was in old.kinds.items():
        now = new.kinds.get(name)
        if now is None:
            continue
        for member in sorted(was.required - now.required):
            if member in now.properties:
                yield f"{where}.{member}", "may be missing"
        for member, shape in was.properties.items():
            if member in now.properties:
                yield from widened(shape, now.properties[member], f"{where}.{member}")
            else:
                yield f"{where}.{member}", "is gone"
        if was.items and now.items and now.bounds.get("maxItems") != 0:
            yield from widened(was.items, now.items, f"{where}[]")


def _bound_of_values(kind: Kind, bound: str, value: float) -> bool:
    """True if `kind` has an enum whose values are all within the bound."""
    if kind.values is None:
        return False
    measured = [_measure(json.loads(each)) for each in kind.values]
    return all(each >= value if bound in LOWER else each <= value for each in measured)


def _measure(value: Any) -> float:
    """Returns the quantity that bounds limit: the number itself, or the length of another value."""
    return float(value) if isinstance(value, int | float) else len(value)


def _held(extension: str, given: Any, old: _Operation) -> bool:
    """True if the old description had the restriction, or a stronger one."""
    before = old.definition.get(extension)
    if extension == "x-max-body-size":
        return before is not None and before <= given
    # Before it was an extension, the description's text said that 501 is returned without the
    # option.
    return before is not None or (extension == "x-option" and "501" in old.definition["responses"])


def _listed(values: list[str]) -> str:
    return ", ".join(values)
