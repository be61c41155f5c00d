"""Token probabilities: the arithmetic, the values of a real model, and the events that have
them."""

import codecs
import math
from collections.abc import Iterator
from itertools import pairwise
from typing import Any

import msgspec
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays

from specllama.engine.errors import EngineError
from specllama.engine.params import GenerationParams
from specllama.engine.wire.replies import Begun, Delta, Finished, TokenProbs
from specllama.engine.wire.requests import Submit
from specllama.engine.worker.backend import Model
from specllama.engine.worker.backend.row_scan import log_sum_exp
from specllama.engine.worker.backend.sampler import largest
from specllama.engine.worker.generation.engine import Engine
from specllama.engine.worker.generation.probabilities import LOWEST, ProbabilityLog
from specllama.engine.worker.generation.request import TextStream
from specllama.handlers.apis.probabilities import (
    DEFAULT_TOP_LOGPROBS,
    chat_probabilities,
    native_probabilities,
    text_probabilities,
    whole_text,
)
from specllama.handlers.running.choices import mean_log_probability
from tests.support.options_support import engine_options
from tests.support.playing import stepped

pytestmark = pytest.mark.usefixtures("orders")

# ---- arithmetic --------------------------------------------------------------------------

rows = arrays.arrays(
    np.float32,
    st.integers(1, 60),
    elements=st.integers(-4, 4).map(float) | st.floats(-1e4, 1e4, width=32) | st.just(-math.inf),
)


@given(rows, st.integers(1, 70))
def test_the_largest_come_first(row: Any, n: int) -> None:
    n = min(n, len(row))
    where = largest(row, n)
    assert len(set(where.tolist())) == len(where) == n
    values = row[where]
    assert values.tolist() == sorted(row.tolist(), reverse=True)[:n]
    # Of equal values, the one with the smallest id comes first; the greedy choice is the first of
    # all.
    pairs = zip(pairwise(where), pairwise(values), strict=True)
    assert all(i < j for (i, j), (a, b) in pairs if a == b)
    assert where[0] == row.argmax()


@pytest.mark.parametrize("size", [1, 2, 1023, 1024, 2047, 2048, 5000, 30_001])
@pytest.mark.parametrize("n", [1, 2, 20, 300, 1024, 4000])
@pytest.mark.parametrize("kinds", [2, 500, 10**6])
def test_the_largest_of_many(size: int, n: int, kinds: int) -> None:
    row = np.random.default_rng(size + n).integers(0, kinds, size).astype(np.float32)
    assert largest(row, n).tolist() == np.argsort(-row, kind="stable")[:n].tolist()


@given(rows.filter(lambda row: np.isfinite(row).any()))
def test_probabilities_add_up_to_one(row: Any) -> None:
    logs = row.astype(np.float64) - log_sum_exp(row)
    assert math.fsum(np.exp(logs)) == pytest.approx(1, abs=1e-5)
    assert (logs <= 0).all()


@pytest.mark.parametrize("piece", ["", "a", "é日", "a\N{LLAMA}"])
def test_a_token_s_text_has_whole_characters(piece: str) -> None:
    data = piece.encode()
    assert whole_text(data) == piece
    for cut in range(len(data)):
        assert piece.startswith(whole_text(data[:cut]))
    assert whole_text(data + b"\xe6\x97") == piece
    assert whole_text(b"\x80" + data) == ""


# ---- which event has which tokens --------------------------------------------------------


class Forced:
    """Stands in for sampler and context: its tokens are 0, 1, 2, ..."""

    def __init__(self) -> None:
        self.next = -1

    def sample(self, *_: Any) -> int:
        self.next += 1
        return self.next

    def wanted(self, *, is_limited: bool) -> None:
        pass

    def logits(self, _: int) -> Any:
        return np.zeros(1000, np.float32)


