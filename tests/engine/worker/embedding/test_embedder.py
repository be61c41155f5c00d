"""The engine that embeds and reranks: numbers, turns, limits."""

from collections.abc import Iterator
from functools import cache
from typing import Any, get_args

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays

from specllama.engine.errors import EngineError, ErrorInfo
from specllama.engine.options import Pooling
from specllama.engine.shipped import model_path
from specllama.engine.wire.replies import Failed, Vectors
from specllama.engine.wire.requests import Embed, PromptParts, Rerank, Terms
from specllama.engine.worker.backend import BackendError, Context, Model, Projector, initialize
from specllama.engine.worker.embedding.embedder import Embedder
from specllama.engine.worker.embedding.jobs import InputPart, merged, normalized
from specllama.engine.worker.generation.engine import Engine
from tests.support import reference_models as reference
from tests.support.media import image
from tests.support.options_support import engine_options
from tests.support.playing import stepped
from tools.models.build import ensure

pytestmark = pytest.mark.slow

TEXTS = [
    "a llama carries wool",
    "the bus leaves at nine",
    "x",
    "what is the name of the first one, and who has asked for it to be returned here?",
]
EXACT: dict[str, Any] = {
    "flash_attn": "off",
    "cache_type_k": "f32",
    "cache_type_v": "f32",
    "threads": 1,
}
COSINE = 1e-3
RAW = -1

Rows = npt.NDArray[np.float32]


@cache
def model(name: str) -> Model:
    """Kept until the process ends: engines of many tests use it."""
    initialize()
    return Model(str(ensure(name) if name else model_path()), engine_options())


@cache
def weights(name: str) -> reference.Weights:
    return reference.Weights(ensure(name))


def embedder(name: str, **options: Any) -> Embedder:
    return Embedder(model(name), engine_options(**{"embedding": True, **EXACT, **options}))


def tokens_of(name: str, text: str) -> list[int]:
    tokens = model(name).tokenize(text.encode(), add_special=True, parse_special=True)
    return [int(token) for token in tokens]


def run(engine: Embedder, *messages: Embed | Rerank) -> dict[int, list[Rows]]:
    """The rows of each input of each request."""
    for message in messages:
        engine.submit(engine.prepare(message))
    answers: dict[int, list[Rows]] = {}
    while engine.has_work:
        for event in stepped(engine):
            assert isinstance(event, Vectors), event
            answers[event.id] = split(event)
    assert answers.keys() == {message.id for message in messages}
    return answers


def split(event: Vectors) -> list[Rows]:
    values = np.frombuffer(event.values, "<f4").reshape(sum(event.n_rows), -1)
    return np.split(values, np.cumsum(event.n_rows)[:-1])


def cosine(a: Rows, b: npt.NDArray[np.float64]) -> float:
    return float((a * b).sum() / np.linalg.norm(a) / np.linalg.norm(b))


# ---- the numbers are right -----------------------------------------------------------------


@pytest.mark.parametrize("name", ["tiny-embed", "tiny-bert"])
@pytest.mark.parametrize("pooling", ["none", "mean", "cls", "last"])
def test_vectors_are_those_of_an_independent_computation(name: str, pooling: str) -> None:
    engine = embedder(name, pooling=pooling)
    [rows] = run(engine, Embed(1, [[text] for text in TEXTS], RAW)).values()
    for text, ours in zip(TEXTS, rows, strict=True):
        vectors = reference.forward(weights(name), tokens_of(name, text))
        expected = reference.pooled(pooling, vectors)
        assert ours.shape == expected.shape
        for row, wanted in zip(ours, expected, strict=True):
            assert cosine(row, wanted) > 1 - COSINE
            assert np.linalg.norm(row) == pytest.approx(np.linalg.norm(wanted), rel=1e-2)


