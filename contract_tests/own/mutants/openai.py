"""OpenAI's completions and chats."""

from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from typing import Any

import msgspec
from starlette.responses import Response

import handlers.apis.openai.format
import handlers.chat
import handlers.http.sse
import handlers.running.chat_batch
import handlers.running.respond
import handlers.running.templates
from contract_tests.kit import checks
from contract_tests.kit.checks import chats, generation
from contract_tests.own.mutants.mutant import Mutants, Replace
from engine.chat.output import ChatMessage, ToolCall
from engine.chat.prompt import ChatPrompt
from engine.chat.request import ChatRequest
from engine.pool.client import EngineClient
from engine.protocol.messages import Delta, Finished, StopType
from handlers.apis.openai.format import ChatFormat, TextFormat
from handlers.http.errors import Failure
from handlers.http.sse import DONE, EVENT_STREAM, Ping, error_frame
from handlers.running.chat_batch import ChatAnswer, FinishReason
from handlers.running.served import Served

MUTANTS = Mutants("OpenAI's completions and chats")


def _change_usage(replace: Replace, change: Callable[[dict[str, Any]], dict[str, Any]]) -> None:
    original = handlers.apis.openai.format.usage

    def usage(
        results: Sequence[Finished], prompts: Sequence[Finished] | None = None
    ) -> dict[str, Any]:
        return change(original(results, prompts))

    replace(handlers.apis.openai.format, "usage", usage)


@MUTANTS.caught_by(checks.counts_add_up, "completion_tokens.*6.*5", lies=True)
def usage_is_off_by_one(replace: Replace) -> None:
    """`completion_tokens` has one too many."""
    _change_usage(replace, lambda u: {**u, "completion_tokens": u["completion_tokens"] + 1})


@MUTANTS.caught_by(checks.counts_add_up, "total_tokens", lies=True)
def totals_are_no_sums(replace: Replace) -> None:
    """`total_tokens` are those of the prompt."""
    _change_usage(replace, lambda u: {**u, "total_tokens": u["prompt_tokens"]})


@MUTANTS.caught_by(generation.cached_tokens_are_the_same_everywhere, "==", lies=True)
def cached_tokens_are_off_by_one(replace: Replace) -> None:
    """`cached_tokens` has one too many."""

    def change(right: dict[str, Any]) -> dict[str, Any]:
        cached = right["prompt_tokens_details"]["cached_tokens"] + 1
        return {**right, "prompt_tokens_details": {"cached_tokens": cached}}

    _change_usage(replace, change)


@MUTANTS.caught_by(checks.plain_answers_are_as_described, "completions", lies=False)
def usage_is_null(replace: Replace) -> None:
    """A number of tokens is null."""
    _change_usage(replace, lambda right: {**right, "prompt_tokens": None})


@MUTANTS.caught_by(generation.limits_of_tokens_hold, "create_openai_completion", lies=True)
def completions_end_for_another_reason(replace: Replace) -> None:
    """`finish_reason` is `stop` where the limit was reached."""

    def text_finish_reason(stop_type: StopType) -> str:
        return "stop"

    replace(handlers.apis.openai.format, "text_finish_reason", text_finish_reason)


@MUTANTS.caught_by(generation.limits_of_tokens_hold, "a stream of chat completions", lies=True)
def streamed_chats_end_for_another_reason(replace: Replace) -> None:
    """The same in a stream of a chat only."""

    def finish_reason(message: ChatMessage, finished: Finished) -> FinishReason:
        return "stop"

    replace(handlers.apis.openai.format, "finish_reason", finish_reason)


# ---- streams ---------------------------------------------------------------------------------


@MUTANTS.caught_by(checks.streams_are_as_described, "DONE")
def streams_have_no_end(replace: Replace) -> None:
    """`[DONE]` is missing."""
    original = handlers.http.sse.event_stream

    async def endless(frames: AsyncIterator[bytes]) -> AsyncIterator[bytes]:
        async for each in frames:
            if each != DONE:
                yield each

    def event_stream(
        frames: AsyncIterator[bytes],
        *,
        failed: Callable[[Failure], bytes] = error_frame,
        ping: Ping | None = None,
        headers: Mapping[str, str] | None = None,
        media_type: str = EVENT_STREAM,
    ) -> Response:
        return original(
            endless(frames), failed=failed, ping=ping, headers=headers, media_type=media_type
        )

    replace(handlers.running.respond, "event_stream", event_stream)


@MUTANTS.caught_by(checks.streams_are_as_described, "text/plain")
def streams_are_announced_as_text(replace: Replace) -> None:
    """The content type of events is text/plain."""
    stream = handlers.http.sse._EventStream
    original = stream.__init__

    def lie(
        self: handlers.http.sse._EventStream,
        frames: AsyncIterator[bytes],
        failed: Callable[[Failure], bytes],
        ping: Ping | None,
        headers: Mapping[str, str],
        media_type: str,
    ) -> None:
        original(self, frames, failed, ping, headers, "text/plain")

    replace(stream, "__init__", lie)


