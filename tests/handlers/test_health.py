"""Whether a server is ready, and whether it works at all, by the states of its models."""

import asyncio
from types import SimpleNamespace
from typing import get_args

import pytest

from specllama.engine.errors import EngineError
from specllama.engine.models.lifecycle import State
from specllama.handlers import health

READY = {"ready", "dozing", "sleeping"}


def asked(
    monkeypatch: pytest.MonkeyPatch, *states: State, router: bool, is_complete: bool
) -> list[str]:
    """Returns the outcomes of GET /health and GET /livez: the reason of a refusal, or ""."""
    supervisors = {
        f"model {n}": SimpleNamespace(state=state, progress=0.5, failure="no file")
        for n, state in enumerate(states)
    }
    catalog = SimpleNamespace(
        router=router, is_complete=is_complete, entries=supervisors, default="model 0"
    )
    server = SimpleNamespace(catalog=catalog, pool=SimpleNamespace(supervisor=supervisors.get))
    monkeypatch.setattr(health, "runtime", lambda: server)
    found: list[str] = []
    types: set[str] = set()
    for operation in (health.get_health, health.get_liveness):
        try:
            asyncio.run(operation())
            found.append("")
        except EngineError as error:
            found.append(error.info.message)
            types.add(error.info.type)
    assert types <= {"unavailable_error"}
    return found


@pytest.mark.parametrize("state", get_args(State))
def test_a_server_of_one_model(state: State, monkeypatch: pytest.MonkeyPatch) -> None:
    ready, alive = asked(monkeypatch, state, router=False, is_complete=True)
    assert (not ready) == (state in READY)
    assert not alive


@pytest.mark.parametrize("state", get_args(State))
def test_a_router_loads_its_models_on_request(
    state: State, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = asked(monkeypatch, "ready", state, router=True, is_complete=False)
    assert found == ["", ""]


@pytest.mark.parametrize("state", get_args(State))
def test_a_deployment_is_ready_with_all_models(
    state: State, monkeypatch: pytest.MonkeyPatch
) -> None:
    ready, alive = asked(monkeypatch, "ready", state, router=True, is_complete=True)
    assert (not ready) == (state in READY)
    assert not ready or ready.startswith("model 1: ")
    assert not alive
