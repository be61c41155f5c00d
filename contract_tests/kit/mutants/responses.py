"""OpenAI's responses."""

import base64
import itertools
from collections.abc import AsyncIterator, Callable
from typing import Any

from contract_tests.kit.checks import chats, generation
from contract_tests.kit.mutants.exchange import Answer, Event, Mutation, PassOn, Request, dumps
from contract_tests.kit.mutants.mutant import Mutants
from contract_tests.kit.mutants.mutations import at, bodies, documents, events, plain, streams

MUTANTS = Mutants("OpenAI's responses")

RESPONSE = "create_response"


def _change_events(change: Callable[[Any], Any]) -> Mutation:
    """Changes the documents of events. The name of an event follows its `type`."""

    def changed(event: Event) -> list[Event]:
        new = change(event.json)
        return [event if new == event.json else Event(event.with_json(new).data, new["type"])]

    return events(changed, RESPONSE)


@MUTANTS.caught_by(chats.events_of_responses_are_in_order, "are numbered", as_described=True)
def numbers_of_events_jump() -> Mutation:
    """`sequence_number` counts by two."""
    return _change_events(at("sequence_number", lambda number: 2 * number + 1))


@MUTANTS.caught_by(
    chats.events_of_responses_are_in_order, "response.in_progress", as_described=True
)
def events_begin_in_another_order() -> Mutation:
    """A response is in progress before it is created."""
    other = {
        "response.created": "response.in_progress",
        "response.in_progress": "response.created",
    }
    return _change_events(at("type", lambda type: other.get(type, type)))


def _left_out(*types: str) -> Mutation:
    """Drops events of these types. All others are numbered without a gap."""

    async def change(events: AsyncIterator[Event]) -> AsyncIterator[Event]:
        numbers = itertools.count()
        async for event in events:
            document = event.json
            if document is None:
                yield event
            elif document["type"] not in types:
                yield event.with_json({**document, "sequence_number": next(numbers)})

    return streams(change, RESPONSE)


@MUTANTS.caught_by(chats.events_of_responses_are_in_order, "the last of", as_described=True)
def responses_have_no_end() -> Mutation:
    """The last event, which has the whole response, is missing."""
    return _left_out("response.completed", "response.incomplete")


@MUTANTS.caught_by(chats.events_of_responses_are_in_order, "event 0, ")
def events_of_responses_have_other_names() -> Mutation:
    """The name of an event is not its `type`."""
    return events(lambda event: [Event(event.data, f"{event.name}.event")], RESPONSE)


@MUTANTS.caught_by(chats.events_of_responses_are_in_order, "==", as_described=True)
def deltas_of_responses_are_empty() -> Mutation:
    """The deltas of a text have no text."""
    return _change_events(
        lambda event: (
            {**event, "delta": ""} if event["type"] == "response.output_text.delta" else event
        )
    )


@MUTANTS.caught_by(chats.events_of_responses_are_in_order, "without response.output_item.done")
def items_are_never_done() -> Mutation:
    """`response.output_item.done` is missing."""
    return _left_out("response.output_item.done")


@MUTANTS.caught_by(generation.limits_of_conversations_hold, "incomplete", as_described=True)
def every_response_is_complete() -> Mutation:
    """`status` is `completed` although the limit was reached."""

    def change(response: dict[str, Any]) -> dict[str, Any]:
        if response.get("status") != "incomplete":
            return response
        return {**response, "status": "completed", "incomplete_details": None}

    return plain(change, RESPONSE)


@MUTANTS.caught_by(
    chats.conversations_are_counted_as_they_are_read, "create_response", as_described=True
)
def responses_do_not_count_their_prompt() -> Mutation:
    """`total_tokens` counts the output alone."""
    return plain(
        at("usage", lambda usage: {**usage, "total_tokens": usage["output_tokens"]}), RESPONSE
    )


@MUTANTS.caught_by(chats.responses_are_kept, "expected 200, got .* 404", as_described=True)
def responses_are_forgotten() -> Mutation:
    """A response with `store: true` isn't stored."""
    return bodies(lambda body: {**body, "store": False}, RESPONSE)


@MUTANTS.caught_by(chats.conversations_grow, "are missing", as_described=True)
def conversations_are_not_read() -> Mutation:
    """`conversation` is ignored."""

    def change(body: dict[str, Any]) -> dict[str, Any]:
        return {key: value for key, value in body.items() if key != "conversation"}

    return bodies(change, RESPONSE)


@MUTANTS.caught_by(chats.conversations_grow, "the items of a conversation", as_described=True)
def conversations_do_not_grow() -> Mutation:
    """A response isn't added to its conversation."""

    def change(body: dict[str, Any]) -> dict[str, Any]:
        return {**body, "store": False} if "conversation" in body else body

    return bodies(change, RESPONSE)


@MUTANTS.caught_by(chats.compactions_are_sealed, "read by everybody", as_described=True)
def compactions_are_readable() -> Mutation:
    """A compaction is the input in Base64."""
    said = ""

    async def mutation(request: Request, pass_on: PassOn) -> Answer:
        nonlocal said
        answer = await pass_on(request)
        if request.operation != "compact_response" or not answer.is_success:
            return answer
        said = base64.urlsafe_b64encode(dumps(request.json).encode()).decode()
        return await answer.changed_json(at("output.*", of_item))

    def of_item(item: dict[str, Any]) -> dict[str, Any]:
        return {**item, "encrypted_content": said} if item["type"] == "compaction" else item

    return mutation


def _without_compactions(items: Any) -> Any:
    if not isinstance(items, list):
        return items
    return [each for each in items if each.get("type") != "compaction"]


@MUTANTS.caught_by(chats.compactions_are_sealed, "is not read", as_described=True)
def compactions_are_not_read() -> Mutation:
    """Compactions in the input are ignored, changed ones as well."""
    return bodies(at("input", _without_compactions), RESPONSE)


@MUTANTS.caught_by(chats.compactions_are_sealed, "expected 400, got .* 200", as_described=True)
def changed_compactions_are_accepted() -> Mutation:
    """A compaction that the server didn't make is ignored, and the request is answered."""

    async def mutation(request: Request, pass_on: PassOn) -> Answer:
        answer = await pass_on(request)
        if request.operation != RESPONSE or answer.status != 400:
            return answer
        other = at("input", _without_compactions)(request.json)
        return await pass_on(request.with_json(other))

    return mutation


@MUTANTS.caught_by(chats.responses_are_kept, "expected 404, got .* 200", as_described=True)
def responses_cannot_be_deleted() -> Mutation:
    """A deleted response is still there."""

    async def mutation(request: Request, pass_on: PassOn) -> Answer:
        if request.operation != "delete_response":
            return await pass_on(request)
        id = request.path.rpartition("/")[2]
        return Answer.of(200, {"id": id, "object": "response", "deleted": True})

    return mutation


@MUTANTS.caught_by(chats.calls_of_responses_have_their_arguments, "==|not JSON", as_described=True)
def arguments_of_responses_are_cut() -> Mutation:
    """A call's `arguments` end before their last character."""

    def of_item(item: dict[str, Any]) -> dict[str, Any]:
        is_call = item["type"] == "function_call" and item["status"] != "in_progress"
        return {**item, "arguments": item["arguments"][:-1]} if is_call else item

    def change(document: dict[str, Any]) -> dict[str, Any]:
        if document.get("type") == "response.function_call_arguments.done":
            document = at("arguments", lambda text: text[:-1])(document)
        for path in ("output.*", "item", "response.output.*"):
            document = at(path, of_item)(document)
        return document

    return documents(change, RESPONSE)