@pytest.mark.parametrize("pooling", ["none", "mean", "cls", "last"])
def test_an_input_that_takes_several_steps_gives_the_same_vector(pooling: str) -> None:
    text = " ".join(TEXTS * 3)
    tokens = tokens_of("tiny-embed", text)
    engine = embedder("tiny-embed", pooling=pooling, ubatch_size=16)
    assert len(tokens) > 5 * 16
    short: list[PromptParts] = [[each] for each in TEXTS[:3]]
    answers = run(engine, Embed(1, [[text]], RAW), Embed(2, short, RAW), Embed(3, [[text]], RAW))
    expected = reference.pooled(pooling, reference.llama(weights("tiny-embed"), tokens))
    for id in (1, 3):
        [ours] = answers[id]
        assert ours.shape == expected.shape
        assert all(cosine(a, b) > 1 - COSINE for a, b in zip(ours, expected, strict=True))
    [alone] = run(embedder("tiny-embed", pooling=pooling), Embed(2, short, RAW)).values()
    for a, b in zip(answers[2], alone, strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-3, atol=1e-4)


def test_scores_are_those_of_an_independent_computation() -> None:
    name, query = "tiny-rerank", "who carries wool"
    engine = embedder(name, reranking=True)
    [rows] = run(engine, Rerank(1, query, TEXTS)).values()
    cls, sep = model(name).bos, model(name).sep

    def plain(text: str) -> list[int]:
        return tokens_of(name, text)[1:-1]

    for text, ours in zip(TEXTS, rows, strict=True):
        tokens = [cls, *plain(query), sep, *plain(text)]
        expected = reference.score(weights(name), reference.bert(weights(name), tokens))
        assert ours.shape == (1, 1)
        assert float(ours[0, 0]) == pytest.approx(expected, abs=1e-3)


def test_a_reranker_may_have_a_template() -> None:
    name = "tiny-rerank-template"
    engine = embedder(name, reranking=True)
    [rows] = run(engine, Rerank(1, "{document}", ["a {query}", "b"])).values()
    for document, ours in zip(["a {query}", "b"], rows, strict=True):
        text = f"[CLS]is {{document}} in {document}?[SEP]"
        tokens = model(name).tokenize(text.encode(), add_special=False, parse_special=True)
        vectors = reference.bert(weights(name), tokens.tolist())
        expected = reference.score(weights(name), vectors)
        assert float(ours[0, 0]) == pytest.approx(expected, abs=1e-3)


def test_end_tokens_enclose_a_pair_if_the_model_has_them() -> None:
    llama = model("tiny-embed")
    engine = embedder("tiny-embed")
    llama.add_eos = True
    try:
        job = engine.prepare(Rerank(1, "a", ["b"]))
    finally:
        llama.add_eos = False
    a, b = (tokens_of("tiny-embed", text)[1:] for text in "ab")
    assert job.inputs[0].tolist() == [llama.bos, *a, llama.eos, *b, llama.eos]


# ---- norms ---------------------------------------------------------------------------------

finite = st.floats(-(2.0**100), 2.0**100, width=32)
ROWS = arrays.arrays(np.float32, st.tuples(st.integers(1, 3), st.integers(1, 8)), elements=finite)


@given(ROWS, st.integers(-1, 2**31 - 1) | st.integers(-1, 8))
def test_norms(rows: Rows, p: int) -> None:
    result = normalized(rows, p)
    assert result.shape == rows.shape
    assert result.dtype == np.float32
    assert np.isfinite(result).all()
    if p == -1:
        assert (result == rows).all()
        return
    for before, after in zip(rows, result.astype(np.float64), strict=True):
        if not before.any():
            assert not after.any()
        elif p == 0:
            assert np.abs(after).max() == pytest.approx(32760)
        else:
            peak = np.abs(after).max()
            norm = peak * ((np.abs(after) / peak) ** p).sum() ** (1 / p)
            assert norm == pytest.approx(1, rel=1e-5)


@given(st.lists(st.integers(1, 50), min_size=2, max_size=6), st.data())
def test_means_of_parts_make_the_mean_of_all(lengths: list[int], data: st.DataObject) -> None:
    seed = data.draw(st.integers(0, 1000))
    whole = np.random.default_rng(seed).normal(size=(sum(lengths), 5)).astype(np.float32)
    parts = np.split(whole, np.cumsum(lengths)[:-1])
    means = [part.mean(axis=0, keepdims=True) for part in parts]
    np.testing.assert_allclose(
        merged("mean", means, lengths), whole.mean(axis=0, keepdims=True), atol=1e-5
    )
    assert (merged("none", parts, lengths) == whole).all()


