"""Request validation: bodies by compiled schemas, parameters with the same sentences.

Connexion's own body validator parses twice, compiles the schema anew for every request, and
accepts NaN; these take its place in the `validator_map`.
"""

import asyncio
import threading
from typing import Any

from connexion.datastructures import MediaTypeDict
from connexion.exceptions import BadRequestProblem
from connexion.validators import VALIDATOR_MAP
from connexion.validators.parameter import ParameterValidator
from jsonschema_rs import Draft202012Validator
from starlette.requests import ClientDisconnect
from starlette.types import Message, Receive, Scope

from specllama.handlers.http.body_limits import FEW, LARGE, n_values
from specllama.handlers.http.checking.parent import Checker
from specllama.handlers.http.decoding import UndecodableError, decoded
from specllama.handlers.http.forms import check_form, read_form
from specllama.handlers.http.schema import Schema, compile_schema
from specllama.handlers.http.validation_messages import Sentence, sentence


class _Compiled:
    """Schemas as compiled validators, by identity: Connexion hands out the same objects. Each is
    compiled when it is needed first."""

    def __init__(self) -> None:
        self._by_id: dict[int, tuple[Schema, Draft202012Validator]] = {}
        self._compiling = threading.Lock()

    def known(self, schema: Schema) -> Draft202012Validator | None:
        """Its validator, if it has been compiled."""
        known = self._by_id.get(id(schema))
        return None if known is None else known[1]

    def get(self, schema: Schema) -> Draft202012Validator:
        """Its validator, compiled in the thread that asks. Safe to use from any thread."""
        with self._compiling:
            if (known := self._by_id.get(id(schema))) is None:
                # Keeping the schema keeps its id from being used again.
                known = self._by_id[id(schema)] = (schema, compile_schema(schema))
        return known[1]


class JsonBody:
    """The validator of one request's JSON body; hands the decoded body to the handler.

    Connexion passes the entries of its request context as arguments of the same names, so the
    entry `body` becomes the handler's `body`, and nothing is parsed a second time.
    """

    def __init__(self, compiled: _Compiled, schema: Schema, required: bool) -> None:
        self._compiled = compiled
        self._schema = schema
        self._required = required
        self._default = schema.get("x-default", {})

    async def wrap_receive(self, receive: Receive, *, scope: Scope) -> tuple[Receive, Scope]:
        """Reads, decodes and validates. Raises BadRequestProblem."""
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
            await self._check_away(raw, scope)
            return decode(raw)
        body = decode(raw)
        validator = self._compiled.known(self._schema)
        if validator is None:  # the first of all requests, or one beside it
            validator = await asyncio.to_thread(self._compiled.get, self._schema)
        if not validator.is_valid(body):
            if n > FEW:
                await self._check_away(raw, scope)
            raise BadRequestProblem(detail=sentence(validator, body))
        return body

    async def _check_away(self, raw: bytes | bytearray, scope: Scope) -> None:
        """Raises BadRequestProblem for an invalid body, which another process finds out."""
        checker: Checker = scope["state"]["runtime"].checker
        verdict = await checker.check(self._schema, raw)
        if verdict.discreet:
            raise BadRequestProblem(detail=Sentence.told(verdict.fault, verdict.discreet))
        if verdict.fault:
            raise BadRequestProblem(detail=verdict.fault)


class FormBody:
    """The validator of one request's form; hands the fields to the handler as `body`."""

    def __init__(self, compiled: _Compiled, schema: Schema) -> None:
        self._compiled = compiled
        self._schema = schema

    async def wrap_receive(self, receive: Receive, *, scope: Scope) -> tuple[Receive, Scope]:
        """Reads and validates. Raises BadRequestProblem."""
        body = await read_form(receive, scope, self._schema)
        check_form(self._schema, await asyncio.to_thread(self._compiled.get, self._schema), body)
        context = scope.setdefault("extensions", {}).setdefault("connexion_context", {})
        context["body"] = body
        return _drained(receive), scope


def decode(raw: bytes | bytearray) -> Any:
    """The value of a JSON text. Raises BadRequestProblem with what is wrong with it."""
    if not raw:
        raise BadRequestProblem(detail="the body is empty, but this operation needs one")
    try:
        return decoded(raw)
    except UndecodableError as error:
        raise BadRequestProblem(detail=str(error)) from None


async def _read(receive: Receive) -> bytes | bytearray:
    """The body. Its parts are put together as they come: at the end it would all be one copy."""
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
    """`receive` as it looks behind a body: an empty one, since the bytes are not needed again."""
    seen = False

    async def receive_() -> Message:
        nonlocal seen
        if seen:
            return await receive()
        seen = True
        return {"type": "http.request", "body": b"", "more_body": False}

    return receive_


def validator_map() -> dict[str, Any]:
    """Connexion's `validator_map` for one application, with a cache of its own."""
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
            validator = compiled.get(param["schema"])  # small: a moment's work
            return None if validator.is_valid(value) else sentence(validator, value, name)

    bodies = MediaTypeDict(VALIDATOR_MAP["body"])
    bodies["*/*json"] = json_body
    bodies["multipart/form-data"] = form_body
    return {"parameter": Parameters, "body": bodies}
