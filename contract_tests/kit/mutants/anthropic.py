"""Anthropic's messages."""

from typing import Any

from contract_tests.kit.checks import chats, generation
from contract_tests.kit.mutants.exchange import Event, Mutation
from contract_tests.kit.mutants.mutant import Mutants
from contract_tests.kit.mutants.mutations import at, documents, errors, events, instead, plain

MUTANTS = Mutants("Anthropic's messages")

MESSAGE = "create_message"


def _left_out(name: str) -> Mutation:
    return events(lambda event: [] if event.name == name else [event], MESSAGE)


@MUTANTS.caught_by(chats.events_of_messages_are_in_order, "a message ends so", as_described=True)
def messages_have_no_end() -> Mutation:
    """`message_stop` is missing."""
    return _left_out("message_stop")


@MUTANTS.caught_by(chats.events_of_messages_are_in_order, "message_start", as_described=True)
def messages_begin_twice() -> Mutation:
    """A second `message_start` follows the first."""

    def change(event: Event) -> list[Event]:
        return [event, event] if event.name == "message_start" else [event]

    return events(change, MESSAGE)


@MUTANTS.caught_by(
    chats.events_of_messages_are_in_order, "a block is never ended", as_described=True
)
def blocks_have_no_end() -> Mutation:
    """`content_block_stop` is missing."""
    return _left_out("content_block_stop")


@MUTANTS.caught_by(chats.events_of_messages_are_in_order, "in the place of 0", as_described=True)
def blocks_count_from_one() -> Mutation:
    """The first block's `index` is 1."""
    return documents(at("index", lambda index: index + 1), MESSAGE)


@MUTANTS.caught_by(chats.chats_stop_at_their_stop_strings, "stop_sequence", as_described=True)
def stop_sequences_are_not_reported() -> Mutation:
    """`stop_reason` is `end_turn` where a stop sequence was met."""
    return _end_of_turn_for("stop_sequence")


@MUTANTS.caught_by(generation.limits_of_conversations_hold, "create_message", as_described=True)
def messages_end_for_another_reason() -> Mutation:
    """`stop_reason` is `end_turn` where the limit was reached."""
    return _end_of_turn_for("max_tokens")


def _end_of_turn_for(reason: str) -> Mutation:
    """Replaces the stop reason `reason` by `end_turn`."""
    change = instead(reason, "end_turn")
    return documents(
        lambda document: at("delta.stop_reason", change)(at("stop_reason", change)(document)),
        MESSAGE,
    )


@MUTANTS.caught_by(
    chats.conversations_are_counted_as_they_are_read, "create_message", as_described=True
)
def cached_tokens_count_twice() -> Mutation:
    """`input_tokens` also counts the cached tokens."""

    def change(usage: dict[str, Any]) -> dict[str, Any]:
        cached = usage["cache_read_input_tokens"]
        read = usage["input_tokens"] + cached
        return {**usage, "input_tokens": read, "cache_read_input_tokens": max(cached, 1)}

    return documents(
        lambda document: at("message.usage", change)(at("usage", change)(document)), MESSAGE
    )


@MUTANTS.caught_by(
    chats.conversations_are_counted_as_they_are_read, "create_message", as_described=True
)
def messages_are_counted_short() -> Mutation:
    """Counting a conversation's tokens in advance is off by one."""
    return plain(at("input_tokens", lambda n: n - 1), "count_message_tokens")


@MUTANTS.caught_by(
    chats.thoughts_stay_apart, "thoughts in the text of a message", as_described=True
)
def thoughts_are_text() -> Mutation:
    """The text of a message begins with the reasoning."""

    def change(blocks: list[Any]) -> list[Any]:
        thoughts = "".join(block.get("thinking", "") for block in blocks)
        texts = [block for block in blocks if block["type"] == "text"]
        if not texts:
            return [*blocks, {"type": "text", "text": thoughts}] if thoughts else blocks
        said = {**texts[0], "text": thoughts + texts[0]["text"]}
        return [said if block is texts[0] else block for block in blocks]

    return plain(at("content", change), MESSAGE)


@MUTANTS.caught_by(
    chats.calls_of_messages_have_their_arguments, "not by the tool's schema", as_described=True
)
def inputs_of_tools_are_empty() -> Mutation:
    """The `input` of a call is an empty object."""
    return plain(at("content.*.input", lambda arguments: {}), MESSAGE)


@MUTANTS.caught_by(chats.errors_of_messages_have_their_form, "400")
def anthropics_clients_get_the_envelope() -> Mutation:
    """Errors have OpenAI's form."""
    return errors(
        lambda status, document: {"error": {"code": status, **document["error"]}},
        MESSAGE,
        "count_message_tokens",
    )
