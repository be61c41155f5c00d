"""Limits of API keys."""

from typing import Any

from contract_tests.kit.checks import quotas
from contract_tests.kit.mutants.exchange import Answer, Mutation, Request
from contract_tests.kit.mutants.mutant import Mutants
from contract_tests.kit.mutants.mutations import answers, errors

MUTANTS = Mutants("Limits of API keys", "limited key")

TYPE = "rate_limit_error"


@MUTANTS.caught_by(quotas.requests_beyond_a_limit_are_refused, "create_message|POST /v1/messages")
def refusals_of_messages_have_another_envelope() -> Mutation:
    """Anthropic's clients get 429 in the envelope of OpenAI's API."""

    def change(status: int, document: Any) -> Any:
        message = document["error"]["message"]
        return {"error": {"code": status, "message": message, "type": TYPE}}

    return errors(change, "create_message")


@MUTANTS.caught_by(quotas.requests_beyond_a_limit_are_refused, "POST /v1/chat/completions: 429")
def refusals_have_the_envelope_of_messages() -> Mutation:
    """OpenAI's clients get 429 in the envelope of Anthropic's API."""

    def change(status: int, document: Any) -> Any:
        error = {"type": TYPE, "message": document["error"]["message"]}
        return {"type": "error", "error": error, "request_id": "req_1"}

    return errors(change, "create_chat_completion")


@MUTANTS.caught_by(quotas.requests_beyond_a_limit_are_refused, "expected 429, got .* 503")
def refusals_have_the_status_of_a_busy_server() -> Mutation:
    """A request beyond a limit of the key gets 503."""
    return answers(
        lambda request, answer: answer.with_status(503) if answer.status == 429 else answer,
        "create_response",
    )


@MUTANTS.caught_by(quotas.requests_beyond_a_limit_are_refused, "when to ask again")
def refusals_say_nothing_about_a_retry() -> Mutation:
    """`Retry-After` and `X-Should-Retry` are missing."""

    def change(request: Request, answer: Answer) -> Answer:
        return answer.with_header("Retry-After", None).with_header("X-Should-Retry", None)

    return answers(change)


def _without_limits(answer: Answer) -> Answer:
    for name in (*quotas.LIMITS, *quotas.LIMITS_OF_MESSAGES):
        answer = answer.with_header(name, None)
    return answer


@MUTANTS.caught_by(quotas.limits_are_in_the_headers, "is without x-ratelimit-limit-tokens")
def answers_have_no_limits() -> Mutation:
    """The headers with the limits of the key are missing."""
    return answers(lambda request, answer: _without_limits(answer))


@MUTANTS.caught_by(quotas.limits_are_in_the_headers, "list_openai_models is without x-ratelimit")
def only_refusals_have_limits() -> Mutation:
    """Successful answers are without the headers with the limits."""
    return answers(lambda request, answer: _without_limits(answer) if answer.is_success else answer)


@MUTANTS.caught_by(quotas.limits_are_in_the_headers, "create_message is without anthropic")
def limits_of_messages_have_the_names_of_another_api() -> Mutation:
    """Anthropic's clients get the limits in the headers of OpenAI's API."""

    def change(request: Request, answer: Answer) -> Answer:
        values = [answer.headers.get(name) for name in quotas.LIMITS_OF_MESSAGES]
        answer = _without_limits(answer)
        for name, value in zip(quotas.LIMITS, values, strict=True):
            answer = answer.with_header(name, value)
        return answer

    return answers(change, "create_message")


@MUTANTS.caught_by(quotas.limits_are_in_the_headers, "tokens are left")
def more_is_left_than_the_limit() -> Mutation:
    """More tokens are left than the key has at most."""

    def change(request: Request, answer: Answer) -> Answer:
        limit, remaining, _ = quotas.LIMITS
        if limit not in answer.headers:
            return answer
        return answer.with_header(remaining, f"{answer.headers[limit]}0")

    return answers(change)