def test_dimensions_are_cut_before_the_norm() -> None:
    engine = embedder("tiny-bert")
    [[whole]] = run(engine, Embed(1, [["wool"]], RAW)).values()
    [[cut]] = run(engine, Embed(2, [["wool"]], 2, 5)).values()
    np.testing.assert_allclose(cut, normalized(whole[:, :5], 2), rtol=1e-4)
    assert np.linalg.norm(cut) == pytest.approx(1)


def test_scores_are_not_normalized() -> None:
    engine = embedder("tiny-rerank", reranking=True)
    [rows] = run(engine, Embed(1, [["wool"], ["bus"]], 2)).values()
    assert len({abs(float(each[0, 0])) for each in rows}) == 2


# ---- turns ---------------------------------------------------------------------------------


def test_inputs_of_all_requests_share_a_step() -> None:
    engine = embedder("tiny-bert")
    for id in range(1, 5):
        engine.submit(engine.prepare(Embed(id, [["wool"], ["bus"]], 2)))
    events = stepped(engine)
    assert sorted(event.id for event in events) == [1, 2, 3, 4]
    assert not engine.has_work


def test_a_request_with_many_inputs_delays_no_other() -> None:
    engine = embedder("tiny-bert", ubatch_size=32)
    engine.submit(engine.prepare(Embed(1, [[text] for text in TEXTS[:3] * 30], 2)))
    stepped(engine)
    engine.submit(engine.prepare(Embed(2, [["wool"]], 2)))
    done = [event.id for _ in range(2) for event in stepped(engine)]
    assert done == [2]
    assert engine.has_work


@given(st.data())
@settings(max_examples=15, deadline=None)
def test_every_input_gets_its_own_vector(data: st.DataObject) -> None:
    """Whatever else is in the batch, however it is split, and whichever request is cancelled."""
    text = st.lists(
        st.sampled_from(["llama", "wool", "bus", "nine", "of", "the", "and"]), min_size=1
    )
    requests = data.draw(st.lists(st.lists(text, min_size=1, max_size=5), min_size=1, max_size=5))
    size = data.draw(st.sampled_from([8, 16, 64]))
    parallel = data.draw(st.sampled_from([-1, 1, 3]))
    cancelled = data.draw(st.sets(st.integers(1, len(requests))))
    engine = shared(size, parallel)
    for id, texts in enumerate(requests, start=1):
        engine.submit(engine.prepare(Embed(id, [[" ".join(each)] for each in texts], 2)))
    answers: dict[int, list[Rows]] = {}
    for id in cancelled:
        for event in stepped(engine) if engine.has_work else []:
            assert isinstance(event, Vectors), event
            answers[event.id] = split(event)
        engine.cancel(id)
    while engine.has_work:
        for event in stepped(engine):
            assert isinstance(event, Vectors), event
            answers[event.id] = split(event)
    assert answers.keys() >= set(range(1, len(requests) + 1)) - cancelled
    for id, rows in answers.items():
        for words, ours in zip(requests[id - 1], rows, strict=True):
            np.testing.assert_allclose(ours, alone(" ".join(words)), atol=2e-3)


@cache
def shared(ubatch_size: int, parallel: int) -> Embedder:
    return embedder("tiny-embed", ubatch_size=ubatch_size, parallel=parallel, pooling="mean")


@cache
def alone(text: str) -> Rows:
    [[rows]] = run(shared(512, -1), Embed(1, [[text]], 2)).values()
    return rows


def test_a_cancelled_request_is_forgotten() -> None:
    engine = embedder("tiny-embed", ubatch_size=16)
    engine.submit(engine.prepare(Embed(1, [[" ".join(TEXTS * 3)]], 2)))
    assert stepped(engine) == []
    engine.cancel(1)
    assert not engine.has_work
    engine.cancel(1)
    [[rows]] = run(engine, Embed(2, [["wool"]], 2)).values()
    [[again]] = run(embedder("tiny-embed"), Embed(2, [["wool"]], 2)).values()
    np.testing.assert_allclose(rows, again, atol=1e-4)


# ---- limits --------------------------------------------------------------------------------


