"""Anthropic's answers: messages, and the events of a streamed message.

Pure functions over the engine's results. The event with a piece of text is the hot path of the
server process, so everything in it except the text is encoded once per block.

Strict clients require every field. Fields without a value are null; `citations` is an empty list,
because clients reject null there: `contract_tests/own/test_client_schemas.py`.
"""

import secrets
from collections.abc import Collection
from typing import Literal

import msgspec

from specllama.engine.chat.output import CallArguments, CallStart, ChatMessage, Content, Reasoning
from specllama.engine.wire.replies import Finished, PromptProgress, Timings
from specllama.handlers.apis.anthropic.request import CALL_PREFIX, MessageRequest
from specllama.handlers.apis.generate import GenerationFacts
from specllama.handlers.apis.results import deadline_json
from specllama.handlers.http import schemas
from specllama.handlers.http.envelopes.anthropic import PING, anthropic_error
from specllama.handlers.http.errors import HttpFailure
from specllama.handlers.http.json_answer import encode
from specllama.handlers.http.streams import sse_event
from specllama.handlers.running.chat_batch import ChatAnswer, ChatEvent, finish_reason

INVALID = "INVALID_JSON"
"""The key for arguments that are not a JSON object."""


def message_form(request: MessageRequest, facts: GenerationFacts) -> "AnthropicFormat":
    """Returns the format of one answer."""
    form = MessageFormat(
        facts.model,
        stop_sequences=list(request.params.stop),
        show_thinking=request.shows_thinking,
    )
    return AnthropicFormat(form, facts.request_id)


class MessageFormat(msgspec.Struct, frozen=True):
    """The form of the answer to one request. `stop_sequences` are the request's, without those of
    the model; without `show_thinking`, blocks of thoughts are empty."""

    model: str
    stop_sequences: Collection[str] = ()
    show_thinking: bool = True

    def message(self, answer: ChatAnswer) -> schemas.MessagesResponse:
        """Returns a whole message."""
        message, finished = answer.message, answer.finished
        return {
            "id": _new_id(),
            "type": "message",
            "role": "assistant",
            "model": self.model,
            "content": self._content(message),
            **self.ending(message, finished),
            "usage": final_usage(finished),
        }

    def started(self, usage: schemas.MessagesUsage) -> schemas.StartedMessage:
        """Returns a message without content yet."""
        return {
            "id": _new_id(),
            "type": "message",
            "role": "assistant",
            "model": self.model,
            "content": [],
            "stop_reason": None,
            "stop_sequence": None,
            "stop_details": None,
            "container": None,
            "usage": usage,
        }

    def ending(self, message: ChatMessage, finished: Finished) -> schemas.MessageDelta:
        """Returns the reason for the message's end."""
        reason = self._stop_reason(message, finished)
        return {
            "stop_reason": reason,
            "stop_sequence": finished.stopping_word if reason == "stop_sequence" else None,
            "stop_details": None,
            "container": None,
            **deadline_json(finished),
        }

    def _stop_reason(self, message: ChatMessage, finished: Finished) -> schemas.MessagesStopReason:
        match finish_reason(message, finished):
            case "length":
                return "max_tokens"
            case "tool_calls":
                return "tool_use"
        if finished.stop_type == "word" and finished.stopping_word in self.stop_sequences:
            return "stop_sequence"
        return "end_turn"

    def _content(self, message: ChatMessage) -> list[schemas.ContentBlock]:
        blocks: list[schemas.ContentBlock] = []
        if message.reasoning:
            thinking = message.reasoning if self.show_thinking else ""
            blocks.append({"type": "thinking", "thinking": thinking, "signature": ""})
        if message.content:
            blocks.append({"type": "text", "text": message.content, "citations": []})
        blocks.extend(
            {**_tool_use(call.id, call.name), "input": _input(call.arguments)}
            for call in message.calls
        )
        return blocks


def _new_id() -> str:
    return "msg_" + secrets.token_urlsafe(18)


def _tool_use(id: str, name: str) -> schemas.ToolUseBlockStart:
    return {
        "type": "tool_use",
        "id": CALL_PREFIX + id,
        "name": name,
        "input": {},
        "caller": {"type": "direct"},
    }


def _input(arguments: str) -> schemas.ToolArguments:
    """Returns the object in `arguments`. Arguments that are cut off or otherwise no JSON object
    become the text of the field `INVALID_JSON`, which Anthropic documents for them."""
    try:
        value = msgspec.json.decode(arguments)
    except (msgspec.DecodeError, RecursionError):
        value = None
    return value if isinstance(value, dict) else {INVALID: arguments}


def final_usage(finished: Finished) -> schemas.MessagesUsage:
    """Returns the token counts at the end of a request."""
    cached = finished.timings.cache_n
    return _usage(finished.n_prompt - cached, cached, finished.n_decoded)


