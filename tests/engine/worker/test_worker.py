"""The worker's loop around an engine, without processes and pipes."""

import pytest

from engine.params import GenerationParams
from engine.processes.stdio import Link
from engine.protocol.messages import Submit, to_engine_decoder
from engine.worker.backend import Model
from engine.worker.generation.engine import Engine
from engine.worker.generation.request import Request
from engine.worker.worker import Worker
from tests.support.options_support import engine_options
from tests.support.playing import engine, play

PATIENT = 3600.0
"""Seconds that no test takes: who waits so long waits for a message."""


@pytest.fixture
def served(model: Model) -> Engine:
    """An engine that knows what a prompt costs."""
    found = engine(model, parallel=4)
    play(found, ["def function(self, value):"], n_predict=2)
    return found


def prepared(engine: Engine, id: int) -> Request:
    params = GenerationParams(n_predict=4, ignore_eos=True)
    return engine.prepare(Submit(id, [f"import module_{id}"], params))


def worker(engine: Engine) -> Worker:
    return Worker(engine, Link(-1, -1, to_engine_decoder), engine_options())


def test_who_comes_with_others_waits_for_them(
    served: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("engine.worker.worker.GATHER_SECONDS", PATIENT)
    monkeypatch.setattr("engine.worker.generation.engine.GATHER_SHARE", 1e9)
    one = worker(served)
    one._preparing = {2, 3}
    served.submit(prepared(served, 1))
    for id in (2, 3):
        one._inbox.put(prepared(served, id))
    assert one._gather()
    assert served.scheduler.n_waiting == 3
    served.step()
    assert len(served.scheduler.active) == 3


def test_the_end_comes_while_others_are_waited_for(served: Engine) -> None:
    one = worker(served)
    one._preparing = {2}
    served.submit(prepared(served, 1))
    one._inbox.put(None)
    assert not one._gather()


def test_nobody_waits_alone_or_beside_those_who_generate(served: Engine) -> None:
    one = worker(served)
    served.submit(prepared(served, 1))
    assert one._gather(), "nobody is being prepared"
    assert served.gather_seconds > 0
    served.step()
    assert served.scheduler.n_generating == 1
    assert served.gather_seconds == 0
    one._preparing = {2}
    served.submit(prepared(served, 3))
    assert served.gather_seconds == 0
    assert one._gather(), "who is not there yet is not waited for"
