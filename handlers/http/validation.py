"""Request validation: bodies by compiled schemas, parameters with the same sentences.

Connexion's own body validator parses twice, compiles the schema anew for every request, and
accepts NaN; these take its place in the `validator_map`.
"""

import asyncio
import threading
from typing import Any

import msgspec
from connexion.datastructures import MediaTypeDict
from connexion.exceptions import BadRequestProblem
from connexion.validators import VALIDATOR_MAP
from connexion.validators.parameter import ParameterValidator
from jsonschema_rs import Draft202012Validator
from starlette.requests import ClientDisconnect
from starlette.types import Message, Receive, Scope

from handlers.http.schema import Schema, compile_schema
from handlers.http.validation_messages import sentence

_decoder = msgspec.json.Decoder()


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
            body = decode(raw)
            validator = self._compiled.known(self._schema)
            if validator is None:  # the first of all requests, or one beside it
                validator = await asyncio.to_thread(self._compiled.get, self._schema)
            if not validator.is_valid(body):
                raise BadRequestProblem(detail=sentence(validator, body))
        else:
            body = self._default
        context = scope.setdefault("extensions", {}).setdefault("connexion_context", {})
        context["body"] = body
        return _drained(receive), scope


def decode(raw: bytes) -> Any:
    """The value of a JSON text. Raises BadRequestProblem with what is wrong with it."""
    if not raw:
        raise BadRequestProblem(detail="the body is empty, but this operation needs one")
    try:
        return _decoder.decode(raw)
    except UnicodeDecodeError as error:
        raise BadRequestProblem(detail=f"the body is not valid UTF-8: {error.reason}") from None
    except msgspec.DecodeError as error:
        what = str(error).removeprefix("JSON is malformed: ")
        if "truncated" in what:  # which it also says of a lone surrogate at the end of a string
            what = "a value or an escape sequence is incomplete"
        raise BadRequestProblem(detail=f"the body is not valid JSON: {what}") from None
    except RecursionError:
        raise BadRequestProblem(detail="the body is nested too deeply") from None


async def _read(receive: Receive) -> bytes:
    chunks: list[bytes] = []
    more = True
    while more:
        message = await receive()
        if message["type"] == "http.disconnect":
            raise ClientDisconnect
        chunks.append(message.get("body", b""))
        more = message.get("more_body", False)
    return chunks[0] if len(chunks) == 1 else b"".join(chunks)


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
    return {"parameter": Parameters, "body": bodies}