@given(
    st.text("ab\né日\N{LLAMA}", min_size=1).map(str.encode),
    st.lists(st.integers(1, 5), min_size=1),
    st.lists(st.text("ab\né", min_size=1, max_size=3), max_size=3),
    st.integers(0, 2),
)
def test_an_event_has_the_tokens_whose_text_it_begins(
    data: bytes, lengths: list[int], stops: list[str], cut: int
) -> None:
    data = data[: len(data) - cut]  # may end inside of a character
    pieces: list[bytes] = []
    while data:
        n = lengths[len(pieces) % len(lengths)]
        pieces.append(data[:n])
        data = data[n:]
    decoder = codecs.getincrementaldecoder("utf-8")("replace")
    begins = []  # in characters
    total = 0
    for piece in pieces:
        begins.append(total)
        total += len(decoder.decode(piece))

    forced: Any = Forced()
    log = ProbabilityLog(1, False, lambda token: b"")
    stream = TextStream(stops)
    taken: list[int] = []
    shown = 0
    for piece in pieces:
        log.sample(forced, forced, 0)
        text = stream.feed(piece)
        log.shown(len(text), stream.n_held)
        shown += len(text)
        if stream.stopping_word:
            break
        if text:
            taken += [entry.id for entry in log.take()]
            assert taken == [i for i, begin in enumerate(begins) if begin < shown][: len(taken)]
            assert all(begin >= shown for begin in begins[len(taken) : forced.next + 1])
    if not stream.stopping_word:
        text = stream.finish()
        log.shown(len(text), 0)
        shown += len(text)
    taken += [entry.id for entry in log.take(all=not stream.stopping_word)]
    if stream.stopping_word:
        assert taken == [i for i, begin in enumerate(begins) if begin < shown]
    else:
        assert taken == list(range(len(pieces)))


# ---- a real model ------------------------------------------------------------------------


@pytest.fixture(scope="module")
def engine(model: Model) -> Iterator[Engine]:
    options = engine_options(ctx_size=512, parallel=1, threads=1, threads_batch=1)
    engine = Engine(model, options)
    yield engine
    engine.close()


def play(engine: Engine, prompt: str, logits: list[Any] | None = None, **params: Any) -> Finished:
    """The whole answer (of a stream: put together); `logits` gets those of every step."""
    assert not engine.submit(
        engine.preparation.prepare(Submit(1, [prompt], GenerationParams(**params)))
    )
    text, tokens, probs = "", list[int](), list[TokenProbs]()
    while True:
        for event in stepped(engine):
            if isinstance(event, Begun):
                continue
            assert isinstance(event, Delta | Finished)
            text, tokens, probs = text + event.text, tokens + event.tokens, probs + event.probs
            if isinstance(event, Finished):
                if logits is not None:
                    logits.append(engine.context.logits(-1).astype(np.float64))
                return msgspec.structs.replace(event, text=text, tokens=tokens, probs=probs)
        if logits is not None:
            logits.append(engine.context.logits(-1).astype(np.float64))


PROMPT = "def read(path):"


@pytest.mark.parametrize("temperature", [0.0, 1.5])
def test_they_are_those_of_the_logits(engine: Engine, temperature: float) -> None:
    logits: list[Any] = []
    result = play(
        engine, PROMPT, logits, n_predict=12, n_probs=7, temperature=temperature,
        ignore_eos=True, logit_bias=[(5, 3.0)], seed=3,
    )  # fmt: skip
    assert [entry.id for entry in result.probs] == result.tokens
    for entry, row in zip(result.probs, logits, strict=True):
        logs = row - np.logaddexp.reduce(row)
        assert entry.value == pytest.approx(logs[entry.id], abs=1e-4)
        order = np.argsort(-row, kind="stable")[:7]
        assert [id for id, _, _ in entry.top] == order.tolist()
        assert [v for _, _, v in entry.top] == pytest.approx(logs[order].tolist(), abs=1e-4)
        assert all(piece == engine.model.piece(id, special=False) for id, piece, _ in entry.top)


def test_all_tokens_together_are_certain(engine: Engine) -> None:
    result = play(engine, PROMPT, n_predict=2, n_probs=2**31 - 1)
    for entry in result.probs:
        assert len(entry.top) == engine.model.n_vocab
        assert math.fsum(math.exp(value) for _, _, value in entry.top) == pytest.approx(1, abs=1e-5)


