"""Compares the types of an official client library with the schemas of the description.

`request_differences` finds values that the library can send and the description lacks.
`answer_differences` finds values that the description allows and the library doesn't expect, and
fields that the library expects and the description lacks. Both name a difference by the library's
type and its field.
"""

import datetime
import itertools
import json
import types
import typing
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, Literal, Union

import pydantic
import typing_extensions

from contract_tests.kit import lint

Schema = Mapping[str, Any]

_SAMPLES: dict[Any, Any] = {str: "a", int: 1, float: 1.5, bool: True, type(None): None}
_JSON_TYPES = {"string": str, "integer": int, "number": float, "boolean": bool}
_REMARKS = (typing.Annotated, typing_extensions.Required, typing_extensions.NotRequired)
_WRITTEN = {datetime.datetime: str, pydantic.ByteSize: int}
"""The JSON types of Python types that JSON lacks."""
_MOST_FORMS = 256


def request_differences(hint: Any, schema: Schema) -> set[str]:
    """Returns the fields, types and values of the type `hint` that `schema` lacks."""
    return set(_Request().compare(hint, [schema], ""))


def answer_differences(schema: Schema, hint: Any) -> set[str]:
    """Returns the values of `schema` that the type `hint` doesn't expect, and its fields that
    `schema` lacks or doesn't require."""
    answer = _Answer()
    found = set(answer.compare(schema, [hint], ""))
    return found | {f"{place} is never there" for place in answer.absent - answer.present}


class _Request:
    def __init__(self) -> None:
        self.seen: list[tuple[Any, Sequence[Schema]]] = []

    def compare(self, hint: Any, schemas: Sequence[Schema], where: str) -> Iterator[str]:
        for kind in alternatives(hint):
            forms = [form for schema in schemas for form in forms_of(schema)]
            if is_record(kind):
                yield from self._record(kind, forms, where)
            elif typing.get_origin(kind) is Literal:
                for value in typing.get_args(kind):
                    if not _any_takes(schemas, value):
                        yield f"{where} = {json.dumps(value)}"
            elif _is_list(kind):
                lists = [form for form in forms if form.get("type", "array") == "array"]
                if not lists:
                    yield f"{where} as a list"
                items = [form["items"] for form in lists if "items" in form]
                if items and len(items) == len(lists):
                    yield from self.compare(typing.get_args(kind)[0], items, where)
            elif _is_mapping(kind):
                if all(form.get("type", "object") != "object" for form in forms):
                    yield f"{where} as an object"
            elif kind in _SAMPLES and not _any_takes(forms, _SAMPLES[kind]):
                yield f"{where} as {kind.__name__}"

    def _record(self, record: Any, forms: Sequence[Schema], where: str) -> Iterator[str]:
        if (record, forms) in self.seen:
            return
        self.seen.append((record, forms))
        hints = fields_of(record)
        objects = [form for form in forms if form.get("type", "object") == "object"]
        objects = [form for form in objects if _holds_constants(hints, form)]
        if not objects:
            yield f"{where} as {record.__name__}"
            return
        if any("properties" not in form for form in objects):
            return  # any object is accepted
        for name, hint in hints.items():
            found = [form["properties"][name] for form in objects if name in form["properties"]]
            place = f"{record.__name__}.{name}"
            if not found:
                yield place
            else:
                yield from self.compare(hint, found, place)


class _Answer:
    def __init__(self) -> None:
        self.seen: list[tuple[Schema, Any]] = []
        self.present: set[str] = set()
        self.absent: set[str] = set()

    def compare(self, schema: Schema, hints: list[Any], where: str) -> Iterator[str]:
        kinds = [kind for hint in hints for kind in alternatives(hint)]
        if object in kinds or Any in kinds:
            return
        for form in forms_of(schema):
            if form.get("nullable") and type(None) not in kinds:
                yield f"{where} is null"
            if form.get("enum") == [None]:
                continue
            if form.get("type") == "object" or "properties" in form:
                yield from self._object(form, kinds, where)
            elif form.get("type") == "array":
                lists = [kind for kind in kinds if _is_list(kind)]
                if not lists:
                    yield f"{where} is a list"
                elif form.get("maxItems") != 0:
                    items = [typing.get_args(each)[0] for each in lists]
                    yield from self.compare(form["items"], items, where)
            elif "type" in form:
                yield from self._scalar(form, kinds, where)

    def _scalar(self, form: Schema, kinds: list[Any], where: str) -> Iterator[str]:
        kind = _JSON_TYPES[form["type"]]
        classes = [each for each in kinds if isinstance(each, type)]
        if issubclass(kind, tuple(classes)) or (kind is int and float in kinds):
            return
        literals = [kind for kind in kinds if typing.get_origin(kind) is Literal]
        known = {value for each in literals for value in typing.get_args(each)}
        if not known or "enum" not in form:
            yield f"{where} is {form['type']}"
            return
        for value in form["enum"]:
            if value is not None and value not in known:
                yield f"{where} is {json.dumps(value)}"

    def _object(self, form: Schema, kinds: list[Any], where: str) -> Iterator[str]:
        if any(_is_mapping(kind) for kind in kinds):
            return
        records = [kind for kind in kinds if is_record(kind)]
        if not records:
            yield f"{where} is {form.get('title', 'an object')}"
        fitting = [each for each in records if _holds_constants(fields_of(each), form)] or records
        # If several types match, the client chooses the best match.
        found = [list(self._record(form, record)) for record in fitting]
        yield from min(found, key=len, default=[])

    def _record(self, form: Schema, record: Any) -> Iterator[str]:
        if (form, record) in self.seen:
            return
        self.seen.append((form, record))
        properties = form.get("properties", {})
        for name, hint in fields_of(record).items():
            place = f"{record.__name__}.{name}"
            if name not in form.get("required", ()) and _is_required(record, name):
                yield f"{place} isn't always there"
            if name in properties:
                self.present.add(place)
                yield from self.compare(properties[name], [hint], place)
            else:
                self.absent.add(place)


