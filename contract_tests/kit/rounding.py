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


def check_texts(server: Server, said: Any, expected: Any) -> None:
    """Asserts that what a server said is the same both times. Skips the test if it isn't, and the
    server, none of ours, rounds otherwise in another batch."""
    if said != expected and not isinstance(server, OwnServer) and depends_on_batch(server):
        pytest.skip("what this server computes depends on what else is in the batch")
    assert said == expected


def depends_on_batch(server: Server) -> bool:
    """True if a token has other probabilities when it is evaluated behind a cached prompt."""
    at_once, behind_cache = (
        server.ask("/completion", {**REQUEST, "cache_prompt": cached})["completion_probabilities"]
        for cached in (False, True)
    )
    return bool(at_once != behind_cache)
