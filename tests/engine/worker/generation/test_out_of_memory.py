"""A device that has no memory for a batch, while others are computed: one request ends."""

from collections.abc import Iterator
from typing import Any

import pytest

from specllama.engine.params import GenerationParams
from specllama.engine.wire.replies import Failed, Finished
from specllama.engine.wire.requests import Submit
from specllama.engine.worker.backend import Model, initialize
from specllama.engine.worker.generation.engine import Engine
from tests.support.options_support import engine_options
from tests.support.playing import GREEDY, engine, play, stepped
from tests.support.scarce_memory import Device
from tools.models.build import ensure

SHORT = ("def first(a, b):", "import os\n")
LARGE = "for name in sorted(found):\n    print(name)\n" * 12


@pytest.fixture(scope="module", params=["random", "tiny-hybrid", "tiny-window"])
def model(request: pytest.FixtureRequest) -> Iterator[Model]:
    initialize()
    model = Model(str(ensure(request.param)), engine_options())
    yield model
    model.close()


def together(e: Engine, *prompts: str) -> dict[str, Finished | Failed]:
    found: dict[str, Finished | Failed] = {}
    for id, prompt in enumerate(prompts, start=1):
        params = GenerationParams(n_predict=12, **GREEDY)
        e.submit(e.preparation.prepare(Submit(id, [prompt], params)))
    while e.has_work:
        for event in stepped(e):
            if isinstance(event, Finished | Failed):
                found[prompts[event.id - 1]] = event
    return found


def tokens(found: dict[str, Finished | Failed], prompt: str) -> list[int]:
    finished = found[prompt]
    assert isinstance(finished, Finished)
    return finished.tokens


@pytest.mark.parametrize("evaluates", [False, True], ids=["not", "in part"])
def test_the_largest_ends_and_the_others_go_on(
    model: Model, monkeypatch: pytest.MonkeyPatch, evaluates: bool
) -> None:
    options: dict[str, Any] = {"ctx_size": 2048, "warmup": False}
    alone = engine(model, parallel=1, **options)
    wanted = play(alone, [*SHORT, LARGE], n_predict=12, cache_prompt=False, **GREEDY)
    alone.close()
    e = engine(model, parallel=3, **options)
    device = Device(monkeypatch, evaluates=evaluates)
    found = together(e, SHORT[0], LARGE, SHORT[1])
    assert device.n_failed == 1
    failed = found[LARGE]
    assert isinstance(failed, Failed)
    assert failed.error.type == "server_error"
    assert "there is no memory left to evaluate this" in failed.error.message
    assert "-ub" in failed.error.message
    for prompt in SHORT:
        assert tokens(found, prompt) == wanted[prompt].tokens
    device.most = 10_000
    assert tokens(together(e, LARGE), LARGE) == wanted[LARGE].tokens
    e.close()


def test_there_is_no_memory_for_any_request(model: Model, monkeypatch: pytest.MonkeyPatch) -> None:
    e = engine(model, parallel=2, ctx_size=2048, warmup=False)
    device = Device(monkeypatch, evaluates=False)
    device.most = 0
    assert all(isinstance(event, Failed) for event in together(e, *SHORT).values())
    device.most = 10_000
    assert tokens(together(e, SHORT[0]), SHORT[0])
    e.close()