def refusal(engine: Embedder, message: Embed | Rerank) -> tuple[str, str]:
    with pytest.raises(EngineError) as caught:
        engine.prepare(message)
    return caught.value.info.type, caught.value.info.message


def refused(engine: Embedder, message: Embed | Rerank) -> ErrorInfo | None:
    """Submits a request. Returns its error if it may not wait."""
    failed = [each for each in engine.submit(engine.prepare(message)) if isinstance(each, Failed)]
    return failed[0].error if failed else None


def test_the_waiting_requests_are_listed_with_the_names_of_their_keys() -> None:
    engine = embedder("tiny-bert")
    for id, (text, terms) in enumerate(
        [(TEXTS[0], Terms(key_name="alice")), (TEXTS[1], Terms(key_name="bob", priority=-1))], 1
    ):
        assert refused(engine, Embed(id, [[text]], 2, owner=id, terms=terms)) is None
    states, n_waiting = engine.waiting()
    assert n_waiting == 2
    assert [(each.place, each.id, each.key_name, each.priority) for each in states] == [
        (1, 2, "bob", -1),
        (2, 1, "alice", 0),
    ]
    for state in states:
        assert (
            state.n_tokens == state.n_uncached == len(tokens_of("tiny-bert", TEXTS[state.id - 1]))
        )
        assert state.wait_ms > 0


def test_waiting_tokens_are_limited_except_for_the_only_call_of_a_key() -> None:
    n = len(tokens_of("tiny-bert", TEXTS[0]))
    engine = embedder("tiny-bert", max_queue_tokens=2 * n)

    def ask(id: int, group: int = 0, **terms: Any) -> ErrorInfo | None:
        return refused(engine, Embed(id, [[TEXTS[0]]], 2, group=group, terms=Terms(**terms)))

    assert ask(1) is ask(2) is None
    error = ask(3)
    assert error is not None
    assert error.type == "unavailable_error"
    assert f"prompts with {2 * n} tokens wait" in error.message
    assert error.retry_after >= 1
    assert ask(4, is_only=True) is None
    assert ask(5, is_accepted=True) is None
    assert ask(6, group=2) is None, "the limit applies to the first message of a call"
    assert engine.waiting()[1] == 5
    while engine.has_work:
        stepped(engine)
    assert ask(7) is None


def test_a_large_request_may_be_the_only_one_that_waits() -> None:
    engine = embedder("tiny-bert", max_queue_tokens=1)
    assert refused(engine, Embed(1, [[TEXTS[0]]], 2)) is None
    assert refused(engine, Embed(2, [[TEXTS[0]]], 2)) is not None


def test_a_key_has_to_have_the_tokens_of_all_inputs() -> None:
    engine = embedder("tiny-bert")
    n = len(tokens_of("tiny-bert", TEXTS[0])) + len(tokens_of("tiny-bert", TEXTS[1]))
    inputs: list[PromptParts] = [[TEXTS[0]], [TEXTS[1]]]
    assert refused(engine, Embed(1, inputs, 2, terms=Terms(allowance=n))) is None
    error = refused(engine, Embed(2, inputs, 2, terms=Terms(allowance=n - 1)))
    assert error is not None
    assert (error.type, error.n_tokens) == ("rate_limit_error", n)


def test_vectors_that_would_come_too_late_are_refused_with_the_estimate() -> None:
    engine = embedder("tiny-bert")
    terms = Terms(timeout_ms=1)
    assert refused(engine, Embed(1, [[TEXTS[0]]], 2, terms=terms)) is None, "no time is known yet"
    while engine.has_work:
        stepped(engine)
    message = engine.prepare(Embed(2, [[TEXTS[0]]], 2, terms=terms))
    message.arrived -= 1.0
    [failed] = engine.submit(message)
    assert isinstance(failed, Failed)
    assert "its vectors would take about" in failed.error.message
    assert "0.0 seconds are left" in failed.error.message


