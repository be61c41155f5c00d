"""Anthropic's messages."""

from typing import Any

from starlette.types import Scope

import handlers.apis.anthropic.format
import handlers.messages
import handlers.running.chat_batch
from contract_tests.kit.checks import chats, generation
from contract_tests.own.mutants.mutant import Mutants, Replace
from engine.chat.output import ChatMessage
from engine.chat.request import ChatRequest
from engine.pool.client import EngineClient
from engine.protocol.messages import Finished
from handlers.apis.anthropic.format import AnthropicFormat, MessageFormat, StopReason
from handlers.http import errors
from handlers.running.chat_batch import ChatEvent
from handlers.running.served import Served

MUTANTS = Mutants("Anthropic's messages")


@MUTANTS.caught_by(chats.events_of_messages_are_in_order, "a message ends so", lies=True)
def messages_have_no_end(replace: Replace) -> None:
    """`message_stop` is missing."""
    original = AnthropicFormat.event

    def event(self: AnthropicFormat, event: ChatEvent) -> bytes:
        return original(self, event).partition(b"event: message_stop")[0]

    replace(AnthropicFormat, "event", event)


@MUTANTS.caught_by(chats.events_of_messages_are_in_order, "message_start", lies=True)
def messages_begin_twice(replace: Replace) -> None:
    """A second `message_start` follows the first."""
    original = AnthropicFormat.begin

    def begin(self: AnthropicFormat, event: ChatEvent) -> bytes:
        return original(self, event) * 2

    replace(AnthropicFormat, "begin", begin)


@MUTANTS.caught_by(chats.events_of_messages_are_in_order, "a block is never ended", lies=True)
def blocks_have_no_end(replace: Replace) -> None:
    """`content_block_stop` is missing."""

    def close(self: AnthropicFormat) -> bytes:
        self._kind = None
        return b""

    replace(AnthropicFormat, "_close", close)


@MUTANTS.caught_by(chats.events_of_messages_are_in_order, "in the place of 0", lies=True)
def blocks_count_from_one(replace: Replace) -> None:
    """The first block's `index` is 1."""
    original = AnthropicFormat.begin

    def begin(self: AnthropicFormat, event: ChatEvent) -> bytes:
        self._index = 0
        return original(self, event)

    replace(AnthropicFormat, "begin", begin)


@MUTANTS.caught_by(chats.chats_stop_at_their_stop_strings, "stop_sequence", lies=True)
def stop_sequences_are_not_told(replace: Replace) -> None:
    """`stop_reason` is `end_turn` where a stop sequence was met."""
    _tell_end_of_turn(replace, "stop_sequence")


@MUTANTS.caught_by(generation.limits_of_conversations_hold, "create_message", lies=True)
def messages_end_for_another_reason(replace: Replace) -> None:
    """`stop_reason` is `end_turn` where the limit was reached."""
    _tell_end_of_turn(replace, "max_tokens")


def _tell_end_of_turn(replace: Replace, reason: StopReason) -> None:
    """`end_turn` stands for `reason`."""
    original = MessageFormat._stop_reason

    def stop_reason(self: MessageFormat, message: ChatMessage, finished: Finished) -> StopReason:
        right = original(self, message, finished)
        return "end_turn" if right == reason else right

    replace(MessageFormat, "_stop_reason", stop_reason)


@MUTANTS.caught_by(chats.conversations_are_counted_as_they_are_read, "create_message", lies=True)
def cached_tokens_count_twice(replace: Replace) -> None:
    """`input_tokens` has those that were read from the cache as well."""
    original = handlers.apis.anthropic.format._usage

    def usage(evaluated: int, cached: int, generated: int) -> dict[str, Any]:
        return original(evaluated + cached, max(cached, 1), generated)

    replace(handlers.apis.anthropic.format, "_usage", usage)


@MUTANTS.caught_by(chats.conversations_are_counted_as_they_are_read, "create_message", lies=True)
def messages_are_counted_short(replace: Replace) -> None:
    """The count of a conversation's tokens in advance is off by one."""
    original = handlers.running.chat_batch.count_tokens

    async def count_tokens(model: Served, engine: EngineClient, request: ChatRequest) -> int:
        return await original(model, engine, request) - 1

    replace(handlers.messages, "count_tokens", count_tokens)


@MUTANTS.caught_by(chats.thoughts_stay_apart, "thoughts in the text of a message", lies=True)
def thoughts_are_text(replace: Replace) -> None:
    """The text of a message begins with the thoughts."""
    original = MessageFormat._content

    def content(self: MessageFormat, message: ChatMessage) -> list[dict[str, Any]]:
        said = message.reasoning + message.content
        return original(self, ChatMessage(said, message.reasoning, message.calls))

    replace(MessageFormat, "_content", content)


@MUTANTS.caught_by(
    chats.calls_of_messages_have_their_arguments, "not by the tool's schema", lies=True
)
def inputs_of_tools_are_empty(replace: Replace) -> None:
    """`input` of a call has none of its arguments."""

    def input(arguments: str) -> Any:
        return {}

    replace(handlers.apis.anthropic.format, "_input", input)


@MUTANTS.caught_by(chats.errors_of_messages_have_their_form, "400", lies=True)
def anthropics_clients_get_the_envelope(replace: Replace) -> None:
    """Errors have OpenAI's form."""
    original = errors._envelope_name

    def envelope_name(scope: Scope) -> str | None:
        found = original(scope)
        return None if found == "anthropic" else found

    replace(errors, "_envelope_name", envelope_name)
