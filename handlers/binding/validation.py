"""Validation of requests by compiled schemas: bodies and parameters, with the same messages.

Connexion's own body validator parses twice, compiles the schema for every request, and accepts NaN.
The validators here replace it in the `validator_map`.
"""

import asyncio
import re
from collections.abc import AsyncGenerator, Mapping
from typing import Any, Self

import msgspec
from connexion.datastructures import MediaTypeDict
from connexion.validators import VALIDATOR_MAP
from connexion.validators.parameter import ParameterValidator
from jsonschema_rs import Draft202012Validator
from starlette.datastructures import Headers, UploadFile
from starlette.formparsers import MultiPartException, MultiPartParser
from starlette.requests import ClientDisconnect
from starlette.types import Message, Receive, Scope

from specllama.engine import system
from specllama.engine.formats.schema_check import Schema, UndecodableError, compile_schema, decoded
from specllama.engine.formats.schema_errors import Sentence, sentence
from specllama.engine.helpers.check.checker import Checker
from specllama.handlers.http.bodies import FEW, LARGE, n_values
from specllama.handlers.http.errors import RequestError

MAX_FILES = 4  # of a form
MAX_FIELDS = 64
MAX_FIELD = 4 << 20  # bytes of a field that isn't a file


class _Compiled:
    """Compiled schemas by identity, since Connexion always passes the same objects. Each is
    compiled on its first use."""

    def __init__(self) -> None:
        self._by_id: dict[int, tuple[Schema, Draft202012Validator]] = {}
        self._compiling = system.Lock()

    def known(self, schema: Schema) -> Draft202012Validator | None:
        """Returns the schema's validator; None if it hasn't been compiled."""
        known = self._by_id.get(id(schema))
        return None if known is None else known[1]

    def get(self, schema: Schema) -> Draft202012Validator:
        """Returns the schema's validator, and compiles it in the calling thread if necessary.
        Thread-safe."""
        with self._compiling:
            if (known := self._by_id.get(id(schema))) is None:
                # The reference to the schema prevents the reuse of its id.
                known = self._by_id[id(schema)] = (schema, compile_schema(schema))
        return known[1]


# ---- The JSON form of protocol buffers, which Google's clients send: `x-proto-json`. In this form,
# a field has two spellings, such as `topP` and `top_p`. Before validation, the spelling of the
# description replaces the other one.

_CAPITAL = re.compile("[A-Z]")


class Spellings(msgspec.Struct, frozen=True):
    """The spellings of the described fields of an object: each spelling -> the name of the field in
    the description, and the spellings inside its value. For an array, the spellings of its items.
    Empty for other values, and for objects with arbitrary fields."""

    known: Mapping[str, tuple[str, "Spellings"]] = {}

    @classmethod
    def of(cls, schema: Mapping[str, Any]) -> Self:
        """Returns the spellings in a resolved schema."""
        known: dict[str, tuple[str, Spellings]] = {}
        for part in schema.get("allOf", ()):
            known |= cls.of(part).known
        for name, child in schema.get("properties", {}).items():
            known[name] = known[_with_underscores(name)] = name, cls.of(child)
        return cls.of(schema["items"]) if "items" in schema else cls(known)

    def read(self, value: Any) -> Any:
        """Returns `value` with the described names. Unknown fields stay, for the validation."""
        if isinstance(value, list) and self.known:
            return [*map(self._read_object, value)]
        return self._read_object(value)

    def _read_object(self, value: Any) -> Any:
        if not isinstance(value, dict) or not self.known:
            return value
        read: dict[str, Any] = {}
        for spelled, inner in value.items():
            name, names = self.known.get(spelled, (spelled, _NONE))
            read[name] = names.read(inner)
        return read


_NONE = Spellings()


def _with_underscores(name: str) -> str:
    return _CAPITAL.sub(lambda found: f"_{found[0].lower()}", name)


# ---- bodies ------------------------------------------------------------------------------


class JsonBody:
    """The validator of one request's JSON body, which passes the decoded body to the handler.

    Connexion passes the entries of its request context as arguments with the same names. So the
    entry `body` becomes the handler's argument `body`, and the body isn't parsed again.
    """

    def __init__(self, compiled: _Compiled, schema: Schema, required: bool) -> None:
        self._compiled = compiled
        self._schema = schema
        self._required = required
        self._default = schema.get("x-default", {})
        self._spellings = Spellings.of(schema) if schema.get("x-proto-json") else None

    async def wrap_receive(self, receive: Receive, *, scope: Scope) -> tuple[Receive, Scope]:
        """Reads, decodes and validates. Raises RequestError."""
        raw = await _read(receive)
        if raw or self._required:
            body = await self._checked(raw, scope)
        else:
            body = self._default
        context = scope.setdefault("extensions", {}).setdefault("connexion_context", {})
        context["body"] = body
        return _drained(receive), scope

    async def _checked(self, raw: bytes | bytearray, scope: Scope) -> Any:
        n = n_values(scope)
        if n > LARGE:
            if self._spellings is not None:
                raw = msgspec.json.encode(await asyncio.to_thread(self._decoded, raw))
            await self._check_away(raw, scope)
            return decode(raw)
        body = self._decoded(raw)
        validator = self._compiled.known(self._schema)
        if validator is None:  # in the first request, or one concurrent with it
            validator = await asyncio.to_thread(self._compiled.get, self._schema)
        if not validator.is_valid(body):
            if n > FEW:
                given = raw if self._spellings is None else msgspec.json.encode(body)
                await self._check_away(given, scope)
            raise RequestError(400, sentence(validator, body))
        return body

    def _decoded(self, raw: bytes | bytearray) -> Any:
        """Returns the body, with the described names. Raises RequestError."""
        body = decode(raw)
        return body if self._spellings is None else self._spellings.read(body)

    async def _check_away(self, raw: bytes | bytearray, scope: Scope) -> None:
        """Raises RequestError if another process finds the body invalid, or runs out of memory."""
        checker: Checker = scope["state"]["runtime"].checker
        verdict = await checker.check(self._schema, raw)
        if verdict.exhausted:
            raise RequestError(413, "the values of the body take too much memory")
        if verdict.discreet:
            raise RequestError(400, Sentence.from_forms(verdict.fault, verdict.discreet))
        if verdict.fault:
            raise RequestError(400, verdict.fault)


