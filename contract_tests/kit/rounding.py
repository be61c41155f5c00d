"""Detects servers whose numbers depend on the other rows of a batch, as on most GPUs. There a seed
doesn't determine the text."""

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
"""The greatest change of a log probability in another batch."""


def check_same(server: Server, said: Any, expected: Any) -> None:
    """Asserts that two answers (texts or probabilities) are equal. Skips the test if they aren't,
    and the server isn't ours and rounds differently in another batch."""
    if said != expected and not isinstance(server, OwnServer) and depends_on_batch(server):
        pytest.skip("this server's numbers depend on the rest of the batch")
    assert said == expected


def check_close(server: Server, said: list[Any], expected: list[Any]) -> None:
    """Asserts that two answers have the same tokens with the same probabilities. Differences up to
    `ROUNDING` are allowed if the server isn't ours and rounds differently in another batch."""
    if said == expected or isinstance(server, OwnServer) or not depends_on_batch(server):
        assert said == expected
        return
    first, second = ({each["id"]: each["logprob"] for each in side} for side in (said, expected))
    common = first.keys() & second.keys()
    assert len(common) * 2 > len(expected), f"other tokens: {said} and {expected}"
    worst = max(abs(first[id] - second[id]) for id in common)
    assert worst <= ROUNDING, f"log probabilities differ by {worst:.3f}"


def depends_on_batch(server: Server) -> bool:
    """True if a token's probabilities change when it is evaluated after a cached prompt."""
    at_once, behind_cache = (
        server.ask("/completion", {**REQUEST, "cache_prompt": cached})["completion_probabilities"]
        for cached in (False, True)
    )
    return bool(at_once != behind_cache)
