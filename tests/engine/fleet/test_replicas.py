"""An ingress that keeps its connections to changing replicas."""

import asyncio
import logging
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager
from typing import Any

import pytest

from specllama.engine.fleet import replicas as module
from specllama.engine.fleet.channel import (
    ID_BITS,
    MAX_HELLO,
    Address,
    Channel,
    Hello,
    Refused,
    ToReplica,
    Welcome,
    to_replica_decoder,
)
from specllama.engine.fleet.replicas import Replicas, WaitsForReplicas
from specllama.engine.models.lifecycle import ProcessLife
from specllama.engine.models.supervisor import Supervisor
from specllama.engine.params import GenerationParams
from specllama.engine.wire.engine_log import EngineLog
from specllama.engine.wire.replies import Begun, Step, Text
from specllama.engine.wire.requests import Submit
from tests.support.engines import INFO, generate
from tests.support.factories import finished
from tests.support.fleets import until
from tests.support.options_support import engine_options, model_options

VERSION = "1.0"
PARAMS = GenerationParams()
LOGGER = "specllama.engine.fleet"


class PaperReplica:
    """Accepts connections like a replica; `answer` is its answer to each hello."""

    def __init__(self) -> None:
        self.answer: Any = Welcome(INFO)
        self.hellos: list[Hello] = []
        self.channels: list[Channel[ToReplica]] = []
        self.n_ends = 0
        self.requests: list[Any] = []
        self._server: asyncio.Server | None = None
        self.address: Address

    async def open(self, port: int = 0) -> Address:
        loop = asyncio.get_running_loop()
        self._server = await loop.create_server(self._connect, "127.0.0.1", port)
        port = self._server.sockets[0].getsockname()[1]
        self.address = Address("127.0.0.1", port, "secret")
        return self.address

    def _connect(self) -> Channel[ToReplica]:
        channel: Channel[ToReplica] = Channel(to_replica_decoder, limit=MAX_HELLO)

        def on_message(message: ToReplica) -> None:
            if isinstance(message, Hello):
                self.hellos.append(message)
                if self.answer is not None:
                    channel.send(self.answer)
            else:
                self.requests.append(message)

        def on_end(_: str) -> None:
            self.n_ends += 1

        channel.on_message, channel.on_end = on_message, on_end
        self.channels.append(channel)
        return channel

    def drop(self) -> None:
        """Ends all connections."""
        for channel in self.channels:
            channel.close()

    async def close(self) -> None:
        self.drop()
        if self._server is not None:
            self._server.close()
            await self._server.wait_closed()


@pytest.fixture(autouse=True)
def _short_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "PAUSE", 0.0)
    monkeypatch.setattr(module, "MAX_PAUSE", 0.0)


class Ingress:
    """The replicas that an ingress knows, and its supervisor."""

    def __init__(self) -> None:
        self.opened: list[str] = []
        self.n_wanted = 0
        self.replicas = Replicas(VERSION, lambda name, ids: self.opened.append(name), self._want)
        self.supervisor = Supervisor(
            model_options(),
            start_process=self.replicas.start_process,
            restarts=WaitsForReplicas(),
        )

    def _want(self) -> None:
        self.n_wanted += 1

    async def is_ready(self, n_slots: int) -> None:
        """Waits until there are so many slots."""

        def has_slots() -> bool:
            client = self.supervisor.awake_engine()
            return client is not None and client.info.n_slots == n_slots

        await until(has_slots)


@asynccontextmanager
async def ingress(n_replicas: int) -> AsyncIterator[tuple[Ingress, dict[str, PaperReplica]]]:
    """An ingress, and replicas that it doesn't know yet."""
    found, others = Ingress(), {"abc"[n]: PaperReplica() for n in range(n_replicas)}
    for each in others.values():
        await each.open()
    found.supervisor.start()
    try:
        yield found, others
    finally:
        await found.supervisor.stop()
        await found.replicas.close()
        for each in others.values():
            await each.close()


def play(
    n_replicas: int,
    story: Callable[[Ingress, dict[str, PaperReplica]], Coroutine[Any, Any, None]],
) -> None:
    async def run() -> None:
        async with ingress(n_replicas) as (found, others):
            await story(found, others)
        assert not found.replicas._tasks
        assert [task for task in asyncio.all_tasks() if task is not asyncio.current_task()] == []

    asyncio.run(run())


def known(others: dict[str, PaperReplica]) -> dict[str, Address]:
    return {name: each.address for name, each in others.items()}


def test_all_known_replicas_are_connected() -> None:
    async def story(found: Ingress, others: dict[str, PaperReplica]) -> None:
        assert found.supervisor.state == "loading"
        found.replicas.update(known(others))
        await found.is_ready(6)
        hellos = [each.hellos[0] for each in others.values()]
        assert {(each.version, each.secret) for each in hellos} == {(VERSION, "secret")}
        [first_id] = {each.first_id for each in hellos}
        text = generate(await found.supervisor.engine(), ["a"], PARAMS)
        assert text.request.id == first_id
        [name] = found.opened
        await until(lambda: others[name].requests)
        assert isinstance(others[name].requests[0], Submit)
        others[name].channels[0].send(Step([Begun(first_id), finished(id=first_id)]))
        assert (await text.result()).id == first_id

    play(3, story)


