"""Finding the likeliest tokens where the model runs (`--backend-sampling`)."""

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
import pytest

from specllama.engine.params import GenerationParams
from specllama.engine.wire.replies import Event, Failed
from specllama.engine.wire.requests import Submit
from specllama.engine.worker.backend import Context, Model, Offload, initialize, sampler
from specllama.engine.worker.backend.offload import N_FOUND
from specllama.engine.worker.backend.sampler import FEW
from specllama.engine.worker.generation.engine import Engine
from specllama.engine.worker.generation.sampling import NOT_FINITE
from tests.support.models import random_model
from tests.support.options_support import engine_options
from tests.support.playing import GREEDY, engine, play, stepped

PROMPTS = [f"def function_{i}(self, value):" for i in range(5)]
JSON_OBJECT = '{"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"]}'


@pytest.fixture(scope="module")
def model() -> Iterator[Model]:
    initialize()
    model = Model(str(random_model()), engine_options())
    yield model
    model.close()


def offloading(model: Model, **options: Any) -> Engine:
    return engine(model, **{"parallel": 5, "threads": 1, "backend_sampling": True, **options})


def is_offloaded(engine: Engine, **params: Any) -> bool:
    params = {"backend_sampling": True, **params}
    request = engine.preparation.prepare(Submit(1, ["once"], GenerationParams(**params)))
    request.close()
    return request.sampler.is_offloaded


def test_a_cpu_finds_the_likeliest_tokens(model: Model) -> None:
    context = offloading(model, kv_unified=True).context
    offload = Offload(context)
    assert offload.works
    tokens = np.arange(300, 305, dtype=np.int32)

    def decode() -> None:
        context.clear(erase=True)
        context.batch.clear()
        for sequence, length in enumerate((5, 2, 3)):
            context.batch.add(tokens[:length], 0, sequence, output=1)
        context.decode()

    decode()
    rows = {index: context.logits(index).copy() for index in (4, 6)}
    offload.arrange({0: True, 1: True})
    decode()
    found = offload.found({4: 0, 6: 1})
    assert found is not None
    for row, ids, logits in zip(rows.values(), *found, strict=True):
        assert sorted(ids.tolist()) == sorted(np.argsort(row)[-N_FOUND:].tolist())
        assert logits.tolist() == row[ids].tolist()
    assert offload.found({9: 2}) is None
    offload.close()


