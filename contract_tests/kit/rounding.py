"""Servers whose numbers depend on what else is in a batch, as most do on GPUs: there a seed doesn't
settle what is said."""

from typing import Any

import pytest

from contract_tests.kit.server import OwnServer, Server

REQUEST: dict[str, Any] = {
    "prompt": "One and two and three and four. " * 12,
    "n_predict": 1,
    "n_probs": 20,
    "temperature": 0,
}
ROUNDING = 0.15
"""The most by which another batch moves a log probability."""


def check_same(server: Server, said: Any, expected: Any) -> None:
    """Asserts that what a server said is the same both times: texts, or probabilities. Skips the
    test if it isn't, and the server, none of ours, rounds otherwise in another batch."""
    if said != expected and not isinstance(server, OwnServer) and depends_on_batch(server):
        pytest.skip("what this server computes depends on what else is in the batch")
    assert said == expected


def check_close(server: Server, said: list[Any], expected: list[Any]) -> None:
    """Asserts that the same tokens have the same probabilities both times; up to rounding if the
    server is none of ours and rounds otherwise in another batch."""
    if said == expected or isinstance(server, OwnServer) or not depends_on_batch(server):
        assert said == expected
        return
    first, second = ({each["id"]: each["logprob"] for each in side} for side in (said, expected))
    common = first.keys() & second.keys()
    assert len(common) * 2 > len(expected), f"other tokens: {said} and {expected}"
    worst = max(abs(first[id] - second[id]) for id in common)
    assert worst <= ROUNDING, f"log probabilities differ by {worst:.3f}"


def depends_on_batch(server: Server) -> bool:
    """True if a token has other probabilities when it is evaluated behind a cached prompt."""
    at_once, behind_cache = (
        server.ask("/completion", {**REQUEST, "cache_prompt": cached})["completion_probabilities"]
        for cached in (False, True)
    )
    return bool(at_once != behind_cache)
