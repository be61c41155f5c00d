"""A response as server-sent events.

OpenAI's events are numbered, and each is named by its `type`, in the event's own field too. What
llama-server adds, `timings` and `prompt_progress`, stands beside their fields.
"""

from collections.abc import Mapping
from typing import Any

from engine.protocol.messages import Delta, Timings
from handlers.apis.native.format import progress_json
from handlers.apis.native.results import timings_json
from handlers.apis.responses.format import Event, Output, Status, failed_response
from handlers.http.errors import Failure
from handlers.http.sse import sse_event
from handlers.running.chat_batch import ChatEvent


class ResponseStream:
    """The events of one response, as bytes ready to be sent. `response` is what is known before
    it begins; `output` collects what is generated."""

    def __init__(
        self, response: Mapping[str, Any], output: Output, *, timings_per_token: bool = False
    ) -> None:
        self._response = response
        self._output = output
        self._timings_per_token = timings_per_token
        self._number = 0

    def begin(self) -> bytes:
        return self._lifecycle("response.created") + self._lifecycle("response.in_progress")

    def event(self, event: ChatEvent) -> bytes:
        """What one event of the engine gives rise to; maybe nothing."""
        source = event.source
        if isinstance(source, Delta) and source.progress:
            progress = progress_json(source.progress)
            return self._lifecycle("response.in_progress", prompt_progress=progress)
        more: dict[str, Any] = {}
        if self._timings_per_token and event.deltas:
            more["timings"] = timings_json(source.timings)
        return b"".join(self._frame({**made, **more}) for made in self._output.feed(event))

    def end_output(self, status: Status) -> bytes:
        """The last item is complete."""
        return b"".join(map(self._frame, self._output.finish(status)))

    def finish(self, response: Mapping[str, Any], timings: Timings) -> bytes:
        """The whole response; behind that the stream ends."""
        event = {"type": f"response.{response['status']}", "response": response}
        return self._frame({**event, "timings": timings_json(timings)})

    def fail(self, failure: Failure) -> bytes:
        """Tells of a failure in two ways: as the end of the response, and as the error that
        every stream of this server ends with, which OpenAI's library raises."""
        response = failed_response(self._response, self._output.items, failure)
        error = {
            "type": "error",
            "code": failure.info.type,
            "message": failure.info.message,
            "param": None,
            **failure.envelope(),
        }
        return self._frame({"type": "response.failed", "response": response}) + self._frame(error)

    def _lifecycle(self, type_: str, **more: Any) -> bytes:
        return self._frame({"type": type_, "response": self._response, **more})

    def _frame(self, event: Event) -> bytes:
        number = self._number
        self._number += 1
        return sse_event({**event, "sequence_number": number}, event["type"])