class FormBody:
    """The validator of one request's form, which passes the fields to the handler as `body`."""

    def __init__(self, compiled: _Compiled, schema: Schema) -> None:
        self._compiled = compiled
        self._schema = schema

    async def wrap_receive(self, receive: Receive, *, scope: Scope) -> tuple[Receive, Scope]:
        """Reads and validates. Raises RequestError."""
        body = await _read_form(receive, scope, self._schema)
        _check_form(self._schema, await asyncio.to_thread(self._compiled.get, self._schema), body)
        context = scope.setdefault("extensions", {}).setdefault("connexion_context", {})
        context["body"] = body
        return _drained(receive), scope


def decode(raw: bytes | bytearray) -> Any:
    """Returns the value of a JSON text. Raises RequestError if the text is empty or invalid."""
    if not raw:
        raise RequestError(400, "the body is empty, but this operation needs one")
    try:
        return decoded(raw)
    except UndecodableError as error:
        raise RequestError(400, str(error)) from None


async def _read(receive: Receive) -> bytes | bytearray:
    """Returns the body. The parts are appended as they arrive: joining them at the end would copy
    the whole body at once."""
    raw: bytes | bytearray = b""
    more = True
    while more:
        message = await receive()
        if message["type"] == "http.disconnect":
            raise ClientDisconnect
        part = message.get("body", b"")
        if not raw:
            raw = part
        elif part:
            if isinstance(raw, bytes):
                raw = bytearray(raw)
            raw += part
        more = message.get("more_body", False)
    return raw


def _drained(receive: Receive) -> Receive:
    """Returns a `receive` that first returns an empty body, since the body has been read."""
    seen = False

    async def receive_() -> Message:
        nonlocal seen
        if seen:
            return await receive()
        seen = True
        return {"type": "http.request", "body": b"", "more_body": False}

    return receive_


async def _read_form(receive: Receive, scope: Scope, schema: Schema) -> dict[str, Any]:
    """Returns the fields of a form by name. If several fields have the same name, the last one
    counts. Files are bytes; numbers and booleans are converted to their types in `schema`; other
    values are texts.

    Raises RequestError for an invalid form.
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
        raise RequestError(400, f"the body is not a valid form: {message}") from None
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


def _check_form(schema: Schema, validator: Draft202012Validator, fields: dict[str, Any]) -> None:
    """Raises RequestError unless `fields` match the schema, with files in the fields for files."""
    for name, described in schema.get("properties", {}).items():
        is_file = described.get("format") == "binary"
        if name in fields and isinstance(fields[name], bytes) != is_file:
            right = "must be a file" if is_file else "must not be a file"
            raise RequestError(400, f"{name}: this field of the form {right}")
    shown = {name: "" if isinstance(each, bytes) else each for name, each in fields.items()}
    if not validator.is_valid(shown):
        raise RequestError(400, sentence(validator, shown))


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
    """Returns the value in `text` if it has the type `type_`; otherwise the text, which the schema
    then refuses."""
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


def validator_map() -> dict[str, Any]:
    """Returns Connexion's `validator_map` for one application, with its own cache."""
    compiled = _Compiled()

    def json_body(*, schema: Schema, required: bool = False, **_: Any) -> JsonBody:
        return JsonBody(compiled, schema, required)

    def form_body(*, schema: Schema, **_: Any) -> FormBody:
        return FormBody(compiled, schema)

    class Parameters(ParameterValidator):  # type: ignore[misc]  # connexion has no types
        @staticmethod
        def validate_parameter(
            parameter_type: str, value: Any, param: dict[str, Any], param_name: str | None = None
        ) -> str | None:
            name = param["name"]
            if value is None:
                missing = f"{name}: this {parameter_type} parameter is required"
                return missing if param.get("required") else None
            if parameter_type == "header":  # Connexion converts only the other ones
                value = _typed(value, param["schema"].get("type"))
            validator = compiled.get(param["schema"])  # small, so it compiles at once
            return None if validator.is_valid(value) else sentence(validator, value, name)

    bodies = MediaTypeDict(VALIDATOR_MAP["body"])
    bodies["*/*json"] = json_body
    bodies["multipart/form-data"] = form_body
    return {"parameter": Parameters, "body": bodies}
