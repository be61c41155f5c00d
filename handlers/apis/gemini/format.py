"""Google's answers: whole, and as the pieces of a stream.

A piece with a text is the hot path of the server process, so everything in it except the text is
encoded once per stream.

A stream has server-sent events, or the elements of one JSON array. A call is sent whole, as soon as
the model begins the next part of its answer. The last piece has the ends of all answers, and the
token counts. Every piece has parts: Google's client library would regard the whole turn as failed
otherwise.
"""

import secrets
from collections.abc import Awaitable, Callable, Sequence

import msgspec

from specllama.engine.chat.output import (
    CallArguments,
    CallStart,
    ChatMessage,
    Content,
    Reasoning,
    ToolCall,
)
from specllama.engine.wire.replies import Finished, TokenProbs
from specllama.handlers.apis.gemini.request import ContentRequest
from specllama.handlers.apis.generate import GenerationFacts
from specllama.handlers.apis.probabilities import VALUES, Probabilities, whole_text
from specllama.handlers.apis.results import DEADLINES
from specllama.handlers.http import schemas
from specllama.handlers.http.envelopes.gemini import gemini_error
from specllama.handlers.http.errors import HttpFailure
from specllama.handlers.http.json_answer import encode, lazy
from specllama.handlers.running.chat_batch import ChatAnswer, ChatEvent, finish_reason


def content_form(request: ContentRequest, facts: GenerationFacts) -> "GeminiFormat":
    """Returns the format of an answer that is whole, or a stream of events."""
    return _form(EventFrames(), request, facts)


def array_form(request: ContentRequest, facts: GenerationFacts) -> "GeminiFormat":
    """Returns the format of an answer that is streamed as an array."""
    return _form(ArrayFrames(), request, facts)


def _form(frames: "EventFrames", request: ContentRequest, facts: GenerationFacts) -> "GeminiFormat":
    return GeminiFormat(
        facts.model,
        frames,
        shows_thoughts=request.shows_thoughts,
        is_enum=request.is_enum,
        probabilities=request.probabilities,
        n_written=facts.n_written,
    )


class EventFrames:
    """Pieces as server-sent events."""

    def piece(self, data: bytes) -> bytes:
        return b"data: %b\n\n" % data

    def end(self) -> bytes:
        return b""


class ArrayFrames(EventFrames):
    """Pieces as the elements of one array."""

    def __init__(self) -> None:
        self._mark = b"["

    def piece(self, data: bytes) -> bytes:
        mark, self._mark = self._mark, b",\n"
        return mark + data

    def end(self) -> bytes:
        return b"]"


_BEGIN, _ROLE = b'{"candidates":[{"content":{"parts":[', b'],"role":"model"},"index":%d'
_EMPTY: schemas.GeminiTextPart = {"text": ""}
_NOTHING = encode(_EMPTY)


class _Sent:
    """Counts the calls of one streamed answer that the model has begun, and those already sent."""

    n_begun = 0
    n_sent = 0


