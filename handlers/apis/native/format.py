"""The answers of llama-server's own API: whole, and as events of a stream."""

from collections.abc import Mapping, Sequence
from typing import Any, cast

import msgspec
from msgspec import UNSET, UnsetType

from specllama.engine.chat.request import ReasoningFormat
from specllama.engine.params import GenerationParams
from specllama.engine.wire.replies import Delta, Finished
from specllama.handlers.apis.generate import GenerationFacts
from specllama.handlers.apis.native.request import CompletionRequest
from specllama.handlers.apis.probabilities import Probabilities
from specllama.handlers.apis.results import (
    DEADLINES,
    progress_json,
    settings_json,
    timings_json,
)
from specllama.handlers.http import schemas
from specllama.handlers.http.errors import HttpFailure
from specllama.handlers.http.json_answer import encode, lazy
from specllama.handlers.http.streams import error_frame, sse_event
from specllama.handlers.running.batch import TextEvent

FIELDS = 100
"""The approximate number of values in a result, without its probabilities."""


def select(fields: Sequence[str], answer: Mapping[str, Any]) -> schemas.SelectedFields:
    """Returns the `fields` that `answer` has. A field `a/b` is the field `b` of the object `a`; its
    name in the result is the whole path."""
    found: dict[str, Any] = {}
    for field in fields:
        value: Any = answer
        for key in field.split("/"):
            if not isinstance(value, Mapping) or key not in value:
                break
            value = value[key]
        else:
            found[field] = value
    return cast(schemas.SelectedFields, found)  # and other fields by their paths


class _Delta(msgspec.Struct, frozen=True, gc=False):
    """An event of a stream before the last one. Fields that aren't requested are unset."""

    index: int
    content: str
    tokens: list[int]
    stop: bool
    id_slot: int
    tokens_predicted: int
    tokens_evaluated: int
    timings: schemas.Timings | UnsetType
    prompt_progress: schemas.PromptProgress | UnsetType | None
    completion_probabilities: list[schemas.TokenProbability] | UnsetType


def completion_form(request: CompletionRequest, facts: GenerationFacts) -> "NativeFormat":
    """Returns the format of one answer."""
    return NativeFormat(
        facts.model,
        facts.n_ctx,
        facts.params,
        reasoning_format=request.reasoning_format,
        probabilities=request.probabilities,
        response_fields=request.response_fields,
    )


class NativeFormat:
    """The native answers of one request (`handlers.running.respond.Format`).

    `n_ctx` is the size of a slot's context in tokens; `reasoning_format` is shown in the settings.
    With `response_fields`, results have only those fields.
    """

    def __init__(
        self,
        model: str,
        n_ctx: int,
        params: GenerationParams,
        *,
        reasoning_format: ReasoningFormat = "auto",
        probabilities: Probabilities | None = None,
        response_fields: Sequence[str] = (),
    ) -> None:
        self._model = model
        self._n_ctx = n_ctx
        self._reasoning_format = reasoning_format
        self._stream = params.stream
        self._with_tokens = params.return_tokens or params.stream
        self._with_timings = params.timings_per_token
        self._probabilities = probabilities
        self._response_fields = response_fields

    def begin(self, event: TextEvent) -> bytes:
        return b""

    def event(self, event: TextEvent) -> bytes:
        source = event.source
        if isinstance(source, Delta):
            return b"data: %b\n\n" % self.delta_json(event.index, source)
        return self.finish(event.index, source)

    async def end(self) -> bytes:
        return b""

    def failed(self, failure: HttpFailure) -> bytes:
        return error_frame(failure)

    async def whole(self, results: list[Finished]) -> schemas.CompletionResponse:
        """Returns an object for one text, an array of objects for several."""
        if len(results) == 1:
            return self.result(0, results[0])
        return lazy(lambda numbered: self.result(*numbered), [*enumerate(results)], FIELDS)

    def delta_json(self, index: int, event: Delta) -> bytes:
        """Returns the JSON of one event."""
        timings, progress, probs = event.timings, event.progress, event.probs
        return encode(
            _Delta(
                index,
                event.text,
                event.tokens,
                False,
                event.id_slot,
                timings.predicted_n,
                progress.total if progress else timings.cache_n + timings.prompt_n,
                timings_json(timings) if self._with_timings else UNSET,
                progress_json(progress) if progress else UNSET,
                self._probabilities.content(probs) if probs and self._probabilities else UNSET,
            )
        )

    def finish(self, index: int, result: Finished) -> bytes:
        """Returns the last event of a stream, as a frame."""
        return sse_event(self.result(index, result))

    def result(self, index: int, result: Finished) -> schemas.VerboseResult:
        """Returns the whole answer, or the last event of a stream."""
        answer: schemas.CompletionResult = {
            "index": index,
            "content": result.text,
            "tokens": result.tokens if self._with_tokens else [],
            "id_slot": result.id_slot,
            "stop": True,
            "model": self._model,
            "tokens_predicted": result.n_decoded,
            "tokens_evaluated": result.n_prompt,
            "tokens_cached": result.timings.cache_n,
            "generation_settings": settings_json(
                result.params, self._n_ctx, self._model, self._reasoning_format
            ),
            "prompt": result.prompt,
            "has_new_line": result.has_new_line,
            "truncated": result.truncated,
            "stop_type": result.stop_type,
            "stopping_word": result.stopping_word,
            "timings": timings_json(result.timings),
        }
        if result.deadline:
            answer["deadline"] = DEADLINES[result.deadline]
        if self._probabilities and (result.probs or not self._stream):
            answer["completion_probabilities"] = self._probabilities.later(result.probs)
        return select(self._response_fields, answer) if self._response_fields else answer
