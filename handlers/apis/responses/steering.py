"""Input that steers a response over a WebSocket: it waits until the response has ended, and then a
continuation of the response gets it."""

from collections.abc import Sequence
from typing import Any, Literal, TypeAlias

import msgspec

from specllama.handlers.apis.responses.items import new_id
from specllama.handlers.http import schemas

MAX_STEERS = 16
"""Inputs for one response."""

ErrorCode: TypeAlias = schemas.ResponseSteerErrorCode


class Steer(msgspec.Struct):
    """Accepted input for a continuation of the response `previous_response_id`."""

    id: str
    previous_response_id: str
    input: schemas.ResponseSteerInput


class OutputCall(msgspec.Struct):
    """An item of a response's output, of which the fields of calls are read."""

    type: str = ""
    call_id: str = ""
    name: str = ""

    @property
    def needs_output(self) -> bool:
        """True for a call of a tool that the client runs."""
        return self.type in ("function_call", "custom_tool_call")

    def required(self) -> schemas.ResponseSteerRequiredInput:
        """Returns the item with the call's output, without its `output`."""
        if self.type == "custom_tool_call":
            return {"type": "custom_tool_call_output", "call_id": self.call_id}
        return {"type": "function_call_output", "call_id": self.call_id, "name": self.name}


class _Part(msgspec.Struct, omit_defaults=True):
    """A part of a message, as the description has it."""

    type: Literal["input_text", "input_image", "input_file"]
    text: str | None = None
    image_url: str | None = None
    detail: str | None = None
    file_data: str | None = None
    file_url: str | None = None
    filename: str | None = None


class _Message(msgspec.Struct, forbid_unknown_fields=True):
    role: Literal["user"]
    content: str | list[_Part]
    type: Literal["message"] = "message"


def steer(target: str, input: msgspec.Raw) -> Steer:
    """Returns the input of a `response.steer` for the response `target`. Raises
    `msgspec.MsgspecError` for input that isn't a text or messages of the user."""
    read = msgspec.json.decode(input, type=str | list[_Message])
    if not read:
        raise msgspec.ValidationError("must not be empty")
    given: Any = msgspec.to_builtins(read)
    return Steer(new_id("steer"), target, given)


def _items(input: Any) -> list[Any]:
    if isinstance(input, str):
        return [{"type": "message", "role": "user", "content": input}]
    return list(input or [])


def successor(body: bytes, previous: str, steers: Sequence[Steer]) -> bytes:
    """Returns the request for a continuation of the response `previous` with queued input, and with
    the settings of its own request, `body`."""
    fields = msgspec.json.decode(body)
    fields |= {
        "previous_response_id": previous,
        "input": [item for steer in steers for item in _items(steer.input)],
        "generate": None,
    }
    return msgspec.json.encode(fields)


def with_steers(body: bytes, steers: Sequence[Steer]) -> bytes:
    """Returns the request `body` with queued input before its own."""
    fields = msgspec.json.decode(body)
    queued = [item for steer in steers for item in _items(steer.input)]
    given = fields.get("input")
    if isinstance(given, str | list):  # otherwise the validation refuses it
        fields["input"] = [*queued, *_items(given)]
    return msgspec.json.encode(fields)
