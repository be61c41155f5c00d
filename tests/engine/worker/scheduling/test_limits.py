"""What is refused when too much waits."""

import pytest

from specllama.engine.worker.scheduling.limits import QueueLimits, refuse_allowance
from tests.support.options_support import engine_options


def limits(max_queue: int = 2, max_queue_tokens: int = 100) -> QueueLimits:
    options = engine_options(max_queue=max_queue, max_queue_tokens=max_queue_tokens)
    return QueueLimits(options.context)


def test_calls_are_refused_with_the_number_the_limit_and_the_wait() -> None:
    each = limits()
    assert each.refuse_call(1) is None
    each.wait = 12.3
    error = each.refuse_call(2)
    assert error is not None
    assert (error.type, error.retry_after, error.estimated_wait_ms) == (
        "unavailable_error",
        13,
        12_300,
    )
    assert error.message == "2 requests wait for this model, and --max-queue is 2"
    assert each.n_refused == 1


def test_tokens_are_refused() -> None:
    each = limits()
    assert each.refuse_tokens(60, 40) is None
    error = each.refuse_tokens(60, 41)
    assert error is not None
    assert all(word in error.message for word in ("60", "41", "100", "--max-queue-tokens"))
    assert error.retry_after == 1, "a client must not come back at once"


def test_0_is_no_limit() -> None:
    each = limits(0, 0)
    assert each.refuse_call(10**9) is None
    assert each.refuse_tokens(10**9, 10**9) is None


def test_a_deadline_that_can_be_met_is_no_error() -> None:
    each = limits()
    assert each.refuse_late(1.0, 1.0, "its prompt") is None
    error = each.refuse_late(2.0, 1.0, "its prompt")
    assert error is not None
    assert (error.retry_after, error.estimated_wait_ms) == (2, 2_000)


@pytest.mark.parametrize(("allowance", "is_refused"), [(-1, False), (10, False), (9, True)])
def test_an_allowance(allowance: int, is_refused: bool) -> None:
    error = refuse_allowance(10, allowance)
    assert (error is not None) == is_refused
    assert error is None or error.type == "rate_limit_error"
