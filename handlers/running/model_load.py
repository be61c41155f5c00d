"""The load of models, for gateways that distribute requests over servers."""

import asyncio
from collections.abc import Iterable, Sequence
from typing import NamedTuple

import msgspec

from specllama.engine.errors import EngineError, unavailable
from specllama.engine.models.supervisor import Supervisor
from specllama.engine.wire.stats import Stats
from specllama.handlers.running.runtime import Runtime


class ModelLoad(NamedTuple):
    """The load of one model, which has `n_slots` slots."""

    model: str
    n_slots: int
    stats: Stats


async def load_of(current: Runtime, model: str) -> ModelLoad:
    """Returns the load of a model, which is neither loaded nor woken for that; a sleeping model has
    its last values. Raises EngineError (unavailable_error) while no engine is running."""
    supervisor = current.pool.supervisor(model)
    stats = await _stats(supervisor) if supervisor else None
    if stats is None:
        state = current.pool.status(model).value
        raise unavailable(f"there are no metrics for {model!r} now: the model is {state}")
    n_refused = stats.n_refused + current.admission.waiting.n_refused[model]
    stats = msgspec.structs.replace(stats, n_refused=n_refused)
    info = current.pool.status(model).info
    return ModelLoad(model, info.n_slots if info else 0, stats)


async def _stats(supervisor: Supervisor) -> Stats | None:
    if (engine := supervisor.awake_engine()) is not None:
        return await engine.stats()
    asleep = supervisor.sleeping_snapshot()
    return asleep.stats if asleep is not None else None


async def loads_of_all(current: Runtime, names: Iterable[str]) -> Sequence[ModelLoad]:
    """Returns the loads of the models `names` that have an engine, the default model first."""
    default = current.catalog.default
    names = sorted(names, key=lambda name: name != default)
    having = [name for name in names if current.pool.supervisor(name) is not None]
    found = await asyncio.gather(
        *(load_of(current, name) for name in having), return_exceptions=True
    )
    for each in found:
        if isinstance(each, BaseException) and not isinstance(each, EngineError):
            raise each
    return [each for each in found if isinstance(each, ModelLoad)]
