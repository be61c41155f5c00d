"""Choosing from a shortlist is choosing from all tokens."""

from typing import Any

import msgspec
import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

import specllama.engine.worker.backend.sampler as sampler_module
from specllama.engine.params import DEFAULT_SAMPLERS, GenerationParams
from specllama.engine.worker.backend import Model, NoTokenError, Sampler, row_scan
from specllama.engine.worker.backend.candidates import Candidates
from specllama.engine.worker.backend.row_scan import Top, top
from specllama.engine.worker.backend.sampler import choose_found, choose_together, have_unique_order
from specllama.engine.worker.backend.sampler_chain import (
    ARGMAX,
    Shortlist,
    effective,
    is_greedy,
    plan,
    shortlist,
)
from specllama.engine.worker.tokens import TokenSet

N_CTX = 256


class Wide:
    """A model with a large vocabulary, as far as samplers look at it."""

    def __init__(self, model: Model) -> None:
        self.n_vocab, self._vocab = 50_000, model._vocab


class Rows:
    """Stands in for a context that has just evaluated some rows of logits."""

    def __init__(self, model: Model, rows: Any) -> None:
        self.model, self._rows = model, rows
        self.candidates = Candidates(model.n_vocab)
        self._ctx = None

    def logits(self, index: int) -> Any:
        return self._rows[index]


def play(
    model: Model, params: GenerationParams, rows: Any, allowed: Any, few: int
) -> tuple[list[Any], int]:
    """The token chosen from each row, with the candidates that are left, and the number of rows
    with a shortlist."""
    before = sampler_module.FEW, row_scan.LARGE
    sampler_module.FEW, row_scan.LARGE = few, row_scan.N_GROUPS
    sampler = Sampler(model, params, N_CTX, np.arange(40, dtype=np.int32))
    context: Any = Rows(model, rows)
    n_short = 0
    apply = sampler._apply_short

    def counted(*args: Any) -> bool:
        nonlocal n_short
        done = apply(*args)
        n_short += done
        return done

    setattr(sampler, apply.__name__, counted)
    chosen: list[Any] = []
    try:
        for index in range(len(rows)):
            try:
                token, ids, probs = sampler.sample_among(context, index, allowed)
                # llama.cpp's typical sampling gives no numbers where all but one token are
                # impossible; those are equal here.
                chosen.append((token, ids.tolist(), np.nan_to_num(probs, nan=-1).tolist()))
            except NoTokenError:
                chosen.append(None)
    finally:
        sampler_module.FEW, row_scan.LARGE = before
        sampler.close()
    return chosen, n_short


rates = st.sampled_from([0.0, 0.0, 0.7, -0.7])
biases = st.tuples(st.integers(0, 60), st.sampled_from([-np.inf, -3.0, 0.1, 30.0, 4.25]))
all_params = st.builds(
    GenerationParams,
    seed=st.integers(0, 2**32 - 2),
    samplers=st.just(list(DEFAULT_SAMPLERS)) | st.permutations(DEFAULT_SAMPLERS),
    temperature=st.sampled_from([0.0, 0.8, 1.7]),
    dynatemp_range=st.sampled_from([0.0, 0.0, 0.5]),
    top_k=st.sampled_from([0, 1, 3, 40, 129, 400, 2**31 - 1]),
    top_p=st.sampled_from([0.95, 1.0, 0.3, 1 - 1e-12]),
    min_p=st.sampled_from([0.0, 0.05, 0.6, 1.0, 1e-60]),
    typical_p=st.sampled_from([1.0, 1.0, 0.5]),
    top_n_sigma=st.sampled_from([-1.0, -1.0, 1.5]),
    xtc_probability=st.sampled_from([0.0, 0.0, 0.5]),
    xtc_threshold=st.sampled_from([0.01, 0.4]),
    min_keep=st.sampled_from([0, 0, 5]),
    repeat_last_n=st.sampled_from([64, 3, -1, 0]),
    repeat_penalty=st.sampled_from([1.0, 1.0, 1.3, 0.5]),
    presence_penalty=rates,
    frequency_penalty=rates,
    dry_multiplier=rates,
    dry_allowed_length=st.integers(0, 2),
    logit_bias=st.lists(biases, max_size=4),
)


