"""Models whose memory can't be cut at any place: recurrent ones, and ones with a sliding window."""

from typing import Any

import pytest

from contract_tests.kit import contract
from contract_tests.kit.server import Launcher, Server, Start

EXACT = ["-fa", "off", "-ctk", "f32", "-ctv", "f32"]
"""Options for the CPU with which a text's numbers don't depend on the rest of the batch."""


@pytest.fixture(scope="module", params=["tiny-mamba", "tiny-window"])
def server(request: pytest.FixtureRequest, module_server: Start, launcher: Launcher) -> Server:
    model = launcher.model_file(request.param)
    return module_server("-m", model, "-c", "2048", "-np", "2", "--ctx-checkpoints", "4", *EXACT)


def converse(server: Server, **options: Any) -> tuple[list[str], list[int]]:
    """Returns the answers of a conversation, and the number of cached tokens of each prompt."""
    messages: list[dict[str, str]] = []
    answers, cached = [], []
    for question in ("Tell me about llamas. " * 10, "And about alpacas?", "Thank you!"):
        messages.append({"role": "user", "content": question})
        request = {"messages": messages, "max_tokens": 40, "temperature": 0, **options}
        answer = contract.check(server.post("/v1/chat/completions", request))
        text = answer["choices"][0]["message"]["content"]
        messages.append({"role": "assistant", "content": text})
        answers.append(text)
        cached.append(answer["usage"]["prompt_tokens_details"]["cached_tokens"])
    return answers, cached


def test_a_conversation_goes_on_from_what_is_cached(server: Server) -> None:
    plain, nothing = converse(server, cache_prompt=False)
    first, cached = converse(server)
    second, again = converse(server)
    assert plain == first == second
    assert nothing == [0, 0, 0]
    assert all(n > 0 for n in [*cached[1:], *again])


def test_a_cached_prompt_has_the_same_probabilities(server: Server) -> None:
    text = {"prompt": "The bus leaves at nine, and the llama is late. " * 8, "temperature": 0}

    def values() -> list[float]:
        request = {**text, "echo": True, "logprobs": 1, "max_tokens": 0}
        answer = contract.check(server.post("/v1/completions", request))
        logprobs = answer["choices"][0]["logprobs"]["token_logprobs"]
        assert len(logprobs) == answer["usage"]["prompt_tokens"] > 100
        return list(logprobs[1:])

    cold = values()
    for _ in range(2):
        answer = contract.check(server.post("/v1/completions", {**text, "max_tokens": 8}))
    assert answer["usage"]["prompt_tokens_details"]["cached_tokens"] > 0
    assert values() == pytest.approx(cold, abs=0.01)
