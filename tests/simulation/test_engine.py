"""The engine over the stand-in for llama.cpp: company changes no text."""

from collections.abc import Iterator

import pytest

from specllama.engine.wire.replies import Finished
from specllama.engine.worker.backend import Model, initialize
from tests.simulation.library import LibraryStandIn, ModelShape, installed
from tests.simulation.memory import Kind
from tests.support.models import random_model
from tests.support.options_support import engine_options
from tests.support.playing import GREEDY, engine, play

pytestmark = [pytest.mark.slow]

OPTIONS = {"ctx_size": 1024, "batch_size": 64, "ubatch_size": 32, "warmup": False}
PREFIX = "the river and the stone and the light of the engine; " * 2


@pytest.fixture(scope="module")
def model() -> Iterator[Model]:
    initialize()
    model = Model(str(random_model()), engine_options())
    yield model
    model.close()


@pytest.fixture(params=["dense", "window", "recurrent", "hybrid"])
def shape(request: pytest.FixtureRequest) -> ModelShape:
    kind: Kind = request.param
    return ModelShape(kind, n_ctx_train=1024, window=48 if kind == "window" else 0)


@pytest.fixture(params=[True, False], ids=["unified", "separate"])
def unified(request: pytest.FixtureRequest) -> bool:
    return bool(request.param)


def texts(model: Model, prompts: list[str], **options: object) -> dict[str, list[int]]:
    with_all = engine(model, **{**OPTIONS, **options})
    finished: dict[str, Finished] = play(with_all, prompts, n_predict=24, **GREEDY)
    again: dict[str, Finished] = play(with_all, prompts[::-1], n_predict=24, **GREEDY)
    with_all.close()
    for prompt in prompts:
        assert again[prompt].tokens == finished[prompt].tokens
    return {prompt: each.tokens for prompt, each in finished.items()}


def test_company_changes_no_text(model: Model, shape: ModelShape, unified: bool) -> None:
    prompts = [PREFIX[: 10 * i] + f" number {i}" for i in range(8)]
    with installed(LibraryStandIn(shape)):
        together = texts(model, prompts, parallel=3, kv_unified=unified)
        for prompt in prompts:
            alone = texts(model, [prompt], parallel=1, cache_prompt=False, cache_ram=0)
            assert together[prompt] == alone[prompt]
