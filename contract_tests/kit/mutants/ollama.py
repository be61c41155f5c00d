"""Ollama's API."""

from typing import Any

from contract_tests.kit import checks
from contract_tests.kit.bodies import OLLAMA
from contract_tests.kit.checks import chats
from contract_tests.kit.mutants.exchange import Mutation
from contract_tests.kit.mutants.mutant import Mutants
from contract_tests.kit.mutants.mutations import at, documents, errors, lines, plain

MUTANTS = Mutants("Ollama's API")

CHAT, GENERATION = "create_ollama_chat", "create_ollama_generation"


@MUTANTS.caught_by(checks.ollamas_clients_are_served, "'string'")
def ollama_gets_the_envelope() -> Mutation:
    """Errors have OpenAI's form."""

    def change(status: int, document: dict[str, Any]) -> dict[str, Any]:
        error = {"code": status, "message": document["error"], "type": "invalid_request_error"}
        return {"error": error}

    return errors(change, *OLLAMA)


@MUTANTS.caught_by(chats.lines_of_ollama_end_once, "/api/chat", as_described=True)
def lines_have_no_end() -> Mutation:
    """No line of a chat has `done`."""
    return lines(lambda line: [] if line.get("done") else [line], CHAT)


@MUTANTS.caught_by(checks.ollamas_clients_are_served, "==", as_described=True)
def lines_repeat_a_piece() -> Mutation:
    """Every line of a generation is sent twice."""
    return lines(lambda line: [line] if line.get("done") else [line, line], GENERATION)


@MUTANTS.caught_by(chats.thoughts_stay_apart, "thoughts in Ollama's content", as_described=True)
def thoughts_are_in_the_content() -> Mutation:
    """The content of a chat begins with the thoughts."""

    def change(message: dict[str, Any]) -> dict[str, Any]:
        return {**message, "content": message.get("thinking", "") + message["content"]}

    return plain(at("message", change), CHAT)


@MUTANTS.caught_by(checks.ollamas_clients_are_served, r"line \d+, ")
def a_duration_is_text() -> Mutation:
    """`total_duration` is a text with a unit."""
    return documents(at("total_duration", lambda ns: f"{ns}ns"), GENERATION)


@MUTANTS.caught_by(checks.ollamas_clients_are_served, r"line \d+, .*\"reason\":")
def the_last_line_is_not_done() -> Mutation:
    """The last line of a generation lacks `done`, and its `done_reason` is called `reason`."""

    def change(document: dict[str, Any]) -> dict[str, Any]:
        if not document.get("done"):
            return document
        kept = {name: value for name, value in document.items() if name != "done"}
        return {("reason" if name == "done_reason" else name): kept[name] for name in kept}

    return documents(change, GENERATION)


@MUTANTS.caught_by(chats.lines_of_ollama_end_once, "==", as_described=True)
def prompts_are_counted_short() -> Mutation:
    """`prompt_eval_count` is off by one."""
    return documents(at("prompt_eval_count", lambda n: n - 1), GENERATION)


@MUTANTS.caught_by(chats.lines_of_ollama_end_once, "/api/generate", as_described=True)
def durations_are_milliseconds() -> Mutation:
    """`total_duration` is in milliseconds instead of nanoseconds."""
    return documents(at("total_duration", lambda ns: ns // 1_000_000), GENERATION)
