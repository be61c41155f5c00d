"""Rules over the description's files that keep generated clients good.

Generators send every `default`, number the schemas that are inline, and name methods after
operationIds. Each rule is a function from the folder of the files to the problems in them.
"""

import re
from collections.abc import Callable, Iterator, Mapping
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import yaml

from contract_tests.kit.lint import DESCRIPTION, GENERATED, METHODS

FOLDER = DESCRIPTION.parent

Schema = Mapping[str, Any]


class Problem(NamedTuple):
    """A problem in a file; the file is named by its path in the folder."""

    file: str
    text: str


class Place(NamedTuple):
    """A schema in a file. `parent` is the keyword above it, None at the top."""

    file: str
    where: str
    schema: Schema
    parent: str | None


Rule = Callable[[Path], Iterator[Problem]]

_ROOTS = ("schema", "x-event-data-schema", "x-line-schema")
_UNIONS = ("anyOf", "oneOf")
_INT32 = 2**31 - 1


def named(folder: Path = FOLDER) -> Iterator[tuple[str, str, Schema]]:
    """Yields (file, name, schema) for all schemas that have a name."""
    for file, content in _files(folder):
        if file.startswith("schemas/"):
            for name, schema in content.items():
                if not re.match("[a-z]", name):  # lower case: a response, which some files have
                    yield file, name, schema


def places(folder: Path = FOLDER) -> Iterator[Place]:
    """Yields all schemas, nested schemas included; references are not followed."""
    for file, name, schema in named(folder):
        yield from _walk(file, name, schema, None)
    for file, content in _files(folder):
        if not file.startswith("schemas/"):
            yield from _roots(file, "", content)


def _files(folder: Path) -> Iterator[tuple[str, Mapping[str, Any]]]:
    for path in sorted(folder.rglob("*.yaml")):
        if path.name != GENERATED:
            yield path.relative_to(folder).as_posix(), _content(path)


@cache
def _content(path: Path) -> Mapping[str, Any]:
    content: Mapping[str, Any] = yaml.safe_load(path.read_text("utf-8"))
    return content


def _roots(file: str, where: str, node: Any) -> Iterator[Place]:
    """Yields the schemas of parameters, bodies and headers in a file that doesn't have only
    schemas."""
    if isinstance(node, list):
        for each in node:
            yield from _roots(file, where, each)
    if not isinstance(node, Mapping):
        return
    for key, value in node.items():
        if key in ("example", "examples"):
            continue
        if key in _ROOTS:
            yield from _walk(file, where, value, key)
        else:
            yield from _roots(file, f"{where} {key}".strip(), value)


def _walk(file: str, where: str, schema: Schema, parent: str | None) -> Iterator[Place]:
    yield Place(file, where, schema, parent)
    for name, value in schema.get("properties", {}).items():
        yield from _walk(file, f"{where}.{name}", value, "properties")
    for keyword in (*_UNIONS, "allOf"):
        for branch in schema.get(keyword, ()):
            yield from _walk(file, where, branch, keyword)
    for keyword, sign in (("items", "[]"), ("additionalProperties", ".*")):
        if isinstance(schema.get(keyword), Mapping):
            yield from _walk(file, where + sign, schema[keyword], keyword)


# ---- rules -------------------------------------------------------------------------------


def nothing_has_a_default(folder: Path = FOLDER) -> Iterator[Problem]:
    """A generated client would send it with every request, and override the operator's options."""
    for place in places(folder):
        if "default" in place.schema:
            yield Problem(place.file, f"{place.where} has a default; use x-default")


def defaults_are_written_once(folder: Path = FOLDER) -> Iterator[Problem]:
    """The served description ends with a sentence about `x-default`; the file has none."""
    sentence = re.compile(r"\bdefault\s+is\b|\bdefaults\s+to\b|\bdefault:|\bthe\s+default,", re.I)
    for place in places(folder):
        described = place.schema.get("description", "")
        if "x-default" in place.schema and sentence.search(described):
            yield Problem(place.file, f"{place.where} describes its x-default")


def types_have_names(folder: Path = FOLDER) -> Iterator[Problem]:
    """Every object, enum and union, which become types in a client, is a named schema.

    A single value that marks the kind of an object is no type.
    """
    for place in places(folder):
        if place.parent is not None and (kind := _kind(place)) is not None:
            yield Problem(place.file, f"{place.where} has {kind} without a name")


def _kind(place: Place) -> str | None:
    schema = place.schema
    if "$ref" in schema:
        return None
    if any(keyword in schema for keyword in _UNIONS) and place.parent != "allOf":
        return "a union"
    if len([value for value in schema.get("enum", ()) if value is not None]) > 1:
        return "an enum"
    if schema.get("type") == "object" and place.parent != "allOf" and "enum" not in schema:
        return "an object"
    if len(schema.get("allOf", ())) > 1:
        return "a combination"
    return None


