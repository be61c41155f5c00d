"""Answers of OpenAI's Responses API: whole, and as server-sent events.

Events are numbered. The name of the server-sent event is also in the field `type`. llama-server's
fields `timings` and `prompt_progress` are added to OpenAI's.
"""

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import ExitStack, aclosing, suppress
from functools import partial

from starlette.types import Scope

from specllama.engine.chat.output import ChatMessage
from specllama.engine.errors import EngineError, invalid_request, server_error
from specllama.engine.wire.replies import Delta, Finished
from specllama.handlers.apis.generate import GenerationFacts
from specllama.handlers.apis.responses.format import (
    cancelled_response,
    failed_response,
    finished_response,
    new_response,
    status_of,
)
from specllama.handlers.apis.responses.output import Event, Output, Status
from specllama.handlers.apis.responses.request import ResponseRequest
from specllama.handlers.apis.results import progress_json, timings_json
from specllama.handlers.http import schemas
from specllama.handlers.http.errors import STATUS, HttpFailure, describe
from specllama.handlers.http.streams import Joined, sse_event
from specllama.handlers.running.chat_batch import ChatAnswer, ChatEvent
from specllama.handlers.running.response_store import Responses, StoredResponse
from specllama.handlers.running.sealing import Seal

Complete = Callable[[Status, Finished], Awaitable[schemas.ResponseObject]]


def response_form(
    request: ResponseRequest, facts: GenerationFacts, *, store: Responses, seal: Seal | None = None
) -> "ResponsesFormat":
    """Returns the format of one answer, which is saved in `store` if the request's `store` isn't
    false, and whose reasoning is returned sealed as well with `seal`."""
    response = new_response(request.body, facts.model, facts.params, request.id)
    output = Output(request.probabilities, request.places, seal)

    async def complete(status: Status, finished: Finished) -> schemas.ResponseObject:
        n_reasoning = await facts.n_written(output.reasoning())
        whole = finished_response(response, output.items, status, finished, n_reasoning)
        # A cancelled request doesn't interrupt the write.
        write = partial(store.end, patient=True) if whole["background"] else store.save
        await asyncio.shield(write(whole, request.items))
        return whole

    return ResponsesFormat(
        response,
        output,
        complete,
        timings_per_token=facts.params.timings_per_token,
        generates=request.body.get("generate") is not False,
        compaction=None if request.compaction is None else request.compaction.item,
    )


class ResponsesFormat:
    """The answer to one request (`handlers.running.respond.Format`). `response` is the response
    before its generation; `output` collects the generated items; `complete` makes the whole
    response from both, and stores it if requested. Without `generates`, only the prompt is
    evaluated, and the response is complete without output. The output begins with `compaction`, if
    there was one."""

    def __init__(
        self,
        response: schemas.ResponseObject,
        output: Output,
        complete: Complete,
        *,
        timings_per_token: bool = False,
        generates: bool = True,
        compaction: schemas.ResponseCompaction | None = None,
    ) -> None:
        self._complete = complete
        self._generates = generates
        self._compaction = compaction
        self._end: tuple[Status, Finished] | None = None
        self.response = response
        """The response before its generation."""
        self._output = output
        self._timings_per_token = timings_per_token
        self.completed = False
        """Whether the generation has ended, so that the response is complete."""

    def begin(self, event: ChatEvent) -> bytes:
        created: schemas.ResponseCreatedEvent = {
            "type": "response.created",
            "response": self.response,
            "sequence_number": self._output.number(),
        }
        begun: schemas.ResponseInProgressEvent = {
            "type": "response.in_progress",
            "response": self.response,
            "sequence_number": self._output.number(),
        }
        return _frame(created) + _frame(begun) + b"".join(map(_frame, self._compacted()))

    def _compacted(self) -> list[Event]:
        """Adds the compaction to the output, if there was one, and returns its events."""
        return [] if self._compaction is None else self._output.put(self._compaction)

    def event(self, event: ChatEvent) -> bytes:
        """Returns the events for one engine event; possibly empty."""
        source = event.source
        if isinstance(source, Delta) and (progress := progress_json(source.progress)):
            return self._progress(progress)
        with_timings = self._timings_per_token and event.deltas
        timings = timings_json(source.timings) if with_timings else None
        data = b"".join(map(_frame, self._output.feed(event, timings)))
        if isinstance(source, Finished):
            status, last = self._finish(event.message, source)
            self._end = status, source
            data += b"".join(map(_frame, last))
        return data

    def _finish(self, message: ChatMessage, finished: Finished) -> tuple[Status, list[Event]]:
        """Ends the output. Returns the response's status, and the last events of its items."""
        if not self._generates:
            return "completed", []
        status = status_of(message, finished)
        return status, self._output.finish(status)

    def _progress(self, progress: schemas.PromptProgress) -> bytes:
        return _frame(
            {
                "type": "response.in_progress",
                "response": self.response,
                "prompt_progress": progress,
                "sequence_number": self._output.number(),
            }
        )

    async def end(self) -> bytes:
        """Returns the last event, with the whole response."""
        assert self._end is not None, "the events of a generation end with a result or an error"
        status, finished = self._end
        self.completed = True
        response = await self._complete(status, finished)
        if status == "completed":
            return _frame(
                {
                    "type": "response.completed",
                    "response": response,
                    "timings": timings_json(finished.timings),
                    "sequence_number": self._output.number(),
                }
            )
        return _frame(
            {
                "type": "response.incomplete",
                "response": response,
                "timings": timings_json(finished.timings),
                "sequence_number": self._output.number(),
            }
        )

    async def whole(self, results: list[ChatAnswer]) -> schemas.WholeResponse:
        [answer] = results
        self._compacted()
        for event in answer.events:
            self._output.feed(event)
        status, _ = self._finish(answer.message, answer.finished)
        response = await self._complete(status, answer.finished)
        return {**response, "timings": timings_json(answer.finished.timings)}

    def failed(self, failure: HttpFailure) -> bytes:
        """Returns two events for a failure: `response.failed`, and `error`, with which every failed
        stream of this server ends. OpenAI's library raises an exception for `error`."""
        failed: schemas.ResponseFailedEvent = {
            "type": "response.failed",
            "response": failed_response(self.response, self._output.items, failure),
            "sequence_number": self._output.number(),
        }
        error: schemas.ResponseErrorEvent = {
            "type": "error",
            "code": failure.info.type,
            "message": failure.info.message,
            "param": None,
            "error": failure.envelope()["error"],
            "sequence_number": self._output.number(),
        }
        return _frame(failed) + _frame(error)