def test_ingresses_have_different_ids() -> None:
    firsts = {module._random_first_id() for _ in range(1000)}
    assert len(firsts) > 990
    assert min(firsts) >= 1 << ID_BITS
    assert max(firsts) + (1 << ID_BITS) < 1 << 63


def test_a_lost_replica_is_connected_again() -> None:
    async def story(found: Ingress, others: dict[str, PaperReplica]) -> None:
        found.replicas.update(known(others))
        await found.is_ready(4)
        for n in range(2, 5):
            others["a"].drop()
            await until(lambda n=n: len(others["a"].hellos) == n)  # type: ignore[misc]
            await found.is_ready(4)
        assert len(others["b"].hellos) == 1

    play(2, story)


def test_pauses_grow_until_a_replica_answers(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "PAUSE", 0.3)
    monkeypatch.setattr(module, "MAX_PAUSE", 2.0)
    pauses: list[float] = []

    async def story(found: Ingress, others: dict[str, PaperReplica]) -> None:
        loop = asyncio.get_running_loop()
        call_later = loop.call_later

        def at_once(delay: float, *arguments: Any, **options: Any) -> asyncio.TimerHandle:
            if delay in (0.3, 0.6, 1.2, 2.0):
                pauses.append(delay)
                delay = 0.0
            return call_later(delay, *arguments, **options)

        monkeypatch.setattr(loop, "call_later", at_once)
        address = others["a"].address
        await others["a"].close()
        found.replicas.update({"a": address, "b": others["b"].address})
        await until(lambda: len(pauses) >= 6)
        assert pauses[:6] == [0.3, 0.6, 1.2, 2.0, 2.0, 2.0]
        await others["a"].open(address.port)
        await found.is_ready(4)
        pauses.clear()
        others["a"].drop()
        await until(lambda: len(others["a"].hellos) > 1)
        await found.is_ready(4)
        assert pauses == [0.3]

    play(2, story)


REFUSALS: dict[str, tuple[Any, str]] = {
    "wrong secret": (Refused("the secret is wrong", False), "the secret is wrong"),
    "restarts": (Refused("the engine process is being replaced", True), "is being replaced"),
    "another answer": (Text(1, "hello"), "its answer is unknown"),
}


@pytest.mark.parametrize("name", REFUSALS)
def test_a_refusal_is_logged_once(name: str, caplog: pytest.LogCaptureFixture) -> None:
    answer, reason = REFUSALS[name]

    async def story(found: Ingress, others: dict[str, PaperReplica]) -> None:
        others["a"].answer = answer
        found.replicas.update(known(others))
        await until(lambda: len(others["a"].hellos) > 4)
        assert found.supervisor.state == "loading"
        others["a"].answer = Welcome(INFO)
        await found.is_ready(2)

    with caplog.at_level(logging.WARNING, LOGGER):
        play(1, story)
    [line] = [each.getMessage() for each in caplog.records if each.name == LOGGER]
    assert line.startswith("the replica a can't be used: ")
    assert reason in line