def first_usage(progress: PromptProgress | None, timings: Timings) -> schemas.MessagesUsage:
    """Returns the token counts of the prompt, before there is any output."""
    if progress is not None:
        return _usage(progress.total - progress.cache, progress.cache, 0)
    return _usage(timings.prompt_n, timings.cache_n, 0)


def _usage(evaluated: int, cached: int, generated: int) -> schemas.MessagesUsage:
    return {
        "input_tokens": evaluated,
        "cache_creation_input_tokens": 0,
        "cache_read_input_tokens": cached,
        "output_tokens": generated,
        "cache_creation": {"ephemeral_5m_input_tokens": 0, "ephemeral_1h_input_tokens": 0},
        "inference_geo": None,
        "output_tokens_details": None,
        "server_tool_use": None,
        "service_tier": "standard",
    }


class AnthropicFormat:
    """The answer to the request `request_id` (`handlers.running.respond.Format`). In a stream, each
    block of a message begins, grows and ends before the next one begins."""

    def __init__(self, form: MessageFormat, request_id: str) -> None:
        self._form = form
        self._request_id = request_id
        self._index = -1  # of the last block that was begun
        self._kind: str | None = None  # of the block that is open
        self._begin = self._end = b""  # around the encoded text of a delta in it

    def begin(self, event: ChatEvent) -> bytes:
        """Returns `message_start`, which is sent with the engine's first event, and a `ping`."""
        progress = None if isinstance(event.source, Finished) else event.source.progress
        message = self._form.started(first_usage(progress, event.source.timings))
        return _event({"type": "message_start", "message": message}) + PING

    def event(self, event: ChatEvent) -> bytes:
        """Returns an engine event in this format; empty if it adds nothing."""
        frames = []
        for delta in event.deltas:
            match delta:
                case Content(text):
                    frames.append(self._text("text", text))
                case Reasoning(text):
                    shown = text if self._form.show_thinking else ""
                    frames.append(self._text("thinking", shown))
                case CallStart(_, id, name):
                    frames.append(self._close())
                    frames.append(self._open(_tool_use(id, name)))
                    self._deltas({"type": "input_json_delta", "partial_json": ""})
                case CallArguments(_, text):
                    frames.append(self._delta(text))
        if isinstance(event.source, Finished):
            ending = self._form.ending(event.message, event.source)
            usage = final_usage(event.source)
            frames.append(self._close())
            frames.append(_event({"type": "message_delta", "delta": ending, "usage": usage}))
            frames.append(_event({"type": "message_stop"}))
        return b"".join(frames)

    async def end(self) -> bytes:
        return b""

    def failed(self, failure: HttpFailure) -> bytes:
        error = anthropic_error(failure.status, failure.info, self._request_id)
        return sse_event(error, "error")

    async def whole(self, results: list[ChatAnswer]) -> schemas.MessagesResponse:
        [answer] = results
        return self._form.message(answer)

    def _text(self, kind: Literal["thinking", "text"], text: str) -> bytes:
        if self._kind == kind:
            return self._delta(text)
        begun = self._close()
        if kind == "text":
            begun += self._open({"type": "text", "text": "", "citations": []})
            self._deltas({"type": "text_delta", "text": ""})
        else:
            begun += self._open({"type": "thinking", "thinking": "", "signature": ""})
            self._deltas({"type": "thinking_delta", "thinking": ""})
        return begun + self._delta(text)

    def _open(self, block: schemas.ContentBlockStart) -> bytes:
        self._index += 1
        self._kind = block["type"]
        return _event({"type": "content_block_start", "index": self._index, "content_block": block})

    def _deltas(self, empty: schemas.ContentBlockDelta) -> None:
        """Prepares deltas of the open block in the form of `empty`, which ends with its text."""
        whole = _event({"type": "content_block_delta", "index": self._index, "delta": empty})
        self._begin, self._end = whole[: -len(b'""}}\n\n')], whole[-len(b"}}\n\n") :]

    def _delta(self, text: str) -> bytes:
        return b"".join((self._begin, encode(text), self._end)) if text else b""

    def _close(self) -> bytes:
        if self._kind is None:
            return b""
        signature = b""
        if self._kind == "thinking":
            # Clients regard a block of thoughts as incomplete without a signature.
            delta: schemas.SignatureDelta = {"type": "signature_delta", "signature": ""}
            signature = _event(
                {"type": "content_block_delta", "index": self._index, "delta": delta}
            )
        self._kind = None
        return signature + _event({"type": "content_block_stop", "index": self._index})


def _event(event: schemas.MessagesEvent) -> bytes:
    return sse_event(event, event["type"])