def test_inputs_that_can_not_be_served() -> None:
    bert = embedder("tiny-bert", ubatch_size=32)
    long: PromptParts = ["x " * 50]
    kind, message = refusal(bert, Embed(1, [["wool"], long], 2))
    assert (kind, "too large" in message) == ("server_error", True)
    kind, message = refusal(bert, Embed(1, [["x " * 200]], 2))
    assert (kind, "available context size" in message) == ("exceed_context_size_error", True)
    assert refusal(bert, Rerank(1, "x " * 20, ["y " * 20]))[0] == "server_error"
    assert refusal(bert, Embed(1, [[model("tiny-bert").n_vocab]], 2))[0] == "invalid_request_error"
    assert refusal(bert, Embed(1, [[]], 2))[0] == "invalid_request_error"
    llama = embedder("tiny-embed", ubatch_size=32)
    llama.prepare(Embed(1, [long], 2))  # in several steps
    assert refusal(llama, Embed(1, [["x " * 600]], 2))[0] == "exceed_context_size_error"


def test_a_slot_has_at_most_its_limit() -> None:
    engine = embedder("tiny-embed", kv_unified_per_slot=300, parallel=2)
    assert engine.n_ctx == engine.info.n_ctx == 300
    assert refusal(engine, Embed(1, [[5] * 301], 2))[0] == "exceed_context_size_error"


def test_the_longest_input_that_fits() -> None:
    for name, size in (("tiny-bert", 128), ("tiny-embed", 512)):
        engine = embedder(name)
        assert engine.n_ctx == size
        [[rows]] = run(engine, Embed(1, [[5] * size], 2)).values()
        assert np.linalg.norm(rows) == pytest.approx(1)
        assert refusal(engine, Embed(1, [[5] * (size + 1)], 2))[0] == "exceed_context_size_error"


@pytest.mark.parametrize("pooling", ["mean", "last"])
@pytest.mark.parametrize("size", [1, 100, 2048])
@pytest.mark.parametrize("parallel", [1, 3, 100, 256])
def test_any_number_of_sequences_and_any_batch(pooling: str, size: int, parallel: int) -> None:
    for name in ("tiny-bert", "tiny-embed"):
        options = {"pooling": pooling, "parallel": parallel, "batch_size": size}
        engine = embedder(name, **options, ubatch_size=size)
        assert engine.info.n_slots == parallel
        engine.close()


def test_models_that_can_not_do_it() -> None:
    for name in ("tiny-embed", "tiny-bert", ""):
        with pytest.raises(BackendError, match="no classification head"):
            embedder(name, reranking=True)
    with pytest.raises(BackendError, match="--embeddings"):
        Engine(model("tiny-bert"), engine_options(threads=1))


def test_numbers_that_are_none_fail_their_request(monkeypatch: pytest.MonkeyPatch) -> None:
    engine = embedder("tiny-bert")
    read = engine.context.vector_of_sequence
    broken: list[int] = []

    def vector(sequence: int) -> Rows:
        rows = read(sequence)
        if not broken:
            broken.append(sequence)
            rows[0, 0] = np.nan
        return rows

    monkeypatch.setattr(engine.context, "vector_of_sequence", vector)
    for id in (1, 2):
        engine.submit(engine.prepare(Embed(id, [["wool"], ["bus"]], 2)))
    failed, fine = sorted(stepped(engine), key=lambda event: not isinstance(event, Failed))
    assert isinstance(failed, Failed)
    assert isinstance(fine, Vectors)
    assert not engine.has_work


def test_a_decode_that_fails_ends_its_requests_only(monkeypatch: pytest.MonkeyPatch) -> None:
    engine = embedder("tiny-embed", ubatch_size=16)
    long: PromptParts = [" ".join(TEXTS * 3)]
    for id in (1, 2):
        engine.submit(engine.prepare(Embed(id, [long], 2)))

    def decode() -> None:
        raise BackendError("no")

    with monkeypatch.context() as patch:
        patch.setattr(engine.context, "decode", decode)
        [event] = stepped(engine)
    assert isinstance(event, Failed)
    assert (event.id, event.error.type, event.error.message) == (1, "server_error", "no")
    answers = []
    while engine.has_work:
        answers += stepped(engine)
    assert [(answer.id, type(answer)) for answer in answers] == [(2, Vectors)]


@pytest.fixture
def slotted() -> Iterator[Embedder]:
    engine = embedder("tiny-embed", parallel=3, ubatch_size=16)
    yield engine
    engine.close()