def test_a_replica_that_does_not_answer_does_not_delay_others(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    async def story(found: Ingress, others: dict[str, PaperReplica]) -> None:
        others["a"].answer = None
        found.replicas.update(known(others))
        await found.is_ready(2)
        await until(lambda: others["a"].hellos)
        assert found.replicas._tasks.keys() == {"a", "b"}

    play(2, story)


def test_a_replica_has_limited_time_to_answer(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(module, "CONNECT_SECONDS", 0.001)

    async def story(found: Ingress, others: dict[str, PaperReplica]) -> None:
        others["a"].answer = None
        found.replicas.update(known(others))
        await until(lambda: others["a"].n_ends > 2)

    with caplog.at_level(logging.WARNING, LOGGER):
        play(1, story)
    assert "no answer in" in caplog.text


def test_a_replica_that_is_no_longer_known_ends_with_its_last_request() -> None:
    async def story(found: Ingress, others: dict[str, PaperReplica]) -> None:
        found.replicas.update(known(others))
        await found.is_ready(4)
        client = await found.supervisor.engine()
        old = generate(client, ["a"], PARAMS)
        await until(lambda: found.opened)
        [name] = found.opened
        other = "ab".replace(name, "")
        await until(lambda: others[name].requests)
        found.replicas.update({other: others[other].address})
        more = generate(client, ["b"], PARAMS)
        assert found.opened == [name, other]
        assert not others[name].n_ends
        id = old.request.id
        others[name].channels[0].send(Step([Begun(id), finished(id=id)]))
        assert (await old.result()).id == id
        await until(lambda: others[name].n_ends)
        await until(lambda: found.replicas._tasks.keys() == {other})
        await found.is_ready(2)
        more.cancel()
        found.replicas.update(known(others))  # it returns
        await found.is_ready(4)

    play(2, story)


def test_a_replica_that_is_removed_while_it_answers_is_not_used() -> None:
    async def story(found: Ingress, others: dict[str, PaperReplica]) -> None:
        others["a"].answer = None
        found.replicas.update(known(others))
        await until(lambda: others["a"].hellos)
        await found.is_ready(2)
        found.replicas.update({"b": others["b"].address})
        others["a"].channels[0].send(Welcome(INFO))
        await until(lambda: found.replicas._tasks.keys() == {"b"})
        await found.is_ready(2)
        assert others["a"].n_ends

    play(2, story)


def test_a_replica_that_is_known_again_is_connected_again() -> None:
    """At any moment between the end of its connection and the end of its task."""

    async def story(found: Ingress, others: dict[str, PaperReplica]) -> None:
        found.replicas.update(known(others))
        await found.is_ready(4)
        for n_turns in range(12):
            found.replicas.update({"b": others["b"].address})
            for _ in range(n_turns):
                await asyncio.sleep(0)
            found.replicas.update(known(others))
            await found.is_ready(4)

    play(2, story)


def test_a_model_without_replicas_sleeps_until_a_request() -> None:
    async def story(found: Ingress, others: dict[str, PaperReplica]) -> None:
        found.replicas.update({"a": others["a"].address})
        await found.is_ready(2)
        found.replicas.update({})
        await until(lambda: found.supervisor.state == "sleeping")
        assert found.n_wanted == 1
        found.supervisor.acquire()
        waking = asyncio.create_task(found.supervisor.engine())
        await until(lambda: found.n_wanted == 2)
        found.replicas.update({"b": others["b"].address})
        generate(await waking, ["a"], PARAMS)
        await until(lambda: others["b"].requests)
        found.supervisor.release()

    play(2, story)


def test_a_request_begun_before_the_last_replica_ends_waits_for_the_next_one() -> None:
    async def story(found: Ingress, others: dict[str, PaperReplica]) -> None:
        found.replicas.update({"a": others["a"].address})
        await found.is_ready(2)
        found.supervisor.acquire()
        client = await found.supervisor.engine()
        found.replicas.update({})
        text = generate(client, ["a"], PARAMS)
        await until(lambda: found.n_wanted == 2)
        later = generate(client, ["b"], PARAMS)
        assert not text.ready
        found.replicas.update({"b": others["b"].address})
        await until(lambda: len(others["b"].requests) == 2)
        ids = [text.request.id, later.request.id]
        assert [each.id for each in others["b"].requests] == ids
        found.supervisor.release()

    play(2, story)


def test_a_lost_replica_that_was_the_last_one_is_waited_for() -> None:
    async def story(found: Ingress, others: dict[str, PaperReplica]) -> None:
        found.replicas.update({"a": others["a"].address})
        await found.is_ready(2)
        others["a"].answer = Refused("the engine process is being replaced", True)
        text = generate(await found.supervisor.engine(), ["a"], PARAMS)
        await until(lambda: others["a"].requests)
        others["a"].drop()
        await until(lambda: len(others["a"].hellos) > 2)
        assert found.supervisor.state == "restarting"
        assert not text.ready
        others["a"].answer = Welcome(INFO)
        await until(lambda: len(others["a"].requests) == 2)
        assert others["a"].requests[1].id == text.request.id

    play(1, story)


def test_processes_follow_each_other() -> None:
    """A second start ends the first fleet, also while replicas change."""

    async def run() -> None:
        replica = PaperReplica()
        address = await replica.open()
        replicas = Replicas(VERSION, lambda name, ids: None)
        replicas.update({"a": address})  # without a fleet, this has no effect
        options, engine_log = engine_options(), EngineLog("")
        await replicas.start_process(options, engine_log, 0)
        first = replicas._fleet
        assert first is not None
        await until(lambda: first._members)
        starting = asyncio.create_task(replicas.start_process(options, engine_log, 0))
        await asyncio.sleep(0)
        replicas.update({"a": address})
        await starting
        second = replicas._fleet
        assert second is not None
        assert second is not first
        assert first.has_ended
        await until(lambda: second._members)
        await replicas.close()
        assert second.has_ended
        await until(lambda: replica.n_ends == 2)
        assert not replicas._tasks
        await replicas.close()
        await replica.close()

    asyncio.run(run())


def test_the_connections_end_with_the_supervisor() -> None:
    async def story(found: Ingress, others: dict[str, PaperReplica]) -> None:
        found.replicas.update(known(others))
        await found.is_ready(4)
        await found.supervisor.stop()
        await until(lambda: all(each.n_ends for each in others.values()))
        await until(lambda: not found.replicas._tasks)

    play(2, story)


def test_replicas_that_end_before_they_served_are_connected_with_pauses(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(module, "MAX_PAUSE", 3.0)
    rules = WaitsForReplicas()
    assert rules.after(ProcessLife()) == 0.0  # never ready: it was ended
    broken, proved = ProcessLife(ready=True), ProcessLife(ready=True, served=True)
    assert [rules.after(broken) for _ in range(5)] == [0.0, 1.0, 2.0, 3.0, 3.0]
    assert rules.after(proved) == 0.0
    assert [rules.after(ProcessLife(ready=True, illegal=True)) for _ in range(3)][1:] == [0, 0]
