"""From chunks to the batch; what an engine counts, against what its requests say of themselves."""

import os

import pytest

from specllama.engine.params import GenerationParams
from specllama.engine.wire.requests import Submit
from specllama.engine.worker.backend import Model
from specllama.engine.worker.backend.batch import TokenBatch
from specllama.engine.worker.generation.launch import Counting, fill
from specllama.engine.worker.scheduling.sequences import Chunk
from tests.support.playing import GREEDY, engine, play, stepped
from tests.support.scheduling import sequence

pytestmark = pytest.mark.usefixtures("orders")

PROMPTS = ["import os", "def function(self, value):", "class Name:"]


def test_counts_add_up_to_the_answers(model: Model) -> None:
    served = engine(model, parallel=2)
    answers = play(served, PROMPTS, n_predict=5, **GREEDY).values()
    stats = served.stats()
    assert stats.n_predicted == sum(answer.n_decoded for answer in answers) == 15
    assert stats.n_prompt == sum(answer.timings.prompt_n for answer in answers)
    assert stats.n_prompt_cached == sum(answer.timings.cache_n for answer in answers)
    assert stats.queue.count == stats.first_token.count == len(PROMPTS)
    assert stats.inter_token.count == stats.n_predicted - len(PROMPTS)
    assert stats.step.count == stats.n_decode
    assert stats.n_decode <= stats.n_busy + len(PROMPTS) <= 2 * stats.n_decode + len(PROMPTS)
    assert 0 < stats.prompt_seconds <= stats.step.total
    assert stats.idle_seconds > 0
    # The last token of a text is never evaluated.
    assert stats.n_tokens_max == max(a.n_prompt + a.n_decoded - 1 for a in answers)
    assert (stats.n_processing, stats.n_deferred) == (0, 0)


def test_waiting_and_running_requests_are_counted_apart(model: Model) -> None:

    served = engine(model, parallel=1)
    for id in (1, 2):
        params = GenerationParams(n_predict=4, **GREEDY)
        served.submit(served.preparation.prepare(Submit(id, ["import os"], params)))
    assert (served.stats().n_processing, served.stats().n_deferred) == (0, 2)
    stepped(served)
    assert (served.stats().n_processing, served.stats().n_deferred) == (1, 1)
    served.cancel(2)
    assert (served.stats().n_processing, served.stats().n_deferred) == (1, 0)


@pytest.mark.parametrize("unified", [False, True])
def test_tokens_of_running_texts_are_counted_without_cached_ones(
    model: Model, unified: bool
) -> None:
    served = engine(model, parallel=2, kv_unified=unified)
    play(served, PROMPTS, n_predict=4, **GREEDY)
    assert (served.stats().n_tokens_running, served.stats().n_cells_running) == (0, 0)
    assert served.stats().n_cells_used > 0
    params = GenerationParams(n_predict=4, cache_prompt=False, **GREEDY)
    request = served.preparation.prepare(Submit(9, ["import os"], params))
    served.submit(request)
    assert served.stats().n_tokens_running == 0
    stepped(served)
    sequence = request.sequence
    assert served.stats().n_tokens_running == len(sequence.tokens) >= sequence.n_prompt
    assert served.stats().n_cells_running == sequence.n_past > 0
    served.cancel(9)
    assert (served.stats().n_tokens_running, served.stats().n_cells_running) == (0, 0)


@pytest.mark.slow
def test_kept_memory_is_counted_apart(model: Model) -> None:
    served = engine(model, parallel=1, ctx_size=256, cache_ram=64)
    assert served.stats().n_bytes_cache_ram == served.stats().n_bytes_constraints == 0
    for prompt in PROMPTS:
        play(served, [prompt * 20], n_predict=5, **GREEDY)
    play(served, PROMPTS[:1], n_predict=5, grammar='root ::= "a"', **GREEDY)
    stats = served.stats()
    assert 0 < stats.n_bytes_cache_ram <= 64 << 20
    assert stats.n_bytes_constraints > 0
    assert stats.n_bytes_checkpoints == 0
    assert not os.path.exists("/proc/self/statm") or stats.n_bytes_resident > 0


def test_idle_time_has_work_without_computation() -> None:
    counting = Counting()
    counting.begins(1.0)
    counting.computed(2.0)
    counting.begins(2.5)
    counting.computed(4.0)
    counting.rests()
    counting.begins(10.0)
    counting.computed(11.0)
    counting.begins(11.25)
    assert counting._stats.idle_seconds == 0.75


def test_rows_are_in_the_order_of_the_chunks() -> None:
    texts = [sequence(id, [10 * id + at for at in range(4)]) for id in range(5)]
    for seq_id, text in enumerate(texts):
        text.seq_id = seq_id
    chunks = [
        Chunk(texts[0], 3, 4),
        Chunk(texts[1], 1, 4),
        Chunk(texts[2], 3, 4),
        Chunk(texts[3], 3, 4, proposed=(8, 9)),
        Chunk(texts[4], 2, 3),
    ]
    batch = TokenBatch(16)
    batch.add([1, 2], 0, 7)
    assert fill(batch, chunks) == [0, 3, 4, 5, 8]
    n = batch.n_tokens
    assert batch.tokens[:n].tolist() == [3, 11, 12, 13, 23, 33, 8, 9, 42]
    assert batch.positions[:n].tolist() == [3, 1, 2, 3, 3, 3, 4, 5, 2]
    assert batch.sequences[:n].tolist() == [0, 1, 1, 1, 2, 3, 3, 3, 4]
    assert batch.outputs[:n].tolist() == [1, 0, 0, 1, 1, 1, 1, 1, 0]


def test_padding_is_no_part_of_a_text(model: Model, monkeypatch: pytest.MonkeyPatch) -> None:
    prompts = ["7" * 17, "x" * 38, "?" * 23]
    alone = {
        prompt: play(engine(model, parallel=1), [prompt], n_predict=12, **GREEDY)[prompt]
        for prompt in prompts
    }
    served = engine(model, parallel=3, kv_unified=False)
    rows: list[int] = []
    decode = served.context.decode

    def counting() -> None:
        rows.append(served.context.batch.n_tokens)
        decode()

    monkeypatch.setattr(served.context, "decode", counting)
    answers = play(served, prompts, n_predict=12, **GREEDY)
    lengths = [answer.n_prompt for answer in answers.values()]
    assert len({*lengths}) > 1
    assert rows[0] == 3 * max(lengths)
    for prompt, answer in answers.items():
        assert answer.text == alone[prompt].text
