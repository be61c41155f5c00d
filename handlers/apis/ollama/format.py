"""Ollama's answers to a chat: one object, or a stream of lines with the pieces of the answer.

Durations are in nanoseconds.
"""

from collections.abc import Sequence
from datetime import UTC, datetime
from typing import NotRequired, TypedDict

import msgspec

from specllama.engine import system
from specllama.engine.chat.output import (
    CallArguments,
    CallStart,
    ChatMessage,
    Content,
    Reasoning,
    ToolCall,
)
from specllama.engine.wire.replies import Finished, TokenProbs
from specllama.handlers.apis.embed import Embedded, EmbeddingsRequest, only_vector
from specllama.handlers.apis.generate import GenerationFacts
from specllama.handlers.apis.ollama.details import timestamp
from specllama.handlers.apis.ollama.request import OllamaRequest
from specllama.handlers.apis.probabilities import Probabilities
from specllama.handlers.apis.results import EndedByDeadline, deadline_json
from specllama.handlers.http import schemas
from specllama.handlers.http.envelopes.ollama import ollama_error
from specllama.handlers.http.errors import HttpFailure
from specllama.handlers.http.streams import line
from specllama.handlers.running.chat_batch import ChatAnswer, ChatEvent, finish_reason

_MILLISECOND = 1_000_000


class Durations(TypedDict):
    total_duration: int
    load_duration: int


class Watch(msgspec.Struct, frozen=True):
    """The times (`engine.system.now`) when a request's model was resolved, and when it was
    loaded."""

    begun: float
    loaded: float

    def durations(self) -> Durations:
        return {
            "total_duration": round(1e9 * (system.now() - self.begun)),
            "load_duration": round(1e9 * (self.loaded - self.begun)),
        }


def ollama_chat_form(request: OllamaRequest, facts: GenerationFacts) -> "OllamaFormat":
    """Returns the format of one answer."""
    watch = Watch(facts.arrived, facts.loaded)
    return OllamaFormat(request.named or facts.model, watch, request.probabilities)


class OllamaFormat:
    """The answer to one request (`handlers.running.respond.Format`). In a stream, it keeps calls
    and probabilities until it can send them."""

    def __init__(
        self, model: str, watch: Watch, probabilities: Probabilities | None = None
    ) -> None:
        self._model = model
        self._probabilities = probabilities
        self._watch = watch
        self._calls_begun = 0
        self._calls_sent = 0  # further calls are incomplete
        self._probs: list[TokenProbs] = []  # of text that is held back

    async def whole(self, results: list[ChatAnswer]) -> schemas.OllamaChatAnswer:
        [answer] = results
        return self.answer(answer)

    def answer(self, answer: ChatAnswer) -> schemas.OllamaChatAnswer:
        """Returns the whole answer."""
        said = _said(answer.message.content)
        if answer.message.reasoning:
            said["thinking"] = answer.message.reasoning
        if calls := _calls(answer.message.calls):
            said["tool_calls"] = calls
        return self._last(said, answer.finished.probs, answer.message, answer.finished)

    def begin(self, event: ChatEvent) -> bytes:
        return b""

    def event(self, event: ChatEvent) -> bytes:
        """Returns all lines for one engine event; possibly empty. A call is sent whole, as soon as
        the model begins the next part of its answer."""
        self._probs += event.source.probs
        made: list[schemas.OllamaChatLine] = []
        for delta in event.deltas:
            if not isinstance(delta, CallArguments):
                made += self._whole_calls(event.message)
            match delta:
                case Content(text):
                    made.append(self._piece({"role": "assistant", "content": text}))
                case Reasoning(text):
                    made.append(self._piece({"role": "assistant", "content": "", "thinking": text}))
                case CallStart(index):
                    self._calls_begun = index + 1
        if isinstance(event.source, Finished):
            made += self._whole_calls(event.message)
            made.append(self._last(_said(), self._taken_probs(), event.message, event.source))
        return b"".join(map(line, made))

    async def end(self) -> bytes:
        return b""

    def failed(self, failure: HttpFailure) -> bytes:
        """Returns a last line `{"error": "..."}`."""
        return line(ollama_error(failure.info))

    def _whole_calls(self, message: ChatMessage) -> list[schemas.OllamaChatPiece]:
        """Returns lines for the unsent calls, which are complete."""
        calls = message.calls[self._calls_sent : self._calls_begun]
        self._calls_sent = self._calls_begun
        return [self._piece({**_said(), "tool_calls": [call]}) for call in _calls(calls)]

    def _taken_probs(self) -> list[TokenProbs]:
        taken, self._probs = self._probs, []
        return taken

    def _piece(self, said: schemas.OllamaAnswerMessage) -> schemas.OllamaChatPiece:
        made: schemas.OllamaChatPiece = {
            "model": self._model,
            "created_at": now(),
            "message": said,
            "done": False,
        }
        probs = self._taken_probs()
        if probs and self._probabilities:
            made["logprobs"] = self._probabilities.later(probs)
        return made

    def _last(
        self,
        said: schemas.OllamaAnswerMessage,
        probs: Sequence[TokenProbs],
        message: ChatMessage,
        finished: Finished,
    ) -> schemas.OllamaChatAnswer:
        return {
            **heading(self._model),
            "message": said,
            "done": True,
            **logprobs(self._probabilities, probs),
            **ending(message, finished, self._watch),
        }


