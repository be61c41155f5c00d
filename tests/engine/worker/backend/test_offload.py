"""Sampling where the model runs (`--backend-sampling`), with the shipped model."""

from collections.abc import Iterator
from typing import Any

import pytest

from specllama.engine.params import GenerationParams
from specllama.engine.wire.requests import Submit
from specllama.engine.worker.backend import Model, Offload, OffloadedSampler, Sampler, initialize
from specllama.engine.worker.generation.engine import Engine
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


def sampler_of(engine: Engine, **params: Any) -> Sampler | OffloadedSampler:
    params = {"backend_sampling": True, **params}
    request = engine.preparation.prepare(Submit(1, ["once"], GenerationParams(**params)))
    request.close()
    return request.sampler


def test_a_cpu_supports_all_that_are_tried(model: Model) -> None:
    assert Offload(offloading(model).context).supported >= {"greedy", "dist", "top_k", "penalties"}


@pytest.mark.parametrize(
    "params",
    [
        GREEDY,
        {},
        {"top_k": 5, "temperature": 1.5},
        {"repeat_penalty": 1.3, "presence_penalty": 0.4},
        {"logit_bias": [(300, 5.0), (301, float("-inf"))], "ignore_eos": True},
    ],
)
@pytest.mark.parametrize("unified", [True, False])
def test_the_tokens_are_those_of_the_cpu(
    model: Model, params: dict[str, Any], unified: bool
) -> None:
    # Separate engines, because the cache's content already determines the rounding of attention.
    device, plain = (offloading(model, kv_unified=unified) for _ in range(2))
    assert isinstance(sampler_of(device, **params), OffloadedSampler)
    params = {**params, "n_predict": 25, "seed": 11}
    usual = play(plain, PROMPTS, **params)
    chosen = play(device, PROMPTS, backend_sampling=True, **params)
    assert {p: r.tokens for p, r in chosen.items()} == {p: r.tokens for p, r in usual.items()}


@pytest.mark.parametrize(
    "params",
    [
        {"samplers": ["top_k", "penalties", "temperature"], "repeat_penalty": 1.3},
        {"dynatemp_range": 0.5},
        {"samplers": []},
    ],
)
def test_the_same_seed_gives_the_same_tokens(model: Model, params: dict[str, Any]) -> None:
    first, second = (offloading(model) for _ in range(2))
    assert isinstance(sampler_of(first, **params), OffloadedSampler)
    params = {**params, "n_predict": 25, "seed": 11, "backend_sampling": True}
    once, again = play(first, PROMPTS, **params), play(second, PROMPTS, **params)
    assert {p: r.tokens for p, r in once.items()} == {p: r.tokens for p, r in again.items()}


def test_a_small_choice_is_kept_to(model: Model) -> None:
    device = offloading(model)
    params: dict[str, Any] = {"samplers": ["top_k", "temperature"], "top_k": 2, "n_predict": 1}
    first = play(device, ["once"], n_probs=2, **params)["once"].probs[0]
    chosen = {
        play(device, ["once"], seed=seed, backend_sampling=True, **params)["once"].tokens[0]
        for seed in range(40)
    }
    assert chosen == {id for id, _, _ in first.top}


@pytest.mark.slow
@pytest.mark.parametrize(
    "params",
    [
        {"grammar": 'root ::= "a"*'},
        {"json_schema": JSON_OBJECT},
        {"n_probs": 1},
        {"mirostat": 2},
        {"xtc_probability": 0.5},
        {"dry_multiplier": 0.8},
        {"top_n_sigma": 1.0},
        {"min_keep": 2},
        {"top_k": 100_000},
        {"samplers": ["top_k", "temperature", "top_k"]},
        {"logit_bias": [(300, 5.0), (300, -1.0)]},
        {"backend_sampling": False},
    ],
)
def test_samplers_that_a_device_lacks_run_as_usual(model: Model, params: dict[str, Any]) -> None:
    device = offloading(model)
    assert isinstance(sampler_of(device, **params), Sampler)
    params = {"backend_sampling": True, **params, "n_predict": 6, "seed": 5}
    plain = {**params, "backend_sampling": False}
    assert (
        play(device, ["once"], **params)["once"].tokens
        == play(engine(model), ["once"], **plain)["once"].tokens
    )


def test_a_server_without_the_option_samples_as_usual(model: Model) -> None:
    assert isinstance(sampler_of(engine(model)), Sampler)


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


def _run(engine: Engine, submits: list[Submit]) -> dict[int, list[int]]:
    tokens: dict[int, list[int]] = {submit.id: [] for submit in submits}
    for submit in submits:
        engine.submit(engine.preparation.prepare(submit))
    while engine.has_work:
        for event in stepped(engine):
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
    assert device._sampling._offload is not None
    assert not device._sampling._offload._attached
