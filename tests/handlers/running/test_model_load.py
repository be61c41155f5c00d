"""The load of models, as gateways read it."""

import asyncio
from types import SimpleNamespace
from typing import Any

import pytest

from specllama.engine.errors import EngineError, unavailable
from specllama.engine.wire.stats import Stats
from specllama.handlers.running.model_load import load_of, loads_of_all
from specllama.handlers.running.waiting import WaitingCalls


def running(stats: Stats | EngineError) -> Any:
    async def ask() -> Stats:
        if isinstance(stats, EngineError):
            raise stats
        return stats

    engine = SimpleNamespace(stats=ask)
    return SimpleNamespace(awake_engine=lambda: engine, sleeping_snapshot=lambda: None)


def asleep(stats: Stats) -> Any:
    snapshot = SimpleNamespace(stats=stats)
    return SimpleNamespace(awake_engine=lambda: None, sleeping_snapshot=lambda: snapshot)


LOADING: Any = SimpleNamespace(awake_engine=lambda: None, sleeping_snapshot=lambda: None)


def server(**supervisors: Any) -> Any:
    """A server whose default model is the last one; None: never loaded."""
    info = SimpleNamespace(n_slots=4)
    pool = SimpleNamespace(
        supervisor=supervisors.get,
        status=lambda name: SimpleNamespace(value="loading", info=info),
    )
    catalog = SimpleNamespace(entries=supervisors, default=[*supervisors][-1])
    admission = SimpleNamespace(waiting=WaitingCalls())
    return SimpleNamespace(pool=pool, catalog=catalog, admission=admission)


def test_loads_are_those_of_models_with_engines() -> None:
    current = server(
        a=running(Stats(n_processing=1)),
        b=None,
        c=LOADING,
        d=running(unavailable("it has just died")),
        e=asleep(Stats(n_decode=7)),
    )
    found = asyncio.run(loads_of_all(current, current.catalog.entries))
    assert [(each.model, each.n_slots) for each in found] == [("e", 4), ("a", 4)]
    assert [each.stats.n_processing for each in found] == [0, 1]


def test_refusals_by_the_server_count_as_well() -> None:
    current = server(a=running(Stats(n_refused=2)))
    current.admission.waiting.n_refused.update({"a": 3, "b": 4})
    assert asyncio.run(load_of(current, "a")).stats.n_refused == 5


@pytest.mark.parametrize("supervisor", [None, LOADING])
def test_a_model_without_an_engine_has_no_load(supervisor: Any) -> None:
    with pytest.raises(EngineError, match="the model is loading"):
        asyncio.run(load_of(server(a=supervisor), "a"))