def _said(text: str = "") -> schemas.OllamaAnswerMessage:
    return {"role": "assistant", "content": text}


class Heading(TypedDict):
    """The first fields of every object of an answer."""

    model: str
    created_at: str


def heading(model: str) -> Heading:
    return {"model": model, "created_at": now()}


def now() -> str:
    """Returns the current time in the form of `created_at`."""
    return timestamp(datetime.now(UTC))


class Logprobs(TypedDict):
    logprobs: NotRequired[list[schemas.TokenProbability]]


def logprobs(form: Probabilities | None, probs: Sequence[TokenProbs]) -> Logprobs:
    return {"logprobs": form.later(probs)} if probs and form else {}


class Ending(Durations, EndedByDeadline):
    """The last fields of the last object of an answer."""

    done_reason: schemas.OllamaDoneReason
    prompt_eval_count: int
    prompt_eval_duration: int
    eval_count: int
    eval_duration: int


def ending(message: ChatMessage, result: Finished, watch: Watch) -> Ending:
    cut_off = finish_reason(message, result) == "length"
    return {
        "done_reason": "length" if cut_off else "stop",
        **watch.durations(),
        "prompt_eval_count": result.n_prompt,
        "prompt_eval_duration": int(result.timings.prompt_ms * _MILLISECOND),
        "eval_count": result.timings.predicted_n,
        "eval_duration": int(result.timings.predicted_ms * _MILLISECOND),
        **deadline_json(result),
    }


def _calls(calls: Sequence[ToolCall]) -> list[schemas.OllamaToolCall]:
    """Returns the calls whose arguments are complete. A call that was cut off can't be written in
    this form, and the client must not run it."""
    made: list[schemas.OllamaToolCall] = []
    for call in calls:
        arguments = _arguments(call.arguments)
        if arguments is not None:
            made.append({"id": call.id, "function": {"name": call.name, "arguments": arguments}})
    return made


def _arguments(text: str) -> schemas.OllamaCallArguments | None:
    try:
        value = msgspec.json.decode(text)
    except (msgspec.DecodeError, RecursionError):
        return None
    return value if isinstance(value, dict) else None


# ---- embeddings --------------------------------------------------------------------------


def inputs_form(request: EmbeddingsRequest, made: Embedded) -> schemas.OllamaEmbedAnswer:
    """Returns a vector for each input."""
    return {
        "model": request.named or made.model,
        "embeddings": made.vectors(),
        **Watch(made.arrived, made.loaded).durations(),
        "prompt_eval_count": made.n_tokens,
    }


def prompt_form(request: EmbeddingsRequest, made: Embedded) -> schemas.OllamaEmbeddingsAnswer:
    """Returns the vector of the text; an empty one if there is no text."""
    return {"embedding": only_vector(made.rows[0]) if made.rows else []}
