"""OpenAI's completions and chats."""

from collections.abc import Callable, Iterator
from typing import Any

from contract_tests.kit import checks, lint
from contract_tests.kit.checks import chats, generation
from contract_tests.kit.mutants.exchange import Answer, Event, Mutation, Request
from contract_tests.kit.mutants.mutant import Mutants
from contract_tests.kit.mutants.mutations import (
    answers,
    at,
    bodies,
    documents,
    events,
    instead,
    plain,
    without,
)

MUTANTS = Mutants("OpenAI's completions and chats")

TEXT, CHAT = "create_openai_completion", "create_chat_completion"


def _change_usage(change: Callable[[Any], Any]) -> Mutation:
    return documents(at("usage", change), TEXT, CHAT)


@MUTANTS.caught_by(checks.counts_add_up, "completion_tokens.*6.*5", as_described=True)
def usage_is_off_by_one() -> Mutation:
    """`completion_tokens` is one too high."""
    return _change_usage(at("completion_tokens", lambda n: n + 1))


@MUTANTS.caught_by(checks.counts_add_up, "total_tokens", as_described=True)
def totals_are_no_sums() -> Mutation:
    """`total_tokens` counts the prompt alone."""
    return _change_usage(lambda usage: {**usage, "total_tokens": usage["prompt_tokens"]})


@MUTANTS.caught_by(generation.cached_tokens_are_the_same_everywhere, "==", as_described=True)
def cached_tokens_are_off_by_one() -> Mutation:
    """`cached_tokens` is one too high."""
    return _change_usage(at("prompt_tokens_details.cached_tokens", lambda n: n + 1))


@MUTANTS.caught_by(checks.plain_answers_are_as_described, "completions")
def usage_is_null() -> Mutation:
    """A number of tokens is null."""
    return _change_usage(at("prompt_tokens", lambda n: None))


@MUTANTS.caught_by(generation.limits_of_tokens_hold, "create_openai_completion", as_described=True)
def completions_end_for_another_reason() -> Mutation:
    """`finish_reason` is `stop` where the limit was reached."""
    return documents(at("choices.*.finish_reason", instead("length", "stop")), TEXT)


def _of_events(change: Callable[[Any], Any]) -> Callable[[Event], Iterator[Event]]:
    def changed(event: Event) -> Iterator[Event]:
        document = event.json
        yield event if document is None else event.with_json(change(document))

    return changed


@MUTANTS.caught_by(
    generation.limits_of_tokens_hold, "a stream of chat completions", as_described=True
)
def streamed_chats_end_for_another_reason() -> Mutation:
    """In a stream of a chat, `finish_reason` is `stop` where the limit was reached."""
    return events(_of_events(at("choices.*.finish_reason", instead("length", "stop"))), CHAT)


# ---- streams ---------------------------------------------------------------------------------


@MUTANTS.caught_by(checks.streams_are_as_described, "DONE")
def streams_have_no_end() -> Mutation:
    """`[DONE]` is missing."""
    return events(lambda event: [] if event.data == "[DONE]" else [event], TEXT, CHAT)


@MUTANTS.caught_by(checks.streams_are_as_described, "text/plain")
def streams_are_announced_as_text() -> Mutation:
    """The content type of events is text/plain."""

    def change(_: Request, answer: Answer) -> Answer:
        is_stream = answer.kind == lint.EVENT_STREAM
        return answer.with_header("Content-Type", "text/plain") if is_stream else answer

    return answers(change)


def _is_last(event: Event) -> bool:
    """True if the event has a finish reason."""
    document = event.json
    return isinstance(document, dict) and any(c["finish_reason"] for c in document["choices"])


@MUTANTS.caught_by(
    checks.streams_say_the_same_as_plain_answers, "create_openai_completion", as_described=True
)
def streams_repeat_a_piece() -> Mutation:
    """Every piece of text is sent twice."""

    def change(event: Event) -> list[Event]:
        return [event] if event.json is None or _is_last(event) else [event, event]

    return events(change, TEXT)


@MUTANTS.caught_by(generation.streams_end_once, "a stream with the ids", as_described=True)
def streams_change_their_id() -> Mutation:
    """The last chunk of a chat has an id of its own."""

    def change(event: Event) -> list[Event]:
        if not _is_last(event):
            return [event]
        return [event.with_json({**event.json, "id": "chatcmpl-another"})]

    return events(change, CHAT)


@MUTANTS.caught_by(checks.counts_add_up, "one more item", as_described=True)
def streams_forget_their_usage() -> Mutation:
    """`include_usage` is ignored."""
    return bodies(without("stream_options"), CHAT)


# ---- messages --------------------------------------------------------------------------------


@MUTANTS.caught_by(chats.calls_have_their_arguments, "==", as_described=True)
def arguments_are_cut() -> Mutation:
    """The arguments of a call end before their last character."""
    path = "choices.*.message.tool_calls.*.function.arguments"
    return plain(at(path, lambda text: text[:-1]), CHAT)


@MUTANTS.caught_by(chats.calls_have_their_arguments, "tool_calls", as_described=True)
def calls_end_like_texts() -> Mutation:
    """`finish_reason` is `stop` although there are calls."""
    return documents(at("choices.*.finish_reason", instead("tool_calls", "stop")), CHAT)


def _change_messages(change: Callable[[Any], Any]) -> Mutation:
    return plain(at("choices.*.message", change), CHAT)


@MUTANTS.caught_by(chats.thoughts_stay_apart, "thoughts in the content", as_described=True)
def thoughts_are_said() -> Mutation:
    """The content begins with the reasoning."""

    def change(message: dict[str, Any]) -> dict[str, Any]:
        thoughts = message.get("reasoning_content") or ""
        return {**message, "content": thoughts + (message["content"] or "")}

    return _change_messages(change)


@MUTANTS.caught_by(checks.plain_answers_are_as_described, "chat/completions")
def authors_are_unknown() -> Mutation:
    """The `role` of a message is `robot`."""
    return _change_messages(at("role", lambda role: "robot"))


@MUTANTS.caught_by(generation.texts_are_as_many_as_asked_for, r"\[0, 0\]|0, 1", as_described=True)
def all_choices_are_the_first() -> Mutation:
    """The `index` of every choice of a chat is 0."""
    return plain(at("choices.*.index", lambda index: 0), CHAT)


@MUTANTS.caught_by(chats.templates_have_all_messages, "is not in the prompt", as_described=True)
def a_message_is_left_out() -> Mutation:
    """The prompt of a chat lacks the first of several messages."""
    return bodies(at("messages", lambda all: all[1:] or all), CHAT, "apply_template")


@MUTANTS.caught_by(
    chats.conversations_are_counted_as_they_are_read, "create_chat_completion", as_described=True
)
def chats_are_counted_short() -> Mutation:
    """Counting a chat's tokens in advance is off by one."""
    return plain(at("input_tokens", lambda n: n - 1), "count_chat_tokens")