def lowering(params: GenerationParams) -> GenerationParams:
    """Returns parameters for which a number of the likeliest tokens is sufficient."""
    return msgspec.structs.replace(
        params,
        samplers=[*DEFAULT_SAMPLERS],
        top_n_sigma=-1.0,
        top_k=min(params.top_k or 40, 400),
        repeat_penalty=max(1.0, params.repeat_penalty),
        presence_penalty=abs(params.presence_penalty),
        frequency_penalty=abs(params.frequency_penalty),
        dry_multiplier=abs(params.dry_multiplier),
        logit_bias=[(token, -abs(float(bias))) for token, bias in params.logit_bias],
    )


def logits(seed: int, n_rows: int, n_vocab: int, kind: str) -> Any:
    rng = np.random.default_rng(seed)
    rows = rng.normal(scale=3, size=(n_rows, n_vocab)).astype(np.float32)
    if kind == "ties":
        rows = rows.round(1)
    elif kind == "few":
        rows[rng.random(rows.shape) < 0.99] = -np.inf
    elif kind == "flat":
        rows[:] = 0
    elif kind == "history":
        rows[:, :100] += 8  # what penalties and biases reach
    elif kind == "elsewhere":
        rows[:, n_vocab // 2 :] += 30
    elif kind == "growing":
        rows += np.arange(n_rows, dtype=np.float32)[:, None] * 3
    return rows


@settings(max_examples=150, deadline=None)
@given(
    params=all_params,
    seed=st.integers(0, 2**32),
    kind=st.sampled_from(["normal", "normal", "ties", "few", "flat", "history", "growing"]),
    share=st.sampled_from([None, None, 1.0, 0.7, 0.05, 0.0005]),
)
def test_a_shortlist_changes_nothing(
    model: Model, params: GenerationParams, seed: int, kind: str, share: float | None
) -> None:
    rows = logits(seed, 4, model.n_vocab, kind)
    allowed = None
    if share is not None:
        marks = np.random.default_rng(seed).random(model.n_vocab) < share
        marks[7] = True
        allowed = TokenSet.of(np.flatnonzero(marks), model.n_vocab)
    whole, n_short = play(model, params, rows, allowed, few=model.n_vocab)
    assert n_short == 0
    short, _ = play(model, params, rows, allowed, few=0)
    if is_greedy(params):  # then the candidates have no probabilities
        short, whole = ([found and found[0] for found in list] for list in (short, whole))
    assert short == whole


@settings(max_examples=100, deadline=None)
@given(
    each=st.lists(all_params, min_size=1, max_size=5),
    seed=st.integers(0, 2**32),
    kind=st.sampled_from(["normal", "normal", "ties", "few", "flat"]),
)
def test_choosing_together_changes_nothing(
    model: Model, each: list[GenerationParams], seed: int, kind: str
) -> None:
    n_steps = 3
    rows = logits(seed, n_steps * len(each), model.n_vocab, kind)
    wanted = [
        [None if found is None else found[0] for found in play(model, params, own, None, few=0)[0]]
        for params, own in zip(each, rows.reshape(len(each), n_steps, -1), strict=True)
    ]
    before, sampler_module.FEW = sampler_module.FEW, 0
    none = np.arange(40, dtype=np.int32)
    samplers = [Sampler(model, params, N_CTX, none) for params in each]
    context: Any = Rows(model, rows)
    try:
        for step in range(n_steps):
            indices = [n_steps * number + step for number in range(len(each))]
            tokens: dict[int, int | None] = {}
            together: list[tuple[int, Sampler, Top]] = []
            for index, sampler in zip(indices, samplers, strict=True):
                number = sampler.wanted(is_limited=False)
                found = None if number is None else top(rows[index], number)
                if sampler.is_simple and found is not None:
                    together.append((index, sampler, found))
            chosen = choose_together([s for _, s, _ in together], [row for _, _, row in together])
            tokens.update(zip((index for index, _, _ in together), chosen, strict=True))
            for number, (index, sampler) in enumerate(zip(indices, samplers, strict=True)):
                token = tokens.get(index)
                if token is None:
                    token = sampler.sample_among(context, index)[0]
                assert token == wanted[number][step]
    finally:
        sampler_module.FEW = before
        for sampler in samplers:
            sampler.close()


@settings(max_examples=150, deadline=None)
@given(
    params=all_params.map(lowering),
    seed=st.integers(0, 2**32),
    kind=st.sampled_from(["normal", "history", "elsewhere", "growing"]),
)
def test_sufficient_tokens_change_nothing(
    model: Model, params: GenerationParams, seed: int, kind: str
) -> None:
    sampler = Sampler(model, params, N_CTX, np.arange(40, dtype=np.int32))
    try:
        n = sampler.n_sufficient
        assert n is not None
        assert n <= 400 + 4 + N_CTX
        rows = logits(seed, 4, model.n_vocab, kind)
        whole, _ = play(model, params, rows, None, few=model.n_vocab)
        rng = np.random.default_rng(seed)
        for row, wanted in zip(rows, whole, strict=True):
            ids = np.sort(row.argpartition(-n)[-n:]).astype(np.int32)
            found = row[ids]
            assume(len(np.unique(found)) == n)
            order = rng.permutation(n)
            chosen = choose_found([sampler], ids[None, order], found[None, order], Candidates(n))
            assert chosen == [wanted[0]]
    finally:
        sampler.close()


@pytest.mark.parametrize(
    ("params", "n"),
    [
        ({}, 40),
        ({"temperature": 0.0}, 1),
        ({"repeat_penalty": 1.1}, 40 + 64),
        ({"repeat_penalty": 0.9}, None),
        ({"presence_penalty": -1.0}, None),
        ({"dry_multiplier": 0.5, "dry_penalty_last_n": -1}, 40 + N_CTX),
        ({"dry_multiplier": -0.5}, None),
        ({"logit_bias": [(5, -1.0), (6, -np.inf)]}, 42),
        ({"logit_bias": [(5, -1.0), (6, 0.5)]}, None),
        ({"logit_bias": [(5, -1.0)], "temperature": 0.0, "repeat_penalty": 1.1}, 105),
        ({"top_k": 0, "min_p": 0.5}, None),
        ({"mirostat": 2}, None),
    ],
    ids=str,
)
def test_how_many_tokens_are_sufficient(
    model: Model, params: dict[str, Any], n: int | None
) -> None:
    sampler = Sampler(model, GenerationParams(**params), N_CTX, np.array([], np.int32))
    assert sampler.n_sufficient == n
    sampler.close()


def test_usual_samplers_choose_together(model: Model) -> None:
    wide: Any = Wide(model)
    given: list[dict[str, Any]] = [
        {},
        {"temperature": 0.0},
        {"top_k": 0, "top_p": 1.0, "min_p": 0.1},
        {"top_k": 5},
        {"xtc_probability": 1.0, "xtc_threshold": 0.01},  # moves the start of the candidates
    ]
    samplers = [
        Sampler(wide, GenerationParams(seed=1, **each), N_CTX, np.array([], np.int32))
        for each in given
    ]
    rows = [
        top(row, sampler.wanted(is_limited=False) or 0)
        for row, sampler in zip(logits(1, 5, wide.n_vocab, "normal"), samplers, strict=True)
    ]
    assert all(sampler.is_simple for sampler in samplers)
    assert None not in rows
    chosen = choose_together(samplers, [row for row in rows if row is not None])
    for number, (each, row) in enumerate(zip(given, rows, strict=True)):
        params = GenerationParams(seed=1, **each)
        alone = Sampler(wide, params, N_CTX, np.array([], np.int32))
        context: Any = Rows(wide, logits(1, 5, wide.n_vocab, "normal"))
        assert chosen[number] == alone.sample_among(context, number, None, row)[0]
        alone.close()
    for sampler in samplers:
        sampler.close()


def test_ranks_must_be_unique() -> None:
    rows = [[3.0, 1, 2], [3.0, 2, 2], [3.0, 3, 1], [3.0], [2.0, 2, 2], [1.0, 0, 1]]
    arrays = [np.array(row, np.float32) for row in rows]
    assert have_unique_order(arrays, [2, 2, 2, 1, 0, 3]) == [True, False, False, True, True, False]
    assert have_unique_order(arrays, [3, 1, 1, 2, 3, 1]) == [True, True, False, False, False, False]
    assert have_unique_order([arrays[0], arrays[0][:0]], [0, 0]) == [True, False]


@pytest.mark.parametrize(
    "params",
    [
        {},
        {"temperature": 0.0},
        {"temperature": 0.0, "logit_bias": [(5, 3.0)]},
        {"repeat_penalty": 1.2, "presence_penalty": 0.5, "dry_multiplier": 0.8},
        {"frequency_penalty": -1.0},
        {"logit_bias": [(5, -np.inf), (5, 2.0)]},
        {"top_k": 0, "top_p": 1.0},
    ],
    ids=str,
)
@pytest.mark.parametrize("share", [None, 0.9])
def test_the_usual_chains_have_one(
    model: Model, params: dict[str, Any], share: float | None
) -> None:
    wide: Any = Wide(model)
    rows = logits(3, 6, wide.n_vocab, "normal")
    n_allowed = None if share is None else int(wide.n_vocab * share)
    allowed = None if n_allowed is None else TokenSet.of([*range(n_allowed)], wide.n_vocab)
    _, n_short = play(wide, GenerationParams(seed=1, **params), rows, allowed, few=0)
    assert n_short == (0 if params.get("top_k") == 0 and share else 6)


@pytest.mark.parametrize("kind", ["ties", "elsewhere"])
@pytest.mark.parametrize("seed", range(8))
@pytest.mark.parametrize(
    "params",
    [
        {},
        {"top_k": 1},
        {"top_k": 3},
        {"top_k": 3, "repeat_penalty": 1.2},
        {"logit_bias": [(9, 0.5)]},
    ],
)
def test_it_is_given_up_where_it_is_not_certain(
    model: Model, params: dict[str, Any], seed: int, kind: str
) -> None:
    """Equal logits, which sorting puts into any order, and the likeliest tokens forbidden."""
    wide: Any = Wide(model)
    rows = logits(seed, 6, wide.n_vocab, kind)
    n_allowed = wide.n_vocab // 2 + 40
    allowed = None if kind == "ties" else TokenSet.of([*range(n_allowed)], wide.n_vocab)
    whole = [
        play(wide, GenerationParams(seed=1, **params), rows, allowed, few=few)[0]
        for few in (wide.n_vocab, 0)
    ]
    assert whole[0] == whole[1]


def short_of(**params: Any) -> Shortlist | None:
    specs = effective(plan(GenerationParams(**params), N_CTX))
    return shortlist(specs)


def test_which_chains_look_at_all_tokens() -> None:
    assert short_of() == Shortlist(40)
    assert short_of(temperature=0.0) == ARGMAX
    assert short_of(repeat_penalty=1.1, dry_multiplier=1.0) == Shortlist(40, n_edits=2)
    assert short_of(top_k=0, top_p=1.0) == Shortlist(0, min_p=0.05, by_order=True)
    assert short_of(top_k=0, top_p=1.0, min_keep=3) is None
    params: dict[str, Any]
    for params in (
        {"top_k": 0},
        {"mirostat": 1},
        {"mirostat": 2},
        {"top_n_sigma": 1.0},
        {"samplers": ["temperature", "top_k"]},
        {"samplers": ["xtc", "top_k"], "xtc_probability": 0.5},
        {"samplers": []},
        {"samplers": ["adaptive_p"]},
        {"top_k": 0, "top_p": 1.0, "repeat_penalty": 1.1},
    ):
        assert short_of(**params) is None


@pytest.mark.parametrize(
    ("params", "wanted", "limited"),
    [
        ({"temperature": 0.0}, 1, 18),
        ({"top_k": 1}, 2, 18),  # of two equal ones, sorting may choose either
        ({}, 40, 96),
        ({"logit_bias": [(5, 1.0)]}, 96, 96),
        ({"top_k": 0, "top_p": 1.0, "min_p": 0.5}, np.log(0.5), None),
        ({"mirostat": 2}, None, None),
    ],
    ids=str,
)
def test_the_number_of_tokens_that_a_choice_wants(
    model: Model, params: dict[str, Any], wanted: float | None, limited: float | None
) -> None:
    history = np.arange(4, dtype=np.int32)
    wide: Any = Wide(model)
    sampler = Sampler(wide, GenerationParams(**params), N_CTX, history)
    assert sampler.wanted(is_limited=False) == wanted
    assert sampler.wanted(is_limited=True) == limited
    sampler.close()
    sampler = Sampler(model, GenerationParams(**params), N_CTX, history)
    assert sampler.wanted(is_limited=False) is None, "the vocabulary is small"
    sampler.close()


# ---- the only token that may come ---------------------------------------------------------

CHAINS: list[dict[str, Any]] = [
    {},
    {"temperature": 0.0},
    {"temperature": 1.5, "dynatemp_range": 0.7, "top_k": 0, "min_p": 0.0},
    {"mirostat": 1},
    {"mirostat": 2},
    {"mirostat": 2, "temperature": 0.0},
    {"samplers": [*DEFAULT_SAMPLERS, "adaptive_p"], "adaptive_target": 0.4},
    {"samplers": [*DEFAULT_SAMPLERS, "adaptive_p"], "adaptive_target": -1.0},
    {"xtc_probability": 1.0, "xtc_threshold": 0.01},
    {"xtc_probability": 0.5, "xtc_threshold": 0.1, "min_keep": 3, "top_k": 0},
    {"dry_multiplier": 4.0, "dry_allowed_length": 1, "dry_penalty_last_n": -1},
    {"repeat_penalty": 1.7, "frequency_penalty": 0.9, "presence_penalty": 1.1},
    {"typical_p": 0.6, "top_n_sigma": 1.0},
    {"logit_bias": [(3, 4.0), (7, -2.0), (11, float("inf"))]},
    {"logit_bias": [(5, float("-inf"))]},
    {
        "repeat_penalty": 0.8,
        "repeat_last_n": 5,
        "dry_multiplier": -2.0,
        "xtc_probability": 0.5,
        "samplers": ["xtc", "penalties", "dry", "temperature", "top_p", "xtc"],
    },
]


@pytest.mark.parametrize("chain", CHAINS)
@settings(max_examples=15, deadline=None)
@given(
    turns=st.lists(st.none() | st.integers(0, 12), min_size=1, max_size=24),
    seed=st.integers(0, 2**32 - 2),
)
def test_taking_a_token_is_sampling_it_as_the_only_one(
    model: Model, chain: dict[str, Any], turns: list[int | None], seed: int
) -> None:
    """Some tokens are the only ones allowed, others (None) are chosen freely, from the same
    logits: these tell the state of every sampler."""
    params = GenerationParams(**{"seed": seed, **chain})
    rows = logits(seed % 1000, len(turns), model.n_vocab, "history")
    context: Any = Rows(model, rows)
    history = np.arange(40, dtype=np.int32)
    samplers = [Sampler(model, params, N_CTX, history) for _ in range(2)]
    try:
        for index, turn in enumerate(turns):
            if turn is None:
                everything = TokenSet.of([*range(model.n_vocab)], model.n_vocab)
                free = [each.sample_among(context, index, everything) for each in samplers]
                (token, ids, probs), (other, other_ids, other_probs) = free
                assert token == other
                np.testing.assert_array_equal(ids, other_ids)
                np.testing.assert_array_equal(probs, other_probs)
                continue
            forbidden = (turn, float("-inf")) in params.logit_bias
            taking, sampling = samplers
            if forbidden:
                with pytest.raises(NoTokenError):
                    taking.take(turn)
                with pytest.raises(NoTokenError):
                    sampling.sample(context, index, TokenSet.of([turn], model.n_vocab))
            else:
                taking.take(turn)
                assert sampling.sample(context, index, TokenSet.of([turn], model.n_vocab)) == turn
    finally:
        for each in samplers:
            each.close()


@pytest.mark.parametrize(
    "chain",
    [
        {"top_k": 0},  # which moves the generator; the others keep something else
        {"mirostat": 1},
        {"mirostat": 2},
        {"repeat_penalty": 3.0},
        {"dry_multiplier": 9.0, "dry_allowed_length": 1},
        {"samplers": [*DEFAULT_SAMPLERS, "adaptive_p"], "adaptive_target": 0.4},
    ],
)
def test_an_accepted_token_changes_the_next_ones(model: Model, chain: dict[str, Any]) -> None:
    """Otherwise the comparison above might compare two samplers that never change."""
    params = GenerationParams(**{"seed": 4, "temperature": 2.0, **chain})
    context: Any = Rows(model, logits(1, 30, model.n_vocab, "history"))
    everything = TokenSet.of([*range(model.n_vocab)], model.n_vocab)
    chosen = []
    for n_taken in (0, 3):
        sampler = Sampler(model, params, N_CTX, np.arange(4, dtype=np.int32))
        for token in range(n_taken):
            sampler.take(20 + token % 2)
        rows = range(30)
        chosen.append([sampler.sample_among(context, i, everything)[0] for i in rows])
        sampler.close()
    assert chosen[0] != chosen[1]