@MUTANTS.caught_by(
    checks.streams_say_the_same_as_plain_answers, "create_openai_completion", lies=True
)
def streams_repeat_a_piece(replace: Replace) -> None:
    """Every piece of text comes twice."""
    original = TextFormat.delta

    def delta(self: TextFormat, index: int, event: Delta) -> bytes:
        return original(self, index, event) * 2

    replace(TextFormat, "delta", delta)


@MUTANTS.caught_by(generation.streams_end_once, "a stream with the ids", lies=True)
def streams_change_their_id(replace: Replace) -> None:
    """The last chunk of a chat has an id of its own."""
    original = ChatFormat._finish

    def finish(self: ChatFormat, result: Finished, message: ChatMessage, index: int) -> bytes:
        self._head = {**self._head, "id": "chatcmpl-another"}
        return original(self, result, message, index)

    replace(ChatFormat, "_finish", finish)


@MUTANTS.caught_by(checks.counts_add_up, "one more item", lies=True)
def streams_forget_their_usage(replace: Replace) -> None:
    """`include_usage` means nothing."""
    original = ChatFormat._finish

    def finish(self: ChatFormat, result: Finished, message: ChatMessage, index: int) -> bytes:
        self._include_usage = False
        return original(self, result, message, index)

    replace(ChatFormat, "_finish", finish)


# ---- messages --------------------------------------------------------------------------------


@MUTANTS.caught_by(chats.calls_have_their_arguments, "==", lies=True)
def arguments_are_cut(replace: Replace) -> None:
    """The arguments of a call end before their last character."""
    original = handlers.apis.openai.format._tool_call

    def tool_call(call: ToolCall) -> dict[str, Any]:
        return original(msgspec.structs.replace(call, arguments=call.arguments[:-1]))

    replace(handlers.apis.openai.format, "_tool_call", tool_call)


@MUTANTS.caught_by(chats.calls_have_their_arguments, "tool_calls", lies=True)
def calls_end_like_texts(replace: Replace) -> None:
    """`finish_reason` is `stop` with calls."""

    def reason(reason: FinishReason, old_calls: bool) -> str:
        return "stop" if reason == "tool_calls" else reason

    replace(handlers.apis.openai.format, "_reason", reason)


def _change_message(replace: Replace, change: Callable[[ChatMessage], ChatMessage]) -> None:
    original = handlers.apis.openai.format.chat_message

    def chat_message(message: ChatMessage, *, old_calls: bool = False) -> dict[str, Any]:
        return original(change(message), old_calls=old_calls)

    replace(handlers.apis.openai.format, "chat_message", chat_message)


@MUTANTS.caught_by(chats.thoughts_stay_apart, "thoughts in the content", lies=True)
def thoughts_are_said(replace: Replace) -> None:
    """The content begins with the thoughts."""
    _change_message(replace, lambda m: ChatMessage(m.reasoning + m.content, m.reasoning, m.calls))


@MUTANTS.caught_by(checks.plain_answers_are_as_described, "chat/completions")
def authors_are_unknown(replace: Replace) -> None:
    """A message's `role` is one that nobody has."""
    original = handlers.apis.openai.format.chat_message

    def chat_message(message: ChatMessage, *, old_calls: bool = False) -> dict[str, Any]:
        return {**original(message, old_calls=old_calls), "role": "robot"}

    replace(handlers.apis.openai.format, "chat_message", chat_message)


@MUTANTS.caught_by(generation.texts_are_as_many_as_asked_for, r"\[0, 0\]|0, 1", lies=True)
def all_choices_are_the_first(replace: Replace) -> None:
    """The `index` of every choice of a chat is 0."""
    original = ChatFormat.whole

    async def whole(self: ChatFormat, results: list[ChatAnswer]) -> dict[str, Any]:
        right = await original(self, results)
        return {**right, "choices": [{**choice, "index": 0} for choice in right["choices"]]}

    replace(ChatFormat, "whole", whole)


@MUTANTS.caught_by(chats.templates_have_all_messages, "is not in the prompt", lies=True)
def a_message_is_left_out(replace: Replace) -> None:
    """The prompt of a chat is without the first of several messages."""
    original = handlers.running.templates.rendered_prompt

    async def rendered_prompt(
        model: Served, engine: EngineClient, request: ChatRequest
    ) -> ChatPrompt:
        kept = request.messages[1:] or request.messages
        return await original(model, engine, msgspec.structs.replace(request, messages=kept))

    replace(handlers.chat, "rendered_prompt", rendered_prompt)


@MUTANTS.caught_by(
    chats.conversations_are_counted_as_they_are_read, "create_chat_completion", lies=True
)
def chats_are_counted_short(replace: Replace) -> None:
    """The count of a chat's tokens in advance is off by one."""
    original = handlers.running.chat_batch.count_tokens

    async def count_tokens(model: Served, engine: EngineClient, request: ChatRequest) -> int:
        return await original(model, engine, request) - 1

    replace(handlers.chat, "count_tokens", count_tokens)
