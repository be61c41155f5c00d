"""The probabilities of a prompt's tokens are those of the model's own logits."""

from collections.abc import Iterator
from typing import Any

import pytest

from specllama.engine.errors import EngineError
from specllama.engine.params import GenerationParams
from specllama.engine.wire.replies import Delta, Event, Failed, Finished, TokenProbs
from specllama.engine.wire.requests import Submit
from specllama.engine.worker.backend import Model, initialize
from specllama.engine.worker.generation import preparation
from specllama.engine.worker.generation.engine import Engine
from specllama.engine.worker.generation.prompts import tokenize_prompt
from tests.support.options_support import engine_options
from tests.support.playing import GREEDY, engine, play, stepped
from tools.models.build import ensure

TEXT = "A llama carries wool 🦙, and the bus leaves at nine: <|im_end|> yes.\n\n" * 3
N_TOP = 3
ROUNDING = 0.1
"""The tolerance for quantized weights, which are multiplied in another order with more rows."""


def tokens_of(model: Model, text: str = TEXT) -> list[int]:
    tokens: list[int] = tokenize_prompt(model, [text]).tolist()
    return tokens


def run(served: Engine, prompts: list[list[int]], **params: Any) -> dict[int, list[Event]]:
    """All prompts together, with their probabilities; the events of each."""
    events: dict[int, list[Event]] = {}
    for id, prompt in enumerate(prompts, 1):
        asked = GenerationParams(**{"n_predict": 1, "n_probs": N_TOP, **GREEDY, **params})
        submit = Submit(id, [*prompt], asked, prompt_probs=True)
        events[id] = served.submit(served.preparation.prepare(submit))
    while served.has_work:
        for event in stepped(served):
            assert not isinstance(event, Failed), event
            events[event.id].append(event)
    return events


def of_the_prompt(events: list[Event]) -> list[TokenProbs]:
    """Returns the entries of the prompt, which are sent once."""
    carried = [e.prompt_probs for e in events if isinstance(e, Delta | Finished) and e.prompt_probs]
    assert len(carried) == 1
    return carried[0]


def own(served: Engine, prompt: list[int], **params: Any) -> list[dict[int, float]]:
    """Returns the probabilities of all tokens after each part of `prompt`, from the logits of the
    last token of a separate text."""
    found = []
    for n in range(1, len(prompt)):
        asked = GenerationParams(n_predict=1, n_probs=served.model.n_vocab, **GREEDY, **params)
        served.submit(served.preparation.prepare(Submit(1, [*prompt[:n]], asked)))
        [last] = [
            event
            for _ in iter(lambda: served.has_work, False)
            for event in stepped(served)
            if isinstance(event, Finished)
        ]
        found.append({id: value for id, _, value in last.probs[0].top})
    return found


def check(prompt: list[int], probs: list[TokenProbs], expected: list[dict[int, float]]) -> None:
    assert [entry.id for entry in probs] == prompt
    assert (probs[0].value, probs[0].top) == (0.0, [])
    for entry, values in zip(probs[1:], expected, strict=True):
        assert entry.value == pytest.approx(values[entry.id], abs=ROUNDING)
        assert len(entry.top) == N_TOP
        assert entry.top[0][2] == pytest.approx(max(values.values()), abs=ROUNDING)
        for id, _, value in entry.top:
            assert value == pytest.approx(values[id], abs=ROUNDING)


@pytest.fixture(scope="module", params=["tiny-mamba", "tiny-hybrid", "tiny-window"])
def uncuttable(request: pytest.FixtureRequest) -> Iterator[Model]:
    """A model whose memory can't be cut at any token."""
    initialize()
    model = Model(str(ensure(request.param)), engine_options())
    yield model
    model.close()


