"""Whether forced tokens are worth an evaluation of their own."""

import pytest

from specllama.engine.worker.speculation.pace import RETRY, Early

USUAL = 0.040


def learned(seconds_of_one: float, seconds_each: float) -> Early:
    early = Early()
    for n in (1, 2, 4, 8, 16):
        for _ in range(3):
            early.observe(n, seconds_of_one + n * seconds_each)
    return early


def test_what_is_not_known_is_tried() -> None:
    assert Early().pays(1, 4, USUAL)
    assert learned(1.0, 1.0).pays(1, 4, 0.0), "nor is a step's time"


@pytest.mark.parametrize(("n", "pays"), [(1, False), (2, False), (8, True), (16, True)])
def test_a_reading_of_the_weights_pays_with_enough_tokens(n: int, pays: bool) -> None:
    """A GPU, on which it takes as long as a step."""
    assert learned(0.040, 0.0).pays(n, 4, USUAL) is pays


def test_rows_without_logits_always_pay_if_they_are_what_costs() -> None:
    early = learned(0.001, 0.002)
    assert all(early.pays(n, 4, USUAL) for n in range(1, 17))


def test_what_did_not_pay_is_tried_again() -> None:
    early = learned(0.040, 0.0)
    answers = [early.pays(1, 4, USUAL) for _ in range(RETRY)]
    assert answers == [False] * (RETRY - 1) + [True]
