"""Trials in processes with limits: a request that exceeds them affects no other."""

import json
import threading
from collections.abc import Iterator
from contextlib import suppress
from typing import Any

import pytest

from contract_tests.kit.server import SECONDS
from specllama.engine.grammars.compiling import GrammarSource
from specllama.engine.grammars.gbnf import GrammarError
from specllama.engine.helpers.trial.trial_jobs import TrialRefused, Tried
from specllama.engine.params import GenerationParams
from specllama.engine.wire.startup import FORKS
from specllama.engine.worker.backend import Model
from specllama.engine.worker.constraints.compiler import CACHE_BYTES, Compiler
from specllama.engine.worker.constraints.trial import Lane, TooCostlyError
from specllama.engine.worker.constraints.vocabulary import Vocabularies, Vocabulary
from tests.support.hostile_sources import ENDLESS, GRAMMARS, SOURCES
from tests.support.memory_use import resident

pytestmark = pytest.mark.slow

SIMPLE = json.dumps({"const": "simple"})
FOR_EVER = 1e6  # seconds


@pytest.fixture(scope="module")
def hurried(model: Model) -> Iterator[Compiler]:
    """A compiler that gives up soon, so that the tests take less time."""
    compiler = Compiler(model, seconds=(0.1, 0.3, 1.0))
    compiler.guided(GenerationParams(json_schema=SIMPLE))
    yield compiler
    compiler.close()


@pytest.fixture
def patient(model: Model) -> Iterator[Compiler]:
    """A compiler whose costly lane never gives up. Cheap sources don't get there, even if they take
    a hundred times as long as usual."""
    compiler = Compiler(model, seconds=(0.5, 1.0, FOR_EVER))
    yield compiler
    compiler.close()


@pytest.mark.parametrize("name", SOURCES)
def test_everything_ends_and_keeps_little(hurried: Compiler, name: str) -> None:
    before = resident()
    with suppress(GrammarError):
        assert hurried.guided(SOURCES[name]).guide is not None
    assert resident() - before < CACHE_BYTES
    assert hurried.guided(GenerationParams(json_schema='{"const": 1}')).guide is not None


def test_too_costly_keywords_are_left_out_and_reported(hurried: Compiler) -> None:
    relaxed = hurried.guided(GenerationParams(json_schema=json.dumps(ENDLESS))).relaxed
    assert relaxed == tuple(f"#/allOf/{i}/multipleOf" for i in range(4))


def test_failures_are_not_kept(hurried: Compiler) -> None:
    before = hurried.n_bytes
    for _ in range(2):
        with pytest.raises(GrammarError):
            hurried.guided(GenerationParams(grammar=GRAMMARS["nests of {1000}"]))
    assert hurried.n_bytes == before


def test_others_are_answered_meanwhile_and_a_dropped_one_ends(patient: Compiler) -> None:
    endless = GenerationParams(json_schema=json.dumps(ENDLESS))
    first, second = patient.order(endless), patient.order(endless)
    other = patient.order(GenerationParams(json_schema=json.dumps({**ENDLESS, "title": "other"})))
    for i in range(5):
        simple = GenerationParams(json_schema=json.dumps({"const": i}))
        assert patient.guided(simple).guide is not None
    assert not first.is_ready
    done = [threading.Event(), threading.Event()]
    first.when_ready(done[0].set)
    other.when_ready(done[1].set)
    patient.drop(first)
    assert not first.is_ready, "somebody else wants it"
    patient.drop(second)
    assert done[0].wait(SECONDS)
    patient.drop(other)
    assert done[1].wait(SECONDS)
    for order in (first, second, other):
        with pytest.raises(GrammarError, match="cancelled"):
            patient.guide(order)
    again = patient.order(endless)
    assert not again.is_ready, "a dropped order gets no answer"
    patient.drop(again)


@pytest.mark.skipif(not FORKS, reason="a costly source takes its process with it")
def test_a_costly_source_takes_no_process_with_it(model: Model) -> None:
    vocabulary = Vocabularies(model, threading.Event()).get()
    lane = Lane(SECONDS)
    try:
        assert isinstance(tried(lane, vocabulary, SIMPLE), Tried)
        process = lane.pid
        lane._seconds = 0.05
        for source in (ENDLESS, {"enum": [f"value number {i}" for i in range(45_000)]}):
            with pytest.raises(TooCostlyError):
                tried(lane, vocabulary, json.dumps(source))
        lane._seconds = SECONDS
        assert isinstance(tried(lane, vocabulary, SIMPLE), Tried)
        assert lane.pid == process is not None
    finally:
        lane.close()


def tried(lane: Lane, vocabulary: Vocabulary, schema: str) -> Tried | TrialRefused:
    return lane.run(object(), GrammarSource("json_schema", schema), vocabulary, lambda _: None)


def test_a_usual_schema_is_not_behind_those_that_came_before(
    model: Model, monkeypatch: pytest.MonkeyPatch
) -> None:
    diary: list[str] = []
    gate = threading.Event()
    run = Lane.run

    def noted(self: Lane, owner: object, source: GrammarSource, *args: Any, **options: Any) -> Any:
        gate.wait()
        diary.append(source.text)
        return run(self, owner, source, *args, **options)

    monkeypatch.setattr(Lane, "run", noted)
    compiler = Compiler(model)
    try:
        for i in range(12):
            compiler.order(
                GenerationParams(json_schema=json.dumps({**ENDLESS, "title": f"number {i}"}))
            )
        usual = compiler.order(GenerationParams(json_schema=SIMPLE))
        gate.set()
        assert compiler.guide(usual).guide is not None
    finally:
        compiler.close()
    assert len(set(diary[: diary.index(SIMPLE)])) <= 2


def test_closing_ends_running_trials(model: Model) -> None:
    compiler = Compiler(model, seconds=[FOR_EVER])
    order = compiler.order(GenerationParams(json_schema=json.dumps(ENDLESS)))
    compiler.close()
    assert order.is_ready
    with pytest.raises(GrammarError):
        compiler.guide(order)


def test_a_source_that_can_not_become_cheaper_is_tried_once_per_lane(
    hurried: Compiler, monkeypatch: pytest.MonkeyPatch
) -> None:
    leniently: list[bool] = []
    run = Lane.run

    def noted(*args: Any, **options: Any) -> Any:
        leniently.append(options["leniently"])
        return run(*args, **options)

    monkeypatch.setattr(Lane, "run", noted)
    with pytest.raises(GrammarError, match="too much work"):
        hurried.guided(SOURCES["10,000 optional properties"])
    assert leniently == [False] * 3
    hurried.guided(GenerationParams(json_schema=json.dumps({**ENDLESS, "title": "again"})))
    assert leniently[3:] == [False] * 3 + [True]