# ---- types -----------------------------------------------------------------------------------


def alternatives(hint: Any) -> list[Any]:
    """Returns the members of a union, without annotations."""
    if isinstance(hint, typing_extensions.TypeAliasType):
        return alternatives(hint.__value__)
    origin = typing.get_origin(hint)
    if origin in _REMARKS:
        return alternatives(typing.get_args(hint)[0])
    if origin in (Union, types.UnionType):
        return [each for member in typing.get_args(hint) for each in alternatives(member)]
    return [_WRITTEN.get(hint, hint)]


def is_record(kind: Any) -> bool:
    """True if the type has fields, as a TypedDict or a pydantic model."""
    return typing_extensions.is_typeddict(kind) or _is_model(kind)


def fields_of(record: Any) -> dict[str, Any]:
    """Returns the types of the fields, by their names in JSON."""
    if not _is_model(record):
        return typing_extensions.get_type_hints(record)
    return {field.alias or name: field.annotation for name, field in record.model_fields.items()}


def _is_model(kind: Any) -> bool:
    return isinstance(kind, type) and issubclass(kind, pydantic.BaseModel)


def _is_required(record: Any, name: str) -> bool:
    fields = {field.alias or key: field for key, field in record.model_fields.items()}
    return bool(fields[name].is_required())


def _is_list(kind: Any) -> bool:
    origin = typing.get_origin(kind)
    return isinstance(origin, type) and issubclass(origin, Iterable) and not _is_mapping(kind)


def _is_mapping(kind: Any) -> bool:
    origin = typing.get_origin(kind) or kind
    return isinstance(origin, type) and issubclass(origin, Mapping)


def _holds_constants(hints: Mapping[str, Any], form: Schema) -> bool:
    """True if an object of the form may have the constants that distinguish one type from
    another."""
    for name, hint in hints.items():
        kinds = alternatives(hint)
        if any(typing.get_origin(kind) is not Literal for kind in kinds):
            continue
        described = form.get("properties", {}).get(name)
        values = [value for kind in kinds for value in typing.get_args(kind)]
        if described is not None and not any(_any_takes([described], each) for each in values):
            return False
    return True


# ---- schemas ---------------------------------------------------------------------------------


def forms_of(schema: Schema) -> list[dict[str, Any]]:
    """Returns the alternatives that a schema allows, each without `anyOf` and `allOf`."""
    rest = {key: value for key, value in schema.items() if key not in ("anyOf", "allOf")}
    choices = [[rest]]
    choices += [forms_of(branch) for branch in schema.get("allOf", ())]
    if "anyOf" in schema:
        choices.append([form for branch in schema["anyOf"] for form in forms_of(branch)])
    chosen = list(itertools.islice(itertools.product(*choices), _MOST_FORMS))
    assert len(chosen) < _MOST_FORMS, f"too many alternatives: {schema.get('title')}"
    return [form for each in chosen if (form := _merged(each)) is not None]


def _merged(parts: Iterable[Schema]) -> dict[str, Any] | None:
    """Returns the conjunction of all parts; None if they contradict each other."""
    whole: dict[str, Any] = {}
    for part in parts:
        kinds = {each["type"] for each in (whole, part) if "type" in each}
        if kinds == {"integer", "number"}:
            part = {**part, "type": "integer"}
        elif len(kinds) > 1:
            return None
        for key, value in part.items():
            if key == "properties":
                properties = {**whole.get(key, {})}
                for name, each in value.items():
                    both = name in properties and properties[name] != each
                    properties[name] = {"allOf": [properties[name], each]} if both else each
                whole[key] = properties
            elif key == "required":
                whole[key] = [*whole.get(key, ()), *value]
            elif key == "enum" and key in whole:
                whole[key] = [each for each in whole[key] if each in value]
            elif key == "nullable" and key in whole:
                whole[key] = whole[key] and value
            else:
                whole[key] = value
    return whole


def _any_takes(schemas: Iterable[Schema], value: Any) -> bool:
    return any(not list(lint.errors(schema, value)) for schema in schemas)
