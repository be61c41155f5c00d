"""The time that finding a proposal takes."""

import pytest

from specllama.engine.worker.speculation.proposing import ProposalCost


def test_nothing_is_known_at_first() -> None:
    finding = ProposalCost()
    assert finding.each(3) is None
    assert finding.is_guess(1)


def test_more_texts_take_longer() -> None:
    finding = ProposalCost()
    finding.found(1, 4, 0.04)
    assert finding.each(1) == finding.each(8) == pytest.approx(0.01)
    assert finding.is_guess(8)
    finding.found(8, 2, 0.06)
    assert finding.each(8) == pytest.approx(0.03)
    assert finding.each(2) == pytest.approx(0.01), "the nearest number"
    assert not finding.is_guess(8)
    assert finding.all(8, 5) == pytest.approx(0.15)


def test_a_failed_search_takes_time() -> None:
    finding = ProposalCost()
    finding.found(1, 0, 0.02)
    assert finding.each(1) == finding.all(1, 9) == pytest.approx(0.02)
    finding.found(1, 1, 0.005)
    assert finding.each(1) == pytest.approx(0.02)
    assert finding.all(1, 9) == pytest.approx(0.045)


def test_times_fade() -> None:
    finding = ProposalCost()
    for _ in range(50):
        finding.found(1, 1, 0.1)
    for _ in range(50):
        finding.found(1, 1, 0.2)
    assert finding.each(1) == pytest.approx(0.2, rel=0.01)