@pytest.mark.parametrize(
    "params",
    [
        GREEDY,
        {},
        {"top_k": 5, "temperature": 1.5},
        {"repeat_penalty": 1.3, "presence_penalty": 0.4},
        {"dry_multiplier": 0.8, "dry_penalty_last_n": 40},
        {"logit_bias": [(300, -5.0), (301, float("-inf"))], "ignore_eos": True},
        {"logit_bias": [(300, -5.0), (300, -1.0)], "repeat_penalty": 1.1},
        {"samplers": ["top_k", "penalties", "temperature"], "repeat_penalty": 1.3},
        {"samplers": ["top_k", "temperature", "top_k"]},
        {"dynatemp_range": 0.5},
        {"xtc_probability": 0.5},
        {"typical_p": 0.7, "min_keep": 2},
        {"adaptive_target": 0.3, "samplers": ["top_k", "adaptive_p"]},
    ],
)
@pytest.mark.parametrize("unified", [True, False])
@pytest.mark.parametrize("few", [FEW, 100])
def test_the_tokens_are_those_of_the_host(
    model: Model,
    params: dict[str, Any],
    unified: bool,
    few: int,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(sampler, "FEW", few)  # below, several rows are chosen from together
    # Separate engines, because the cache's content already determines the rounding of attention.
    device, plain = (offloading(model, kv_unified=unified) for _ in range(2))
    assert is_offloaded(device, **params)
    params = {**params, "n_predict": 25, "seed": 11}
    usual = play(plain, PROMPTS, **params)
    chosen = play(device, PROMPTS, backend_sampling=True, **params)
    assert {p: r.tokens for p, r in chosen.items()} == {p: r.tokens for p, r in usual.items()}


@pytest.mark.slow
@pytest.mark.parametrize(
    "params",
    [
        {"grammar": 'root ::= "a"*'},
        {"json_schema": JSON_OBJECT},
        {"n_probs": 1},
        {"mirostat": 2},
        {"dry_multiplier": 0.8, "dry_penalty_last_n": -1},  # looks at the whole text
        {"repeat_penalty": 1.2, "repeat_last_n": 100},
        {"repeat_penalty": 0.9},
        {"presence_penalty": -0.5},
        {"top_n_sigma": 1.0},
        {"top_k": 0},
        {"top_k": N_FOUND + 1},
        {"samplers": []},
        {"logit_bias": [(300, 5.0)]},
        {"backend_sampling": False},
    ],
)
def test_a_choice_among_more_tokens_is_the_hosts(model: Model, params: dict[str, Any]) -> None:
    device = offloading(model)
    assert not is_offloaded(device, **params)
    params = {"backend_sampling": True, **params, "n_predict": 6, "seed": 5}
    plain = {**params, "backend_sampling": False}
    assert (
        play(device, ["once"], **params)["once"].tokens
        == play(engine(model), ["once"], **plain)["once"].tokens
    )


def test_a_server_without_the_option_needs_all_logits(model: Model) -> None:
    assert not is_offloaded(engine(model))


def test_a_device_without_such_a_search(
    model: Model, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(Offload, "_count", lambda *_: 0)
    device = offloading(model)
    assert "--backend-sampling has no effect" in caplog.text
    assert not is_offloaded(device)
    assert play(device, ["once"], n_predict=3, backend_sampling=True)["once"].tokens


def test_a_sequence_may_be_refused(model: Model, monkeypatch: pytest.MonkeyPatch) -> None:
    device = offloading(model)
    with monkeypatch.context() as patched:
        patched.setattr(Context, "set_sampler", lambda *_: False)
        events = _events(device, [Submit(1, ["once"], GenerationParams(backend_sampling=True))])
        (failed,) = [each for each in events if isinstance(each, Failed)]
        assert "doesn't accept a sampler" in failed.error.message
    assert play(device, ["once"], n_predict=3, backend_sampling=True)["once"].tokens


def test_logits_that_are_not_numbers_end_the_request(
    model: Model, monkeypatch: pytest.MonkeyPatch
) -> None:
    device = offloading(model)
    candidates = Offload._candidates

    def damaged(self: Offload, rows: Mapping[int, int]) -> Any:
        ids, logits = candidates(self, rows)
        logits[-1, 5] = np.nan
        return ids, logits

    monkeypatch.setattr(Offload, "_candidates", damaged)
    submits = [
        Submit(id, [PROMPTS[id]], GenerationParams(n_predict=9, backend_sampling=True))
        for id in range(2)
    ]
    events = _events(device, submits)
    assert [each.error.message for each in events if isinstance(each, Failed)] == [NOT_FINITE] * 2


def test_both_kinds_in_one_batch(model: Model) -> None:
    kinds: list[dict[str, Any]] = [{}, {"n_probs": 2}, {"mirostat": 2}, {}, {"top_k": 3}]

    def together(backend_sampling: bool) -> dict[int, list[int]]:
        submits = []
        for id, kind in enumerate(kinds):
            params = GenerationParams(
                n_predict=30, seed=id, backend_sampling=backend_sampling, **kind
            )
            submits.append(Submit(id, [PROMPTS[id]], params))
        return _run(offloading(model), submits)

    assert together(True) == together(False)


def _events(engine: Engine, submits: list[Submit]) -> list[Event]:
    events: list[Event] = []
    for submit in submits:
        events += engine.submit(engine.preparation.prepare(submit))
    while engine.has_work:
        events += stepped(engine)
    return events


def _run(engine: Engine, submits: list[Submit]) -> dict[int, list[int]]:
    tokens: dict[int, list[int]] = {submit.id: [] for submit in submits}
    for event in _events(engine, submits):
        tokens[event.id] += getattr(event, "tokens", [])
    return tokens


def test_who_gives_way_goes_on_with_its_random_numbers() -> None:
    # On the CPU, which gives the same whatever else is in the batch.
    model = Model(str(random_model()), engine_options(device=("none",)))
    # 256 cells for four sequences that want 200 each: some start again, in other sequences.
    prompts = [f"import module_{i}" for i in range(4)]
    params: dict[str, Any] = {"n_predict": 190, "seed": 3, "ignore_eos": True}
    params |= {"repeat_penalty": 1.2, "backend_sampling": True}
    crowded = offloading(model, ctx_size=256, parallel=4, kv_unified=True)
    together = play(crowded, prompts, **params)
    roomy = offloading(model)
    for prompt in prompts:
        assert together[prompt].tokens == play(roomy, [prompt], **params)[prompt].tokens
    for each in (crowded, roomy):
        each.close()
    model.close()


@pytest.mark.long_on_device
def test_requests_that_go_leave_nothing_behind(model: Model) -> None:
    device = offloading(model)
    for round in range(30):
        ids = range(10 * round, 10 * round + 3)
        for id in ids:
            params = GenerationParams(n_predict=8, seed=id, backend_sampling=True)
            device.submit(device.preparation.prepare(Submit(id, [f"module_{id}"], params)))
        for _ in range(round % 5):
            stepped(device)
        device.cancel(ids[0])
        while device.has_work:
            stepped(device)
    assert is_offloaded(device)


def test_a_sequence_keeps_its_sampler(model: Model, monkeypatch: pytest.MonkeyPatch) -> None:
    device = offloading(model)
    play(device, PROMPTS, n_predict=3, backend_sampling=True)
    changes: list[int] = []
    set_sampler = Context.set_sampler

    def noted(context: Context, sequence: int, chain: Any) -> bool:
        changes.append(sequence)
        return set_sampler(context, sequence, chain)

    monkeypatch.setattr(Context, "set_sampler", noted)
    play(device, PROMPTS, n_predict=3, backend_sampling=True, temperature=0.3)
    assert not changes
    play(device, PROMPTS[:1], n_predict=3, n_probs=1)
    assert len(changes) == 1
