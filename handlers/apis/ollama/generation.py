"""Ollama's answers to one prompt. They are like answers to a chat (`handlers.apis.ollama.format`),
but have the text instead of a message."""

from collections.abc import Awaitable, Callable
from typing import NotRequired, TypedDict

from specllama.engine.chat.output import Content, Reasoning
from specllama.engine.wire.replies import Finished, TokenProbs
from specllama.engine.wire.requests import Infill
from specllama.handlers.apis.generate import GenerationFacts
from specllama.handlers.apis.ollama.format import Watch, ending, heading, logprobs, now
from specllama.handlers.apis.ollama.request import OllamaRequest
from specllama.handlers.apis.probabilities import Probabilities
from specllama.handlers.http import schemas
from specllama.handlers.http.envelopes.ollama import ollama_error
from specllama.handlers.http.errors import HttpFailure
from specllama.handlers.http.streams import line
from specllama.handlers.running.chat_batch import ChatAnswer, ChatEvent

ContextOf = Callable[[str], Awaitable[list[int]]]
"""Returns the tokens of the conversation up to the end of a generated text."""


def ollama_text_form(request: OllamaRequest, facts: GenerationFacts) -> "GenerationFormat":
    """Returns the format of one answer."""
    parts = () if isinstance(facts.prompt, Infill) else facts.prompt
    said = "".join(part for part in parts if isinstance(part, str))

    async def context(text: str) -> list[int]:
        """Returns the tokens of the whole conversation, for a request that continues it."""
        return await facts.tokens([*request.before, said + text])

    return GenerationFormat(
        request.named or facts.model,
        Watch(facts.arrived, facts.loaded),
        request.probabilities,
        context if request.has_context else None,
    )


class _Context(TypedDict):
    context: NotRequired[list[int]]


class _Thoughts(TypedDict):
    thinking: NotRequired[str]


class GenerationFormat:
    """The answer to one request (`handlers.running.respond.Format`). Without `context_of`, the
    answer has no `context`."""

    def __init__(
        self,
        model: str,
        watch: Watch,
        probabilities: Probabilities | None = None,
        context_of: ContextOf | None = None,
    ) -> None:
        self._model = model
        self._probabilities = probabilities
        self._context_of = context_of
        self._watch = watch
        self._text = ""  # as generated, with all markers
        self._last: schemas.OllamaGenerateAnswer | None = None  # of a stream
        self._probs: list[TokenProbs] = []  # of text that is held back

    async def whole(self, results: list[ChatAnswer]) -> schemas.OllamaGenerateAnswer:
        [answer] = results
        message, finished = answer.message, answer.finished
        self._text = "".join(event.source.text for event in answer.events)
        return {
            **heading(self._model),
            "response": message.content,
            "done": True,
            **_thoughts(message.reasoning),
            **logprobs(self._probabilities, finished.probs),
            **await self._context(),
            **ending(message, finished, self._watch),
        }

    def begin(self, event: ChatEvent) -> bytes:
        return b""

    def event(self, event: ChatEvent) -> bytes:
        """Returns the lines for one engine event; possibly empty."""
        self._probs += event.source.probs
        self._text += event.source.text
        made: list[schemas.OllamaGeneratePiece] = []
        for delta in event.deltas:
            match delta:
                case Content(text):
                    made.append(self._piece(text))
                case Reasoning(text):
                    made.append(self._piece("", text))
        if isinstance(event.source, Finished):
            last: schemas.OllamaGenerateAnswer = {
                **heading(self._model),
                "response": "",
                "done": True,
                **_Thoughts(),
                **logprobs(self._probabilities, self._taken_probs()),
                **ending(event.message, event.source, self._watch),
                **_Context(),  # `end` adds it
            }
            self._last = last
        return b"".join(map(line, made))

    async def end(self) -> bytes:
        assert self._last is not None, "`event` has had the last event"
        return line({**self._last, **await self._context()})

    def failed(self, failure: HttpFailure) -> bytes:
        """Returns a last line `{"error": "..."}`."""
        return line(ollama_error(failure.info))

    async def _context(self) -> _Context:
        if self._context_of is None:
            return {}
        return {"context": await self._context_of(self._text)}

    def _taken_probs(self) -> list[TokenProbs]:
        taken, self._probs = self._probs, []
        return taken

    def _piece(self, text: str, thoughts: str = "") -> schemas.OllamaGeneratePiece:
        made: schemas.OllamaGeneratePiece = {
            "model": self._model,
            "created_at": now(),
            "response": text,
            "done": False,
        }
        if thoughts:
            made["thinking"] = thoughts
        probs = self._taken_probs()
        if probs and self._probabilities:
            made["logprobs"] = self._probabilities.later(probs)
        return made


def _thoughts(text: str) -> _Thoughts:
    return {"thinking": text} if text else {}