def fields_are_not_dropped(folder: Path = FOLDER) -> Iterator[Problem]:
    """A schema with properties has no alternatives and no single reference: generators would drop
    the properties."""
    for place in places(folder):
        if "properties" not in place.schema:
            continue
        branches = place.schema.get("allOf", ())
        is_union = any(keyword in place.schema for keyword in _UNIONS)
        if is_union or (len(branches) == 1 and "$ref" in branches[0]):
            yield Problem(place.file, f"{place.where} has properties that generators drop")


def names_are_titles(folder: Path = FOLDER) -> Iterator[Problem]:
    """A named schema has a good type name, which it repeats as its title. No other schema has a
    title."""
    for file, name, schema in named(folder):
        if not re.fullmatch(r"([A-Z][a-z0-9]*)+", name):
            yield Problem(file, f"{name} is no name of a type")
        if schema.get("title") != name:
            yield Problem(file, f"{name} has another title: {schema.get('title')}")
    for place in places(folder):
        if place.parent is not None and "title" in place.schema:
            yield Problem(place.file, f"{place.where} has a title, and no name")


def objects_are_not_named_like_their_fields(folder: Path = FOLDER) -> Iterator[Problem]:
    """A function that reads an object may use the same variable for the object and a nullable
    field."""
    for file, name, schema in named(folder):
        snake = re.sub("(?<=.)(?=[A-Z])", "_", name).lower()
        if schema.get("properties", {}).get(snake, {}).get("nullable"):
            yield Problem(file, f"{name} has a nullable field {snake}")


def all_is_described(folder: Path = FOLDER) -> Iterator[Problem]:
    """Named schemas, properties and parameters have descriptions of more than three words. A
    property, or a parameter's schema, may rely on a named schema's or the parameter's
    description."""
    for place in places(folder):
        if place.parent in (None, "properties") and not _refers(place.schema):
            text = str(place.schema.get("description", ""))
            if len(text.split()) < 4:
                yield Problem(place.file, f"{place.where} says too little: {text!r}")


def _refers(schema: Schema) -> bool:
    return "$ref" in schema


def objects_say_what_they_hold(folder: Path = FOLDER) -> Iterator[Problem]:
    """In TypeScript and Go, an object schema that lists no fields becomes an object without
    fields."""
    words = {"properties", "additionalProperties", "maxProperties", *_UNIONS, "allOf", "enum"}
    for file, name, schema in named(folder):
        if schema.get("type") == "object" and not words & schema.keys():
            yield Problem(file, f"{name} doesn't say additionalProperties: true")


def numbers_have_formats(folder: Path = FOLDER) -> Iterator[Problem]:
    """Without a format, a number has 24 bits of precision in Go, and an integer 32 bits."""
    for place in places(folder):
        kind, form = place.schema.get("type"), place.schema.get("format")
        if "enum" in place.schema or form is not None:
            continue
        if kind == "number":
            yield Problem(place.file, f"{place.where} doesn't say format: double")
        if kind == "integer" and place.schema.get("maximum", _INT32 + 1) > _INT32:
            yield Problem(place.file, f"{place.where} doesn't say format: int64")


def unions_have_one_list(folder: Path = FOLDER) -> Iterator[Problem]:
    """A Python client reads any list as the first list type of a union."""
    schemas = {name: schema for _, name, schema in named(folder)}
    for place in places(folder):
        for keyword in _UNIONS:
            found = [_followed(each, schemas) for each in place.schema.get(keyword, ())]
            if [each.get("type") for each in found].count("array") > 1 and place.parent != "allOf":
                yield Problem(place.file, f"{place.where} is a union of several lists")


def _followed(schema: Schema, schemas: Mapping[str, Schema]) -> Schema:
    while "$ref" in schema:
        schema = schemas[schema["$ref"].rpartition("/")[2]]
    return schema


def methods_have_good_names(folder: Path = FOLDER) -> Iterator[Problem]:
    """The operationIds of two operations differ by more than the spelling of their paths."""
    spelling = re.compile(r"_(v[0-9]+|unversioned|plural)$")
    for file, content in _files(folder):
        if file.startswith("paths/"):
            for item in content.values():
                for method in METHODS if isinstance(item, Mapping) else ():
                    name = item.get(method, {}).get("operationId", "")
                    if spelling.search(name):
                        yield Problem(file, f"{name} is no good name of a method")


RULES: tuple[Rule, ...] = (
    nothing_has_a_default,
    defaults_are_written_once,
    types_have_names,
    fields_are_not_dropped,
    names_are_titles,
    objects_are_not_named_like_their_fields,
    all_is_described,
    objects_say_what_they_hold,
    numbers_have_formats,
    unions_have_one_list,
    methods_have_good_names,
)
