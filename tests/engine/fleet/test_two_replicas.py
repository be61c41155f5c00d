"""Two engine processes that load the shipped model, as the replicas of a server."""

import asyncio
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager
from typing import Any

import pytest

from specllama.engine import system
from specllama.engine.errors import EngineError
from specllama.engine.fleet.channel import Address
from specllama.engine.fleet.gate import Gate
from specllama.engine.fleet.replicas import Replicas, WaitsForReplicas
from specllama.engine.models.client import EngineClient
from specllama.engine.models.generation import Generation
from specllama.engine.models.supervisor import Supervisor
from specllama.engine.params import GenerationParams
from specllama.engine.wire.replies import Finished
from tests.support.engines import generate
from tests.support.options_support import model_options

pytestmark = pytest.mark.slow

VERSION = "1.0"
PROMPTS = ["def f(", "class A:\n", "import ", "# The", "for x in ", "return ", "if __name__"]
GREEDY = GenerationParams(n_predict=20, temperature=0.0, ignore_eos=True, stream=True)
LONG = GenerationParams(n_predict=400, temperature=0.0, ignore_eos=True, stream=True)


async def until(condition: Callable[[], bool]) -> None:
    """Waits for other processes."""
    while not condition():
        await asyncio.sleep(0.01)  # between two looks


class Replica:
    """A gate, and a supervisor with an engine process."""

    def __init__(self) -> None:
        self.gate = Gate(VERSION)
        self.supervisor = Supervisor(
            model_options(threads=1, parallel=2), start_process=self.gate.start_process
        )
        self.gate.guard(self.supervisor)
        self.address: Address

    async def open(self) -> None:
        self.supervisor.start()
        await self.supervisor.loaded()
        assert self.supervisor.state == "ready", self.supervisor.failure
        self.address = await self.gate.open("127.0.0.1")

    def kill(self) -> None:
        """Kills the engine process."""
        assert self.supervisor.pid is not None
        system.send_signal(self.supervisor.pid, system.KILL)

    async def close(self) -> None:
        await self.gate.close()
        await self.supervisor.stop()


class Served:
    """The supervisor of an ingress, with two replicas."""

    def __init__(self, *replicas: Replica) -> None:
        self.all = dict(zip("ab", replicas, strict=True))
        self.places: dict[int, str] = {}
        self.replicas = Replicas(VERSION, self._on_open)
        self.supervisor = Supervisor(
            model_options(threads=1, parallel=2),
            start_process=self.replicas.start_process,
            restarts=WaitsForReplicas(),
        )

    def _on_open(self, name: str, own: Any) -> None:
        self.places |= dict.fromkeys(own, name)

    async def with_slots(self, n: int) -> EngineClient:
        """Returns the client, as soon as it has so many slots."""

        def has_slots() -> bool:
            client = self.supervisor.awake_engine()
            return client is not None and client.info.n_slots == n

        await until(has_slots)
        return await self.supervisor.engine()


@asynccontextmanager
async def served() -> AsyncIterator[Served]:
    found = Served(Replica(), Replica())
    await asyncio.gather(*(each.open() for each in found.all.values()))
    found.replicas.update({name: each.address for name, each in found.all.items()})
    found.supervisor.start()
    try:
        yield found
    finally:
        await found.supervisor.stop()
        await found.replicas.close()
        await asyncio.gather(*(each.close() for each in found.all.values()))


def play(story: Callable[[Served], Coroutine[Any, Any, None]]) -> None:
    async def run() -> None:
        async with served() as found:
            await story(found)

    asyncio.run(run())


async def text_of(generation: Generation) -> str:
    events = [each async for each in generation]
    assert isinstance(events[-1], Finished)
    return "".join(each.text for each in events)


async def texts(client: EngineClient, params: GenerationParams) -> list[str]:
    started = [generate(client, [prompt], params) for prompt in PROMPTS]
    return list(await asyncio.gather(*map(text_of, started)))


def test_texts_are_those_of_one_engine_process() -> None:
    async def story(found: Served) -> None:
        client = await found.with_slots(4)
        alone = await texts(await found.all["a"].supervisor.engine(), GREEDY)
        assert await texts(client, GREEDY) == alone
        assert {*found.places.values()} == {"a", "b"}
        tokens = await client.tokenize(
            ["def f("], add_special=False, parse_special=False, with_pieces=False
        )
        assert await client.detokenize(tokens.tokens) == "def f("
        slots = await client.slots()
        assert [each.id for each in slots] == [0, 1, 2, 3]
        own = [(await each.supervisor.engine()).stats() for each in found.all.values()]
        stats = [await each for each in own]
        assert (await client.stats()).n_predicted == sum(each.n_predicted for each in stats)
        for slot in range(4):
            [event] = [
                each
                async for each in generate(
                    client, ["x"], GenerationParams(n_predict=1, id_slot=slot)
                )
            ]
            assert event.id_slot == slot

    play(story)


def test_a_killed_engine_process_is_replaced_under_load() -> None:
    async def story(found: Served) -> None:
        client = await found.with_slots(4)
        expected = dict(zip(PROMPTS, await texts(client, GREEDY), strict=True))
        long = [generate(client, ["a"], LONG) for _ in range(4)]
        for each in long:
            await each.begun()
        waiting = {prompt: generate(client, [prompt], GREEDY) for prompt in PROMPTS}
        places = {name: [e for e in long if found.places[e.request.id] == name] for name in "ab"}
        first = {prompt: found.places[each.request.id] for prompt, each in waiting.items()}
        assert {*first.values()} == {"a", "b"}
        found.all["a"].kill()
        for each in places["a"]:
            with pytest.raises(EngineError, match="the replica that had the request is gone"):
                await text_of(each)
        moved = {prompt: await text_of(each) for prompt, each in waiting.items()}
        assert moved == expected
        assert {found.places[each.request.id] for each in waiting.values()} == {"b"}
        for each in places["b"]:
            assert await text_of(each)
        client = await found.with_slots(4)  # the process was replaced, and is connected
        assert await texts(client, GREEDY) == [*expected.values()]
        assert all(each.gate.n_open == 0 for each in found.all.values())

    play(story)


def test_cancelled_texts_free_their_slots() -> None:
    async def story(found: Served) -> None:
        client = await found.with_slots(4)
        endless = GenerationParams(n_predict=100_000, ignore_eos=True, stream=True)
        started = [generate(client, ["a"], endless) for _ in range(8)]
        await asyncio.gather(*(each.begun() for each in started[:1]))
        ids = {name: [id for id, at in found.places.items() if at == name] for name in found.all}
        ends = [each.gate.ended(ids[name]) for name, each in found.all.items()]
        for each in started:
            each.cancel()
        await asyncio.gather(*ends)
        assert await texts(client, GREEDY)
        assert [each.is_processing for each in await client.slots()] == [False] * 4

    play(story)


def test_requests_wait_while_all_engine_processes_are_replaced() -> None:
    async def story(found: Served) -> None:
        client = await found.with_slots(4)
        expected = await texts(client, GREEDY)
        for each in found.all.values():
            each.kill()
        await until(lambda: found.supervisor.state == "restarting")
        found.supervisor.acquire()
        again = await found.supervisor.engine()
        assert await texts(again, GREEDY) == expected
        found.supervisor.release()

    play(story)