def test_slots_show_the_current_work(slotted: Embedder) -> None:
    assert [slot.id for slot in slotted.slots()] == [0, 1, 2]
    assert not any(slot.is_processing for slot in slotted.slots())
    slotted.submit(slotted.prepare(Embed(7, [[" ".join(TEXTS * 3)]], 2)))
    stepped(slotted)
    [working] = [slot for slot in slotted.slots() if slot.is_processing]
    assert (working.id_task, working.n_prompt_tokens_processed) == (7, 16)
    assert slotted.info.n_slots == 3


def test_every_pooling_is_known() -> None:
    assert set(get_args(Pooling)) == {"none", "mean", "cls", "last", "rank"}


def test_the_longest_input_is_reported() -> None:
    """If all of it has to be evaluated at once, it is limited to a micro-batch."""
    for name in ("tiny-embed", "tiny-bert"):
        engine = embedder(name, pooling="mean", ubatch_size=16)
        longest = engine.info.n_input
        token: PromptParts = [5]
        assert run(engine, Embed(1, [token * longest], RAW))
        with pytest.raises(EngineError):
            engine.prepare(Embed(2, [token * (longest + 1)], RAW))


def test_the_time_of_a_step_ends_when_the_device_has_finished(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    engine, calls = embedder("random"), list[str]()
    count, synchronize = Embedder._count_step, Context.synchronize

    def counted(one: Embedder, pieces: list[InputPart], n_tokens: int, seconds: float) -> None:
        calls.append("counted")
        count(one, pieces, n_tokens, seconds)

    def synchronized(context: Context) -> None:
        calls.append("finished")
        synchronize(context)

    monkeypatch.setattr(Embedder, "_count_step", counted)
    monkeypatch.setattr(Context, "synchronize", synchronized)
    run(engine, Embed(1, [["import os"]], RAW))
    assert calls[:2] == ["finished", "counted"]


# ---- media ---------------------------------------------------------------------------------


def seeing(name: str, projector: str, **options: Any) -> Embedder:
    chosen = engine_options(**{"embedding": True, **EXACT, **options})
    return Embedder(model(name), chosen, Projector(str(ensure(projector)), model(name), chosen))


@pytest.mark.parametrize("pooling", ["none", "mean", "last", "cls"])
@pytest.mark.parametrize(
    ("name", "projector"),
    [
        ("random", "tiny-mmproj"),
        ("random", "tiny-mmproj-whole"),
        ("random", "tiny-mmproj-slices"),
        ("tiny-mrope", "tiny-mmproj-mrope"),
    ],
)
def test_inputs_with_media(name: str, projector: str, pooling: Pooling) -> None:
    """The same vector in any batch and in pieces of any size; a different one for another image."""
    inputs: list[PromptParts] = [
        ["Here is ", image(1), " and that is it"],
        ["Here is ", image(2), " and that is it"],
        [image(1)],
        ["no image at all"],
        [image(1), image(2), "x", image(1)],
    ]
    engine = seeing(name, projector, pooling=pooling)
    together = run(engine, Embed(1, inputs, normalize=RAW), Embed(2, [["a text"]], normalize=RAW))
    alone = [run(engine, Embed(3 + i, [each], normalize=RAW)) for i, each in enumerate(inputs)]
    engine.close()
    rows = together[1]
    for i, answer in enumerate(alone):
        np.testing.assert_allclose(answer[3 + i][0], rows[i], atol=COSINE)
    if pooling != "cls":
        assert np.abs(rows[0][-1] - rows[1][-1]).max() > 0.01
    engine = seeing(name, projector, pooling=pooling, ubatch_size=64, batch_size=64)
    small = run(engine, Embed(1, inputs, normalize=RAW))[1]
    engine.close()
    for one, other in zip(small, rows, strict=True):
        np.testing.assert_allclose(one, other, atol=COSINE)


def test_models_without_eyes_take_no_images() -> None:
    for engine in (embedder("random"), embedder("tiny-bert")):
        with pytest.raises(EngineError, match="image input is not supported"):
            engine.prepare(Embed(1, [["a", image(1)]], normalize=RAW))
        engine.close()
