"""Bodies that are forms with files (`multipart/form-data`)."""

from collections.abc import AsyncGenerator
from typing import Any

from connexion.exceptions import BadRequestProblem
from jsonschema_rs import Draft202012Validator
from starlette.datastructures import Headers, UploadFile
from starlette.formparsers import MultiPartException, MultiPartParser
from starlette.requests import ClientDisconnect
from starlette.types import Receive, Scope

from specllama.handlers.http.schema import Schema
from specllama.handlers.http.validation_messages import sentence

MAX_FILES = 4
MAX_FIELDS = 64
MAX_FIELD = 4 << 20  # bytes of one that is no file


async def read_form(receive: Receive, scope: Scope, schema: Schema) -> dict[str, Any]:
    """The fields of a form by their names, of several alike the last: files as bytes, numbers and
    truth values as the properties of `schema` want them, everything else as text.

    Raises BadRequestProblem for what is no form.
    """
    parser = MultiPartParser(
        Headers(scope=scope),
        _stream(receive),
        max_files=MAX_FILES,
        max_fields=MAX_FIELDS,
        max_part_size=MAX_FIELD,
    )
    try:
        form = await parser.parse()
    except (MultiPartException, KeyError) as error:
        message = error.message if isinstance(error, MultiPartException) else "no boundary"
        raise BadRequestProblem(detail=f"the body is no valid form: {message}") from None
    properties = schema.get("properties", {})
    fields: dict[str, Any] = {}
    try:
        for name, value in form.multi_items():
            if isinstance(value, UploadFile):
                fields[name] = await value.read()
            else:
                fields[name] = _typed(value, properties.get(name, {}).get("type"))
    finally:
        await form.close()
    return fields


def check_form(schema: Schema, validator: Draft202012Validator, fields: dict[str, Any]) -> None:
    """Raises BadRequestProblem unless `fields` are as described, files where files belong."""
    for name, described in schema.get("properties", {}).items():
        is_file = described.get("format") == "binary"
        if name in fields and isinstance(fields[name], bytes) != is_file:
            right = "a file" if is_file else "no file"
            raise BadRequestProblem(detail=f"{name}: this field of the form has to be {right}")
    shown = {name: "" if isinstance(each, bytes) else each for name, each in fields.items()}
    if not validator.is_valid(shown):
        raise BadRequestProblem(detail=sentence(validator, shown))


async def _stream(receive: Receive) -> AsyncGenerator[bytes, None]:
    more = True
    while more:
        message = await receive()
        if message["type"] == "http.disconnect":
            raise ClientDisconnect
        if body := message.get("body", b""):
            yield body
        more = message.get("more_body", False)


def _typed(text: str, type_: str | None) -> Any:
    """The value that `text` spells, if it spells one of that type; else the text, which the schema
    refuses."""
    if type_ == "boolean":
        return {"true": True, "1": True, "false": False, "0": False}.get(text.lower(), text)
    if type_ in ("integer", "number"):
        for kind in (int, float):
            try:
                value = kind(text)
            except ValueError:
                continue
            return value if abs(value) < float("inf") else text
    return text
