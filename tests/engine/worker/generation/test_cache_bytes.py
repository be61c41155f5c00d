"""The bytes of a key's cached texts, with a real KV cache."""

import pytest

from specllama.engine.params import GenerationParams
from specllama.engine.wire.replies import Finished
from specllama.engine.wire.requests import Submit, Terms
from specllama.engine.worker.backend import Model
from specllama.engine.worker.generation.engine import Engine
from tests.support.playing import engine, stepped

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("orders"), pytest.mark.covering(1)]

OWNER, OTHER = 1, 2


def prompt(number: int) -> str:
    return f"class Number{number}:\n" + f"    value_{number} = {number}\n" * 12


def ask(e: Engine, number: int, owner: int, cache_bytes: int = 0) -> str | None:
    """Serves a prompt, and returns why it wasn't cached."""
    params = GenerationParams(n_predict=2, ignore_eos=True)
    terms = Terms(cache_bytes=cache_bytes)
    submit = Submit(1, [prompt(number)], params, owner=owner, terms=terms)
    e.submit(e.preparation.prepare(submit))
    while True:
        for event in stepped(e):
            if isinstance(event, Finished):
                return event.timings.cache_miss_reason


def sizes(e: Engine, owner: int) -> list[int]:
    """Returns the sizes of an owner's texts in the KV cache."""
    entries = e.scheduler.cache.entries.items()
    return [e.context.state_size(id) for id, entry in entries if entry.owner == owner]


@pytest.mark.parametrize("unified", [True, False])
def test_an_owner_loses_its_own_oldest_texts(model: Model, unified: bool) -> None:
    e = engine(model, parallel=6, kv_unified=unified, ctx_size=6 * 512, cache_ram=64)
    ask(e, 1, OTHER)
    ask(e, 2, OWNER)
    (size,) = sizes(e, OWNER)
    limit = 5 * size // 2
    for number in (3, 4, 5):
        ask(e, number, OWNER, limit)
        assert sum(sizes(e, OWNER)) <= limit
    assert len(sizes(e, OWNER)) == 2
    assert len(sizes(e, OTHER)) == 1
    assert ask(e, 1, OTHER) is None
    assert ask(e, 5, OWNER, limit) is None
    assert ask(e, 2, OWNER, limit) == "evicted"
    e.close()


@pytest.mark.usefixtures("restoring_pays")
def test_texts_in_host_memory_count(model: Model) -> None:
    e = engine(model, parallel=1, ctx_size=512, cache_ram=64)
    ask(e, 1, OWNER)
    (size,) = sizes(e, OWNER)
    for number in (2, 3, 4):
        ask(e, number, OWNER, 5 * size // 2)
    assert e.stats().n_bytes_cache_ram < 2 * size
    assert ask(e, 3, OWNER, 5 * size // 2) is None, "from host memory"
    assert ask(e, 1, OWNER, 5 * size // 2) == "evicted"
    e.close()