@pytest.mark.parametrize("rows", [1, 3, 1000])
@pytest.mark.parametrize("options", [{}, {"kv_unified": True}, {"ubatch_size": 8}], ids=str)
def test_they_are_the_model_s_own(
    model: Model, monkeypatch: pytest.MonkeyPatch, rows: int, options: dict[str, Any]
) -> None:
    """With room for any number of rows of logits, with other requests, and with a warm cache."""
    monkeypatch.setattr(preparation, "LOGITS", rows * 4 * model.n_vocab)
    served = engine(model, ctx_size=1024, parallel=2, **options)
    prompt = tokens_of(model)
    other = [*prompt[:40], *prompt[60:]]
    expected, of_other = own(served, prompt), own(served, other)
    for params in ({}, {"n_predict": 0}, {"stream": True}, {"n_predict": 9}):
        events = run(served, [prompt, other, prompt[:1], prompt], **params)
        check(prompt, of_the_prompt(events[1]), expected)
        check(other, of_the_prompt(events[2]), of_other)
        assert [entry.id for entry in of_the_prompt(events[3])] == prompt[:1]
        check(prompt, of_the_prompt(events[4]), expected)
        for id in events:
            last = events[id][-1]
            assert isinstance(last, Finished)
            assert last.timings.cache_n == 0
            assert last.n_decoded == params.get("n_predict", 1)


@pytest.mark.slow
@pytest.mark.parametrize("rows", [3, 1000])
@pytest.mark.parametrize("kv_unified", [True, False], ids=["unified", "separate"])
def test_memory_that_cannot_be_cut(
    uncuttable: Model, monkeypatch: pytest.MonkeyPatch, rows: int, kv_unified: bool
) -> None:
    """They are the same with a cold and a warm cache, and cached values stay right."""
    monkeypatch.setattr(preparation, "LOGITS", rows * 4 * uncuttable.n_vocab)
    served = engine(uncuttable, ctx_size=2048, parallel=2, kv_unified=kv_unified, ubatch_size=16)
    prompt = tokens_of(uncuttable)
    other = [*prompt[:40], *prompt[60:]]
    expected, of_other = (own(served, each, cache_prompt=False) for each in (prompt, other))
    alone = play(served, [TEXT], n_predict=20, cache_prompt=False, **GREEDY)[TEXT].tokens
    for _ in range(2):
        events = run(served, [prompt, other])
        check(prompt, of_the_prompt(events[1]), expected)
        check(other, of_the_prompt(events[2]), of_other)
        for id in events:
            last = events[id][-1]
            assert isinstance(last, Finished)
            assert last.timings.cache_n == 0
        again = play(served, [TEXT], n_predict=20, **GREEDY)[TEXT]
        assert again.tokens == alone
        assert again.timings.cache_n > 0


def test_a_step_has_no_more_rows_than_there_is_room_for(
    model: Model, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(preparation, "LOGITS", 5 * 4 * model.n_vocab)
    served = engine(model, ctx_size=1024, parallel=4)
    batch, most = served.context.batch, []
    decode = served.context.decode

    def counted() -> None:
        most.append(int(batch.outputs[: batch.n_tokens].sum()))
        decode()

    monkeypatch.setattr(served.context, "decode", counted)
    run(served, [tokens_of(model)] * 4)
    assert max(most) <= 5 + 3, "one prompt, beside the next tokens of three texts"


def test_a_preempted_text_is_reported_once(model: Model) -> None:
    served = engine(model, ctx_size=1024, parallel=1)
    prompt = tokens_of(model)
    expected = own(served, prompt)
    asked = GenerationParams(n_predict=4, n_probs=N_TOP, stream=True, **GREEDY)
    events = served.submit(
        served.preparation.prepare(Submit(1, [*prompt], asked, prompt_probs=True))
    )
    events += stepped(served)
    served.pause(1)
    served.resume(1)
    while served.has_work:
        events += stepped(served)
    check(prompt, of_the_prompt(events), expected)


def test_requests_without_prompt_probabilities(model: Model) -> None:
    asked = GenerationParams(n_predict=1, n_probs=1)
    device = engine(model, ctx_size=256, parallel=1, backend_sampling=True)
    with pytest.raises(EngineError, match="--backend-sampling"):
        device.preparation.prepare(Submit(1, [1, 2], asked, prompt_probs=True))
    plain = engine(model, ctx_size=256, parallel=1)
    assert plain.preparation.prepare(Submit(1, [1, 2], asked)).prompt_probs is None
    none = GenerationParams(n_predict=1)
    assert (
        plain.preparation.prepare(Submit(2, [1, 2], none, prompt_probs=True)).prompt_probs is None
    )
