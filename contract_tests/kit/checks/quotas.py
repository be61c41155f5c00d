"""Checks of servers whose API key has a limit of tokens. See `checks`."""

from typing import Any

import pytest

from contract_tests.kit import contract
from contract_tests.kit.bodies import body, path
from contract_tests.kit.server import Server, needs_key

MUCH = 100_000
"""A number of tokens for an answer. The server reserves at most what fits into the context."""
TOO_MUCH: dict[str, dict[str, Any]] = {
    "create_completion": {"n_predict": MUCH},
    "create_openai_completion": {"n_predict": MUCH},
    "create_chat_completion": {"max_tokens": MUCH},
    "create_response": {"max_output_tokens": MUCH},
    "create_message": {"max_tokens": MUCH},
    "create_ollama_chat": {"options": {"num_predict": MUCH}},
    "generate_gemini_content": {"generationConfig": {"maxOutputTokens": MUCH}},
}
"""Changes of a request, with which its answer may be very long."""
LIMITS = [f"x-ratelimit-{name}-tokens" for name in ("limit", "remaining", "reset")]
LIMITS_OF_MESSAGES = [
    f"anthropic-ratelimit-tokens-{name}" for name in ("limit", "remaining", "reset")
]


def _needs_limit(server: Server) -> None:
    """Skips the check unless the key has fewer tokens than a long answer may use."""
    needs_key(server)
    request = body("create_completion", stream=True, **TOO_MUCH["create_completion"])
    with server.http.stream("POST", path("create_completion"), json=request) as response:
        if response.status_code == 200:  # the answer is cancelled here
            pytest.skip("the key has no limit of tokens, or one that no answer can exceed")


def requests_beyond_a_limit_are_refused(server: Server) -> None:
    """A request that may use more tokens than the key has is refused in the form of its API, and
    takes nothing from the key: so this check can be repeated."""
    _needs_limit(server)
    for name, changes in TOO_MUCH.items():
        response = server.post(path(name), body(name, **changes))
        contract.check(response, 429)
        assert "tokens" in contract.message(response), f"{name} says no limit: {response.text}"
        is_final = response.headers.get("x-should-retry") == "false"
        assert is_final or "retry-after" in response.headers, (
            f"{name} doesn't say when to ask again: {response.headers}"
        )


def limits_are_in_the_headers(server: Server) -> None:
    """Every answer to the key has its limit of tokens, in the headers of the path's API."""
    _needs_limit(server)
    answers = {name: server.post(path(name), body(name, **TOO_MUCH[name])) for name in TOO_MUCH}
    answers["list_openai_models"] = server.get(path("list_openai_models"))
    for name, response in answers.items():
        expected, others = LIMITS, LIMITS_OF_MESSAGES
        if name == "create_message":
            expected, others = others, expected
        for header in expected:
            assert header in response.headers, f"{name} is without {header}"
        assert not {*others} & response.headers.keys(), f"{name} has the headers of another API"
        limit, remaining = (int(response.headers[header]) for header in expected[:2])
        assert 0 <= remaining <= limit, f"{name}: {remaining} of {limit} tokens are left"


OF_LIMITED_KEYS = (requests_beyond_a_limit_are_refused, limits_are_in_the_headers)