SAMPLING: list[dict[str, Any]] = [
    {},
    {"temperature": 0.0},
    {"temperature": 0.0, "samplers": ["temperature", "adaptive_p"]},
    {"samplers": []},
    {"samplers": ["top_k", "temperature"], "top_k": 3},
    {"repeat_penalty": 1.3, "dry_multiplier": 0.8, "min_p": 0.0, "top_p": 1.0},
    {"mirostat": 1},
    {"mirostat": 2},
    {"samplers": ["adaptive_p"]},
    {"samplers": ["adaptive_p", "min_p"], "adaptive_target": 0.1, "adaptive_decay": 0.5},
    {"xtc_probability": 0.5, "xtc_threshold": 0.01, "logit_bias": [(7, 2.0)]},
]


@pytest.mark.parametrize("params", SAMPLING, ids=str)
def test_looking_changes_nothing(engine: Engine, params: dict[str, Any]) -> None:
    params = {"n_predict": 16, "seed": 5, "ignore_eos": True, "cache_prompt": False, **params}
    blind = play(engine, PROMPT, **params)
    for post in (False, True):
        result = play(engine, PROMPT, n_probs=4, post_sampling_probs=post, **params)
        assert result.tokens == blind.tokens
        assert result.text == blind.text
        assert [entry.id for entry in result.probs] == blind.tokens


@pytest.mark.parametrize("params", SAMPLING, ids=str)
def test_probabilities_after_sampling(engine: Engine, params: dict[str, Any]) -> None:
    params = {"n_predict": 8, "seed": 5, "ignore_eos": True, "min_p": 0.0, **params}
    result = play(engine, PROMPT, n_probs=5000, post_sampling_probs=True, **params)
    for entry in result.probs:
        values = [value for _, _, value in entry.top]
        assert values == sorted(values, reverse=True)
        assert all(0 < value <= 1 for value in values)
        assert sum(values) == pytest.approx(1, abs=1e-3)
        assert entry.value == {id: value for id, _, value in entry.top}[entry.id]
        if params.get("top_k"):
            assert len(values) == 3
        if params.get("temperature") == 0:
            assert values == [1]


def test_few_are_the_likeliest_of_many(engine: Engine) -> None:
    params: dict[str, Any] = {
        "n_predict": 6,
        "seed": 5,
        "post_sampling_probs": True,
        "min_p": 0.0,
        "top_k": 0,
    }
    many = play(engine, PROMPT, n_probs=5000, cache_prompt=False, **params)
    few = play(engine, PROMPT, n_probs=3, cache_prompt=False, **params)
    assert [entry.top for entry in few.probs] == [entry.top[:3] for entry in many.probs]


@pytest.mark.parametrize("samplers", [["temperature"], ["adaptive_p"], []])
def test_where_every_token_is_forbidden(engine: Engine, samplers: list[str]) -> None:
    forbidden = [(id, -math.inf) for id in range(engine.model.n_vocab)]
    for target in (-1.0, 0.5):
        params: dict[str, Any] = {"samplers": samplers, "adaptive_target": target}
        params |= {"logit_bias": forbidden, "post_sampling_probs": True}
        result = play(engine, PROMPT, n_predict=3, n_probs=3, **params)
        for entry in result.probs:
            assert 0 <= entry.value <= 1
            assert all(0 < value <= 1 for _, _, value in entry.top)


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("stops", [[], ["e"], ["s", "er", "\n"]])
def test_they_make_up_the_text(engine: Engine, stops: list[str], stream: bool) -> None:
    params: dict[str, Any] = {"n_predict": 30, "ignore_eos": True, "stop": stops, "stream": stream}
    for seed in range(5):
        result = play(engine, PROMPT, n_probs=1, seed=seed, **params)
        whole = b"".join(entry.piece for entry in result.probs).decode("utf-8", "replace")
        if result.stop_type == "word":
            assert whole.startswith(result.text)
            last = result.probs[-1].piece if result.probs else b""
            assert len(whole) - len(result.text) < max(1, len(last))
        else:
            assert whole == result.text