def _frame(event: Event) -> bytes:
    return sse_event(event, event["type"])


# ---- Responses in the background, which are generated whether or not the client waits.
#
# Such a response is generated as a stream. A client that requests the stream receives it until it
# disconnects. The store has the response from its beginning, and gets it again at its end:
# completed, incomplete, failed or cancelled.


Keep = Callable[[schemas.ResponseObject], Awaitable[None]]


def check_kept(body: schemas.ResponseRequest) -> None:
    """Raises EngineError (invalid_request_error) for a response in the background that isn't
    stored, since no client could read it."""
    if body.get("background") and body.get("store") is False:
        raise invalid_request("background: the response must be stored, so store can't be false")


class Listener:
    """The frames of a response for the client that requested the stream, until it disconnects."""

    def __init__(self, *, gone: bool = False) -> None:
        self._queue: asyncio.Queue[bytes | Exception | None] = asyncio.Queue()
        self._gone = gone

    def put(self, frame: bytes | Exception | None) -> None:
        """Adds a frame, the exception that replaces all frames, or None for the end."""
        if not self._gone:
            self._queue.put_nowait(frame)

    async def frames(self) -> AsyncGenerator[bytes, None]:
        """Yields the frames. Raises the exception that ended the response before the first one."""
        try:
            while (frame := await self._queue.get()) is not None:
                if isinstance(frame, Exception):
                    raise frame
                yield frame if self._queue.empty() else Joined(frame)
        finally:
            self._gone = True


async def to_the_end(
    frames: AsyncGenerator[bytes, None],
    form: ResponsesFormat,
    shown: schemas.ResponseObject,
    keep: Keep,
    listener: Listener,
    held: ExitStack,
    scope: Scope,
) -> None:
    """Runs the response of `form` to its end, and then releases `held`. `shown` is the response for
    requests that read it meanwhile. `keep` stores a response that fails or is cancelled; `form`
    itself stores a complete one."""
    with held:
        try:
            async with aclosing(frames):
                async for frame in frames:
                    shown["status"] = "in_progress"
                    listener.put(frame)
        except asyncio.CancelledError:
            if not form.completed:
                with suppress(EngineError):  # the response will be lost
                    await keep(cancelled_response(shown))
        except Exception as error:
            failure = describe(error, scope)
            listener.put(error if shown["status"] == "queued" else form.failed(failure))
            if not form.completed:
                with suppress(EngineError):
                    await keep(failed_response(shown, [], failure))
        finally:
            listener.put(None)


def present(stored: StoredResponse) -> schemas.ResponseObject:
    """Returns a stored response for the client. A lost one has failed."""
    if not stored.is_lost:
        return stored.response
    error = server_error("the server process of this response has ended, or couldn't store it")
    return failed_response(stored.response, [], HttpFailure(STATUS[error.info.type], error.info))
