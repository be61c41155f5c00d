"""The turns of inputs, without a model."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from specllama.engine.wire.requests import Terms
from specllama.engine.worker.embedding.jobs import EmbeddingJob, InputPart
from specllama.engine.worker.embedding.planning import EmbeddingBatcher

N_SEQUENCES, N_BATCH, N_CELLS = 3, 8, 32


def job(id: int, *lengths: int, group: int = 0) -> EmbeddingJob:
    return EmbeddingJob(id, [np.zeros(n, np.int32) for n in lengths], group=group)


def evaluate(planner: EmbeddingBatcher, parts: list[InputPart]) -> None:
    for part in parts:
        part.input.n_past += part.n
        part.input.lengths.append(part.n)
    planner.end_long()


def test_who_does_not_fit_is_first_in_the_next_step() -> None:
    planner = EmbeddingBatcher(N_SEQUENCES, N_BATCH, N_CELLS)
    for each in (job(1, 5, group=1), job(2, 4, group=1), job(3, 3, group=1)):
        planner.add(each)
    steps = []
    while planner.has_work:
        parts = planner.plan()
        evaluate(planner, parts)
        steps.append([part.input.job.id for part in parts])
    assert steps == [[1, 3], [2]]


def test_an_input_that_was_put_apart_shares_no_step() -> None:
    planner = EmbeddingBatcher(N_SEQUENCES, N_BATCH, N_CELLS)
    long, short, later = job(1, 20), job(2, 2), job(3, 2)
    planner.add(long)
    evaluate(planner, planner.plan())
    planner.add(short)
    parts = planner.plan()
    assert {part.input.job for part in parts} == {long, short}
    planner.put_apart(parts)
    planner.add(later)
    steps = []
    while planner.has_work:
        parts = planner.plan()
        evaluate(planner, parts)
        steps.append([(part.input.job.id, part.n) for part in parts])
    assert steps == [[(1, 8)], [(1, 8)], [(1, 4)], [(2, 2)], [(3, 2)]]


def test_a_request_that_is_gone_has_no_turn() -> None:
    planner = EmbeddingBatcher(N_SEQUENCES, N_BATCH, N_CELLS)
    first, second = job(1, 2, 2), job(2, 2)
    planner.add(first)
    planner.add(second)
    planner.put_apart(planner.plan())
    assert planner.remove(first) is None
    [part] = planner.plan()
    assert part.input.job is second
    assert not planner.has_work
    again, third = job(1, 2, 2), job(3, 20)
    planner.add(again)
    planner.add(third)
    planner.remove(again)
    [part] = planner.plan()
    assert planner.remove(third) is part.input
    assert not planner.has_work


@given(
    st.lists(st.lists(st.integers(1, 30), min_size=1, max_size=4), min_size=1, max_size=6),
    st.sets(st.integers(0, 20)),
)
def test_every_token_is_evaluated_once_and_no_step_is_too_large(
    requests: list[list[int]], failing: set[int]
) -> None:
    """Whichever steps have to be split."""
    planner = EmbeddingBatcher(N_SEQUENCES, N_BATCH, N_CELLS)
    for id, lengths in enumerate(requests):
        planner.add(job(id, *lengths))
    done: dict[tuple[int, int], int] = {}
    n_steps = 0
    while planner.has_work:
        parts = planner.plan()
        assert parts
        assert sum(part.n for part in parts) <= N_BATCH
        assert len({part.input.sequence for part in parts}) == len(parts) <= N_SEQUENCES
        assert len(parts) == 1 or not any(part.input.is_alone for part in parts)
        n_steps += 1
        if n_steps in failing and len(parts) > 1:
            planner.put_apart(parts)
            continue
        evaluate(planner, parts)
        for part in parts:
            if not part.input.n_pending:
                done[part.input.job.id, part.input.index] = sum(part.input.lengths)
    assert done == {
        (id, index): n for id, lengths in enumerate(requests) for index, n in enumerate(lengths)
    }


def test_many_inputs_do_not_delay_a_few_and_priorities_come_first() -> None:
    planner = EmbeddingBatcher(1, N_BATCH, N_CELLS)
    for id in (1, 2):  # slices of one call
        planner.add(job(id, *[4] * 64, group=1))
    planner.add(job(3, 4, 4))
    urgent = EmbeddingJob(4, [np.zeros(4, np.int32)], terms=Terms(priority=-1))
    planner.add(urgent)
    served = []
    for _ in range(6):
        parts = planner.plan()
        evaluate(planner, parts)
        served += [part.input.job.id for part in parts]
    assert served == [4, 1, 3, 1, 3, 1]
    assert planner.n_tokens == 4 * (128 - 3)
    assert planner.queue.n_calls == 1