def test_impossible_tokens_have_a_finite_logarithm() -> None:
    forced: Any = Forced()
    forced.logits = lambda _: np.array([-np.inf, 1, -np.inf], np.float32)
    log = ProbabilityLog(3, False, lambda token: b"x")
    log.sample(forced, forced, 0)
    [entry] = log.take(all=True)
    assert entry.value == LOWEST
    assert [value for _, _, value in entry.top] == [0, LOWEST, LOWEST]


def test_no_request_for_probabilities(engine: Engine) -> None:
    assert play(engine, PROMPT, n_predict=3).probs == []
    assert play(engine, PROMPT, n_predict=0, n_probs=3).probs == []


# ---- what requests ask for ---------------------------------------------------------------

ENTRY = TokenProbs(5, b"a\xe6", -0.5, [(5, b"a\xe6", -0.5), (6, b"b", -1.5)])


def test_the_native_fields() -> None:
    assert native_probabilities(GenerationParams()) is None
    form = native_probabilities(GenerationParams(n_probs=9))
    assert form is not None
    first = {"id": 5, "token": "a", "bytes": [97, 230], "logprob": -0.5}
    second = {"id": 6, "token": "b", "bytes": [98], "logprob": -1.5}
    assert form.content([ENTRY]) == [{**first, "top_logprobs": [first, second]}]
    form = native_probabilities(GenerationParams(n_probs=1, post_sampling_probs=True))
    assert form is not None
    first["prob"] = first.pop("logprob")
    assert form.content([ENTRY]) == [{**first, "top_probs": [first]}]


@pytest.mark.parametrize(
    ("body", "n_probs"),
    [
        ({}, 0),
        ({"logprobs": None}, 0),
        ({"logprobs": 0}, 0),
        ({"logprobs": 4}, 4),
        ({"logprobs": 4, "n_probs": 2}, 2),
        ({"logprobs": 4, "n_probs": None}, 4),
    ],
)
def test_the_fields_of_text_completions(body: Any, n_probs: int) -> None:
    given = GenerationParams(n_probs=body.get("n_probs") or 0)
    params, probabilities = text_probabilities(body, given)
    assert (probabilities is None) == (not n_probs)
    assert params.n_probs == n_probs


@pytest.mark.parametrize(
    ("body", "n_probs", "n_rivals"),
    [
        ({}, 0, None),
        ({"logprobs": False}, 0, None),
        ({"logprobs": True}, DEFAULT_TOP_LOGPROBS, 2),
        ({"logprobs": True, "top_logprobs": 1}, 1, 1),
        ({"logprobs": True, "top_logprobs": 0}, 1, 0),
        ({"n_probs": 3}, 3, 2),
        ({"n_probs": 3, "logprobs": True, "top_logprobs": 1}, 1, 1),
    ],
)
def test_the_fields_of_chats(body: Any, n_probs: int, n_rivals: int | None) -> None:
    given = GenerationParams(n_probs=body.get("n_probs") or 0)
    params, form = chat_probabilities(body, given)
    assert params.n_probs == n_probs
    rivals = form and len(form.content([ENTRY])[0]["top_logprobs"])
    assert rivals == n_rivals


@pytest.mark.parametrize("body", [{"top_logprobs": 2}, {"logprobs": False, "top_logprobs": 0}])
def test_top_logprobs_alone_is_refused(body: Any) -> None:
    with pytest.raises(EngineError, match="top_logprobs") as caught:
        chat_probabilities(body, GenerationParams())
    assert caught.value.info.type == "invalid_request_error"


@settings(max_examples=30)
@given(st.lists(st.floats(0.001, 1), min_size=1), st.booleans())
def test_the_mean_is_of_logarithms(probs: list[float], post: bool) -> None:
    entries = [TokenProbs(1, b"", p if post else math.log(p), []) for p in probs]
    result: Any = type("Result", (), {})()
    result.probs = entries
    result.params = GenerationParams(post_sampling_probs=post)
    expected = math.log(math.prod(probs)) / len(probs) if math.prod(probs) > 0 else None
    if expected is not None:
        assert mean_log_probability(result) == pytest.approx(expected, abs=1e-6)
