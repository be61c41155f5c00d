"""OpenAI's responses."""

from collections.abc import Mapping
from typing import Any

import handlers.apis.responses.format
import handlers.apis.responses.stream
import handlers.http.sse
import handlers.responses
from contract_tests.kit.checks import chats, generation
from contract_tests.own.mutants.mutant import Mutants, Replace
from engine.chat.output import ChatMessage
from engine.protocol.messages import Finished
from handlers.apis.responses.format import Event, Output, Status
from handlers.apis.responses.items import Item
from handlers.apis.responses.stream import ResponsesFormat
from handlers.running.chat_batch import ChatEvent
from handlers.running.response_store import ResponseStore

MUTANTS = Mutants("OpenAI's responses")


@MUTANTS.caught_by(chats.events_of_responses_are_in_order, "are numbered", lies=True)
def numbers_of_events_jump(replace: Replace) -> None:
    """`sequence_number` counts by two."""
    original = ResponsesFormat._frame

    def frame(self: ResponsesFormat, event: Event) -> bytes:
        self._number += 1
        return original(self, event)

    replace(ResponsesFormat, "_frame", frame)


@MUTANTS.caught_by(chats.events_of_responses_are_in_order, "response.in_progress", lies=True)
def events_begin_in_another_order(replace: Replace) -> None:
    """A response is in progress before it is created."""

    def begin(self: ResponsesFormat, event: ChatEvent) -> bytes:
        return self._lifecycle("response.in_progress") + self._lifecycle("response.created")

    replace(ResponsesFormat, "begin", begin)


@MUTANTS.caught_by(chats.events_of_responses_are_in_order, "the last of", lies=True)
def responses_have_no_end(replace: Replace) -> None:
    """The last event is missing, which has the whole response."""
    original = ResponsesFormat.end

    async def end(self: ResponsesFormat) -> bytes:
        await original(self)
        return b""

    replace(ResponsesFormat, "end", end)


@MUTANTS.caught_by(chats.events_of_responses_are_in_order, "event 0, ")
def events_of_responses_have_other_names(replace: Replace) -> None:
    """The name of an event is not its `type`."""
    original = handlers.http.sse.sse_event

    def sse_event(data: Any, event: str | None = None) -> bytes:
        return original(data, f"{event}.event")

    replace(handlers.apis.responses.stream, "sse_event", sse_event)


@MUTANTS.caught_by(chats.events_of_responses_are_in_order, "==", lies=True)
def deltas_of_responses_are_empty(replace: Replace) -> None:
    """The pieces of a text come without the text."""
    original = Output._text

    def text(self: Output, text: str, **more: Any) -> Event:
        return {**original(self, text, **more), "delta": ""}

    replace(Output, "_text", text)


@MUTANTS.caught_by(chats.events_of_responses_are_in_order, "without response.output_item.done")
def items_are_never_done(replace: Replace) -> None:
    """`response.output_item.done` is missing."""
    original = Output.finish

    def finish(self: Output, status: Status) -> list[Event]:
        done = "response.output_item.done"
        return [each for each in original(self, status) if each["type"] != done]

    replace(Output, "finish", finish)


@MUTANTS.caught_by(generation.limits_of_conversations_hold, "incomplete", lies=True)
def every_response_is_complete(replace: Replace) -> None:
    """`status` is `completed` where the limit was reached."""

    def status_of(message: ChatMessage, finished: Finished) -> Status:
        return "completed"

    replace(handlers.apis.responses.stream, "status_of", status_of)


@MUTANTS.caught_by(chats.conversations_are_counted_as_they_are_read, "create_response", lies=True)
def responses_do_not_count_their_prompt(replace: Replace) -> None:
    """`total_tokens` are those of the output."""
    original = handlers.apis.responses.format.finished_response

    def finished_response(
        response: Mapping[str, Any],
        output: list[Item],
        status: Status,
        finished: Finished,
        reasoning_tokens: int,
    ) -> dict[str, Any]:
        right = original(response, output, status, finished, reasoning_tokens)
        usage = {**right["usage"], "total_tokens": right["usage"]["output_tokens"]}
        return {**right, "usage": usage}

    replace(handlers.responses, "finished_response", finished_response)


@MUTANTS.caught_by(chats.responses_are_kept, "expected 200, got .* 404", lies=True)
def responses_are_forgotten(replace: Replace) -> None:
    """A response that was to be kept isn't."""

    async def save(self: ResponseStore, response: dict[str, Any], input: list[Item]) -> None:
        return None

    replace(ResponseStore, "save", save)


@MUTANTS.caught_by(chats.responses_are_kept, "expected 404, got .* 200", lies=True)
def responses_cannot_be_deleted(replace: Replace) -> None:
    """A response that was deleted is still there."""

    async def delete(self: ResponseStore, id: str) -> None:
        return None

    replace(ResponseStore, "delete", delete)


@MUTANTS.caught_by(chats.calls_of_responses_have_their_arguments, "==|not JSON", lies=True)
def arguments_of_responses_are_cut(replace: Replace) -> None:
    """A call's `arguments` end before their last character."""
    original = Output._close

    def close(self: Output, status: Status) -> list[Event]:
        if self._open and self.items[-1]["type"] == "function_call":
            self._pieces[-1:] = [self._pieces[-1][:-1]]
        return original(self, status)

    replace(Output, "_close", close)
