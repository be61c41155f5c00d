"""The cost of media for other requests that generate at the same time."""

import pytest

from specllama.engine.params import GenerationParams
from specllama.engine.wire.requests import Submit
from specllama.engine.worker.backend import Model, Projector, initialize
from specllama.engine.worker.generation.engine import Engine
from tests.support.media import image
from tests.support.options_support import engine_options
from tests.support.playing import stepped
from tools.models.build import ensure


def test_media_count_as_prompts_while_others_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    """The prefill budget learns from them, so that the next piece is as long as it may be."""
    initialize()
    options = engine_options(threads=1, ctx_size=2048, parallel=3)
    model = Model(str(ensure("tiny-mrope")), options)
    projector = Projector(str(ensure("tiny-mmproj-mrope")), model, options)
    engine = Engine(model, options, projector)
    observed: list[tuple[int, int]] = []
    monkeypatch.setattr(
        engine._planner.clock,
        "observe",
        lambda n_others, n_prompt, length, seconds: observed.append((n_others, n_prompt)),
    )
    endless = GenerationParams(n_predict=1000, ignore_eos=True)
    for id in (1, 2):
        engine.submit(engine.preparation.prepare(Submit(id, [f"stream {id}"], endless, group=id)))
    stepped(engine)
    engine.submit(
        engine.preparation.prepare(
            Submit(3, [image(1, 160, 160)], GenerationParams(n_predict=1), group=3)
        )
    )
    observed.clear()
    while any(request == 3 for request in engine._requests.running):
        stepped(engine)
    engine.close()
    model.close()
    n_media = sum(n_prompt for n_others, n_prompt in observed if n_others == 2)
    assert n_media >= 100  # tokens of the image
    assert not [n_prompt for n_others, n_prompt in observed if n_others == 0 and n_prompt]
