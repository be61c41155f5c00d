"""Media that no text has any more are forgotten, and only these."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from specllama.engine.params import GenerationParams
from specllama.engine.wire.replies import Event, Finished
from specllama.engine.wire.requests import Submit
from specllama.engine.worker.generation.engine import Engine
from specllama.engine.worker.media import registry
from tests.engine.worker.generation.test_media import Stage, play
from tests.support.playing import GREEDY, stepped


@pytest.fixture(scope="module")
def stage() -> Iterator[Stage]:
    stage = Stage("plain")
    yield stage
    stage.model.close()


@pytest.fixture
def tidy_always(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(registry, "LEAST", 0)
    monkeypatch.setattr(registry, "GRACE", -1.0)


N = 10


def text(number: int) -> tuple[int | str, ...]:
    return (f"Image {number}: ", number, " Well, what is it? I would say that it is a dog.")


def show(stage: Stage, engine: Engine, number: int) -> None:
    play(engine, [stage.prompt(*text(number))], n_predict=4)
    engine.tidy()


def test_those_of_texts_that_are_gone_are_forgotten(stage: Stage, tidy_always: None) -> None:
    engine = stage.engine(ctx_size=256, cache_ram=0, media_cache=0)
    for number in range(30):
        show(stage, engine, number)
        assert 1 <= len(engine.registry) <= 10  # texts of 16 tokens and more, in 256 cells
    engine.close()


@pytest.mark.parametrize("where", ["cells", "memory", "embeddings"])
def test_those_that_are_kept_somewhere_are_not(where: str, stage: Stage, tidy_always: None) -> None:
    options = {
        "cells": {"cache_ram": 0, "media_cache": 0, "kv_unified": True},
        "memory": {"ctx_size": 256, "cache_ram": -1, "media_cache": 0},
        "embeddings": {"ctx_size": 256, "cache_ram": 0},
    }
    engine = stage.engine(**options[where])
    for number in range(N):
        show(stage, engine, number)
    assert len(engine.registry) == N
    for number in range(N):
        stage.check(engine, text(number))
        engine.tidy()
    engine.close()


def test_those_in_files_are_not(
    stage: Stage, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    options = {"cache_ram": 0, "cache_disk": str(tmp_path), "media_cache": 0}
    engine = stage.engine(**options)
    for number in range(N):
        show(stage, engine, number)
    engine.close()
    again = stage.engine(**options)
    monkeypatch.setattr(registry, "GRACE", -1.0)
    again.registry.keep(again._planner.media())
    assert len(again.registry) == N
    for number in range(N):
        (finished,) = stage.check(again, text(number))
        assert finished.timings.cache_n
    again.close()


def test_those_of_requests_that_wait_are_not(stage: Stage, tidy_always: None) -> None:
    """One slot: one request runs, one is paused, and others wait."""
    engine = stage.engine(ctx_size=512, cache_ram=0, media_cache=0)
    keys = [(f"Number {n}: ", n, " What?") for n in range(4)]
    events: list[Event] = []
    for id, key in enumerate(keys):
        params = GenerationParams(**GREEDY, n_predict=12)
        submit = Submit(id, stage.prompt(*key), params, group=id)
        events += engine.submit(engine.preparation.prepare(submit))
    engine.pause(2)
    n_finished = 0
    while engine.has_work and n_finished < 4:
        events += stepped(engine)
        engine.tidy()
        n_finished = sum(isinstance(event, Finished) for event in events)
        if n_finished == 3:
            engine.resume(2)
    found = {event.id: event.tokens for event in events if isinstance(event, Finished)}
    assert found == {id: stage.alone(key, 12) for id, key in enumerate(keys)}
    engine.close()
