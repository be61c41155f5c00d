"""Confirmed tokens: the model's own, up to the requested number."""

import pytest

from specllama.engine.worker.generation.verifying import Exact, Synthetic

RATES = (0.75, 0.3, 0.3, 0.0, 0.0)


def test_the_models_own_tokens_are_confirmed() -> None:
    for token in range(3):
        assert Exact().confirms(token, 1, depth=0, seed=1, at=1) == (token == 1)


def lengths(verifier: Synthetic, seed: int, n: int, n_proposed: int = 9) -> list[int]:
    """Confirmed tokens of each proposal, all of them different from the model's."""
    found, at = [], 0
    for _ in range(n):
        depth = 0
        while depth < n_proposed and verifier.confirms(2, 1, depth=depth, seed=seed, at=at + depth):
            depth += 1
        at += depth + 1
        found.append(depth)
    return found


def test_the_rates_alone_determine_the_number() -> None:
    found = lengths(Synthetic(RATES, set()), 7, 20_000)
    for n, rate in enumerate(RATES, start=1):
        assert sum(length >= n for length in found) / len(found) == pytest.approx(rate, abs=0.02)
    assert max(found) == 3


def test_a_seed_decides() -> None:
    verifier = Synthetic(RATES, set())
    assert lengths(verifier, 3, 50) == lengths(Synthetic(RATES, set()), 3, 50)
    assert lengths(verifier, 3, 50) != lengths(verifier, 4, 50)


def test_all_or_nothing() -> None:
    assert set(lengths(Synthetic((1.0,) * 4, set()), 1, 50)) == {4}
    assert set(lengths(Synthetic((0.0,) * 4, set()), 1, 50)) == {0}


def test_even_right_proposals_are_rejected_at_random() -> None:
    assert not Synthetic((0.0,), set()).confirms(1, 1, depth=0, seed=1, at=1)


def test_no_proposal_ends_a_text() -> None:
    verifier = Synthetic((1.0,), {2})
    assert not verifier.confirms(2, 1, depth=0, seed=1, at=1)
    assert verifier.confirms(1, 2, depth=0, seed=1, at=1)