class GeminiFormat:
    """The answer of `model` to one request (`handlers.running.respond.Format`). With
    `shows_thoughts`, the answer has parts with thoughts. With `is_enum`, the model writes a JSON
    string, whose value is sent as one text. `n_written` counts the tokens of a text."""

    def __init__(
        self,
        model: str,
        frames: EventFrames,
        *,
        shows_thoughts: bool,
        is_enum: bool,
        probabilities: Probabilities | None,
        n_written: Callable[[str], Awaitable[int]],
    ) -> None:
        self._model = model
        self._id = secrets.token_urlsafe(18)
        self._frames = frames
        self._shows_thoughts = shows_thoughts
        self._is_enum = is_enum
        self._probabilities = probabilities
        self._n_written = n_written
        self._tail = b'}],"modelVersion":%b,"responseId":%b}' % (encode(model), encode(self._id))
        self._sent: dict[int, _Sent] = {}
        self._ends: dict[int, tuple[ChatMessage, Finished]] = {}

    def begin(self, event: ChatEvent) -> bytes:
        self._sent[event.index] = _Sent()
        return b""

    def event(self, event: ChatEvent) -> bytes:
        """Returns the piece for an engine event; empty if the event adds nothing."""
        sent, calls = self._sent[event.index], event.message.calls
        parts: list[bytes] = []
        for delta in event.deltas:
            match delta:
                case Content(text):
                    parts += self._calls(sent, calls)
                    if not self._is_enum:
                        parts.append(b'{"text":%b}' % encode(text))
                case Reasoning(text):
                    if self._shows_thoughts:
                        parts.append(b'{"text":%b,"thought":true}' % encode(text))
                case CallStart(index):
                    parts += self._calls(sent, calls)
                    sent.n_begun = index + 1
                case CallArguments():
                    pass  # a call is sent whole
        if isinstance(event.source, Finished):
            self._ends[event.index] = event.message, event.source
        if not parts and not event.probs:
            return b""
        return self._piece(event.index, parts or [_NOTHING], event.probs)

    async def end(self) -> bytes:
        """Returns the last piece: the last calls, the ends of all answers, the token counts."""
        candidates: list[schemas.GeminiCandidate] = []
        for index, (message, finished) in sorted(self._ends.items()):
            parts: list[schemas.GeminiAnswerPart] = []
            if self._is_enum:
                parts.append({"text": _value(message.content)})
            parts += _call_parts(message.calls[self._sent[index].n_sent :])
            candidates.append(_candidate(index, message, finished, parts or [_EMPTY]))
        last = await self._response(candidates, [self._ends[i] for i in sorted(self._ends)])
        return self._frames.piece(encode(last)) + self._frames.end()

    def failed(self, failure: HttpFailure) -> bytes:
        return self._frames.piece(encode(gemini_error(failure))) + self._frames.end()

    async def whole(self, results: list[ChatAnswer]) -> schemas.GeminiResponse:
        candidates: list[schemas.GeminiCandidate] = []
        for index, answer in enumerate(results):
            parts = self._parts(answer.message)
            candidate = _candidate(index, answer.message, answer.finished, parts)
            if self._probabilities is not None:
                candidate["logprobsResult"] = _logprobs(self._probabilities, answer.probs)
            candidates.append(candidate)
        return await self._response(candidates, [(each.message, each.finished) for each in results])

    async def _response(
        self,
        candidates: list[schemas.GeminiCandidate],
        ends: Sequence[tuple[ChatMessage, Finished]],
    ) -> schemas.GeminiResponse:
        return {
            "candidates": candidates,
            "usageMetadata": await self._usage(ends),
            "modelVersion": self._model,
            "responseId": self._id,
        }

    async def _usage(self, ends: Sequence[tuple[ChatMessage, Finished]]) -> schemas.GeminiUsage:
        """Returns the token counts of all answers to the one prompt. Tokens of thoughts are counted
        by tokenizing their text, without the markers around it."""
        _, first = ends[0]
        n_decoded = sum(finished.n_decoded for _, finished in ends)
        n_thoughts = 0
        for message, finished in ends:
            n_thoughts += min(await self._n_written(message.reasoning), finished.n_decoded)
        usage: schemas.GeminiUsage = {
            "promptTokenCount": first.n_prompt,
            "cachedContentTokenCount": first.timings.cache_n,
            "candidatesTokenCount": n_decoded - n_thoughts,
            "totalTokenCount": first.n_prompt + n_decoded,
        }
        if n_thoughts:
            usage["thoughtsTokenCount"] = n_thoughts
        return usage

    def _parts(self, message: ChatMessage) -> list[schemas.GeminiAnswerPart]:
        parts: list[schemas.GeminiAnswerPart] = []
        if message.reasoning and self._shows_thoughts:
            parts.append({"text": message.reasoning, "thought": True})
        if message.content:
            text = _value(message.content) if self._is_enum else message.content
            parts.append({"text": text})
        return [*parts, *_call_parts(message.calls)]

    def _calls(self, sent: _Sent, calls: Sequence[ToolCall]) -> list[bytes]:
        """Returns the unsent calls that are complete, because a later part has begun."""
        whole = calls[sent.n_sent : sent.n_begun]
        sent.n_sent = sent.n_begun
        return [encode(part) for part in _call_parts(whole)]

    def _piece(self, index: int, parts: Sequence[bytes], probs: Sequence[TokenProbs]) -> bytes:
        logprobs = b""
        if probs and self._probabilities is not None:
            logprobs = b',"logprobsResult":' + encode(_logprobs(self._probabilities, probs))
        data = (_BEGIN, b",".join(parts), _ROLE % index, logprobs, self._tail)
        return self._frames.piece(b"".join(data))


def _candidate(
    index: int,
    message: ChatMessage,
    finished: Finished,
    parts: list[schemas.GeminiAnswerPart],
) -> schemas.GeminiCandidate:
    """Returns one finished answer."""
    candidate: schemas.GeminiCandidate = {
        "content": {"parts": parts, "role": "model"},
        "finishReason": "STOP",
        "index": index,
    }
    if finish_reason(message, finished) == "length":
        candidate["finishReason"] = "MAX_TOKENS"
        if finished.deadline:
            candidate["finishMessage"] = f"deadline: {DEADLINES[finished.deadline]}"
    elif wrong := [call for call in message.calls if _arguments(call) is None]:
        candidate["finishReason"] = "MALFORMED_FUNCTION_CALL"
        said = [f"{call.name}: {call.arguments}" for call in wrong]
        candidate["finishMessage"] = "\n".join(said)
    return candidate


def _value(text: str) -> str:
    """Returns the value of a JSON string; the text itself if it was cut off."""
    try:
        return msgspec.json.decode(text, type=str)
    except msgspec.DecodeError:
        return text


def _call_parts(calls: Sequence[ToolCall]) -> list[schemas.GeminiCallPart]:
    """Returns the parts for the `calls` whose arguments are a JSON object."""
    return [
        {"functionCall": {"id": call.id, "name": call.name, "args": arguments}}
        for call in calls
        if (arguments := _arguments(call)) is not None
    ]


def _arguments(call: ToolCall) -> schemas.GeminiArguments | None:
    """Returns the arguments as an object; None if their text is not a JSON object."""
    try:
        value = msgspec.json.decode(call.arguments)
    except (msgspec.DecodeError, RecursionError):
        return None
    return value if isinstance(value, dict) else None


# ---- probabilities -----------------------------------------------------------------------


def _logprobs(form: Probabilities, probs: Sequence[TokenProbs]) -> schemas.GeminiLogprobs:
    """Returns `probs` in Google's form, with lists that are made while they are encoded."""

    def chosen(entry: TokenProbs) -> schemas.GeminiToken:
        return _token(entry.id, entry.piece, entry.value)

    def rivals(entry: TokenProbs) -> schemas.GeminiTopTokens:
        return {"candidates": [_token(*rival) for rival in entry.top[: form.n_top]]}

    return {
        "chosenCandidates": lazy(chosen, probs, VALUES),
        "topCandidates": lazy(rivals, probs, VALUES * form.n_top + 1),
    }


def _token(id: int, piece: bytes, value: float) -> schemas.GeminiToken:
    return {"token": whole_text(piece), "tokenId": id, "logProbability": value}
