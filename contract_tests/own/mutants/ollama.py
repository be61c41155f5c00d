"""Ollama's API."""

from collections.abc import Callable
from typing import Any

import msgspec
from starlette.types import Scope

import handlers.apis.ollama.format
import handlers.apis.ollama.generation
from contract_tests.kit import checks
from contract_tests.kit.checks import chats
from contract_tests.own.mutants.mutant import Mutants, Replace
from engine.chat.output import ChatMessage
from engine.protocol.messages import Finished
from handlers.apis.ollama.format import OllamaFormat, Watch
from handlers.apis.ollama.generation import GenerationFormat
from handlers.http import errors
from handlers.running.chat_batch import ChatAnswer, ChatEvent

MUTANTS = Mutants("Ollama's API")


@MUTANTS.caught_by(checks.ollamas_clients_are_served, "'string'", lies=True)
def ollama_gets_the_envelope(replace: Replace) -> None:
    """Errors have OpenAI's form."""

    def envelope_name(scope: Scope) -> str | None:
        return None

    replace(errors, "_envelope_name", envelope_name)


@MUTANTS.caught_by(chats.lines_of_ollama_end_once, "/api/chat", lies=True)
def lines_have_no_end(replace: Replace) -> None:
    """No line of a chat has `done`."""
    original = OllamaFormat.event

    def event(self: OllamaFormat, event: ChatEvent) -> bytes:
        made = original(self, event)
        if not event.is_last:
            return made
        kept = [line for line in made.splitlines(keepends=True) if b'"done":true' not in line]
        return b"".join(kept)

    replace(OllamaFormat, "event", event)


@MUTANTS.caught_by(checks.ollamas_clients_are_served, "==", lies=True)
def lines_repeat_a_piece(replace: Replace) -> None:
    """Every line of a generation comes twice."""
    original = GenerationFormat.event

    def event(self: GenerationFormat, event: ChatEvent) -> bytes:
        return original(self, event) * 2

    replace(GenerationFormat, "event", event)


@MUTANTS.caught_by(chats.thoughts_stay_apart, "thoughts in Ollama's content", lies=True)
def thoughts_are_in_the_content(replace: Replace) -> None:
    """The content of a chat begins with the thoughts."""
    original = OllamaFormat.answer

    def answer(self: OllamaFormat, answer: ChatAnswer) -> dict[str, Any]:
        said, thoughts = answer.message.content, answer.message.reasoning
        message = msgspec.structs.replace(answer.message, content=thoughts + said)
        return original(self, msgspec.structs.replace(answer, message=message))

    replace(OllamaFormat, "answer", answer)


def _change_ending(replace: Replace, change: Callable[[dict[str, Any]], dict[str, Any]]) -> None:
    original = handlers.apis.ollama.format.ending

    def ending(message: ChatMessage, result: Finished, watch: Watch) -> dict[str, Any]:
        return change(original(message, result, watch))

    replace(handlers.apis.ollama.generation, "ending", ending)


@MUTANTS.caught_by(checks.ollamas_clients_are_served, r"line \d+, ")
def a_duration_is_text(replace: Replace) -> None:
    """`total_duration` has its unit."""
    _change_ending(replace, lambda e: {**e, "total_duration": f"{e['total_duration']}ns"})


@MUTANTS.caught_by(checks.ollamas_clients_are_served, "api/generate")
def the_last_line_is_not_done(replace: Replace) -> None:
    """`done` is missing in what ends a generation, and `done_reason` is called `reason`."""
    _change_ending(
        replace,
        lambda e: {("reason" if k == "done_reason" else k): e[k] for k in e if k != "done"},
    )


@MUTANTS.caught_by(chats.lines_of_ollama_end_once, "==", lies=True)
def prompts_are_counted_short(replace: Replace) -> None:
    """`prompt_eval_count` is off by one."""
    _change_ending(replace, lambda e: {**e, "prompt_eval_count": e["prompt_eval_count"] - 1})


@MUTANTS.caught_by(chats.lines_of_ollama_end_once, "/api/generate", lies=True)
def durations_are_milliseconds(replace: Replace) -> None:
    """`total_duration` is not in nanoseconds."""
    _change_ending(replace, lambda e: {**e, "total_duration": e["total_duration"] // 1_000_000})
