"""The replicas of a model that an ingress knows, and its connections to them.

The distributed engine that starts replicas reports them to `discovery`, from a thread of its own.
This module imports nothing of that engine.
"""

import asyncio
import logging
import secrets
from collections.abc import Callable, Mapping
from contextlib import suppress
from functools import partial
from random import Random
from typing import TypeAlias

from specllama.engine.fleet.channel import (
    ID_BITS,
    Address,
    Channel,
    Hello,
    Refused,
    ToIngress,
    Welcome,
    to_ingress_decoder,
)
from specllama.engine.fleet.fleet import Fleet, OnOpen
from specllama.engine.fleet.placing import Placing
from specllama.engine.models.engine_process import EngineProcess
from specllama.engine.models.lifecycle import ProcessLife, Restarts
from specllama.engine.options import EngineOptions
from specllama.engine.wire.engine_log import EngineLog
from specllama.engine.wire.stats import BLOCK

log = logging.getLogger("specllama.engine.fleet")

CONNECT_SECONDS = 10.0  # until a replica has answered
PAUSE = 0.25  # s before the second attempt to connect; each further pause is twice as long
MAX_PAUSE = 5.0  # s


class WaitsForReplicas(Restarts):
    """A fleet that has lost its last replica waits for others, however often that happens. It
    pauses before if it never answered a request, as the next one may end in the same way."""

    def after(self, life: ProcessLife) -> float | None:
        return min(super().after(life) or 0.0, MAX_PAUSE)


class Replicas:
    """Connects to all known replicas of a model, again and again, while a fleet needs them.

    `start_process` is the one of a `Supervisor`. It makes a new `Fleet`, for which every replica is
    connected. `update` changes the known replicas at any time.
    """

    def __init__(
        self,
        version: str,
        on_open: OnOpen,
        on_wanted: Callable[[], None] = lambda: None,
        new_placing: Callable[[], Placing] | None = None,
    ) -> None:
        """`version` is specllama's. `on_open` is as in `Fleet`; `on_wanted` is called when a fleet
        starts: a model without replicas needs one. `new_placing` makes the rules by which a fleet
        chooses replicas."""
        self._hello = partial(Hello, version, first_id=_random_first_id())
        self._on_open = on_open
        self._on_wanted = on_wanted
        self._new_placing = new_placing or (lambda: Placing(Random(), BLOCK))
        self._known: dict[str, Address] = {}
        self._fleet: Fleet | None = None
        self._tasks: dict[str, asyncio.Task[None]] = {}

    async def start_process(
        self, options: EngineOptions, engine_log: EngineLog, log_level: int
    ) -> EngineProcess:
        """Returns a fleet as a process, which becomes ready with the first replica. The arguments
        are those for a process of this machine, and have no effect."""
        await self.close()
        self._fleet = Fleet(
            self._hello(secret="").first_id, self._on_open, placing=self._new_placing()
        )
        self._connect()
        self._on_wanted()
        return EngineProcess(self._fleet)

    def update(self, known: Mapping[str, Address]) -> None:
        """Replaces the known replicas, by their names. One that is no longer known gets no further
        requests; its connection ends with its last request."""
        for name in self._known.keys() - known.keys():
            if self._fleet is not None:
                self._fleet.retire(name)
        self._known = dict(known)
        self._connect()

    async def close(self) -> None:
        """Ends all connections."""
        if self._fleet is not None:
            self._fleet.kill()  # first: `update` must not connect it again meanwhile
        tasks = list(self._tasks.values())
        self._tasks.clear()
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    # ----------------------------------------------------------------------------------------

    def _connect(self) -> None:
        fleet = self._fleet
        if fleet is None or fleet.has_ended:
            return
        for name in self._known.keys() - self._tasks.keys():
            self._tasks[name] = task = asyncio.create_task(self._keep(fleet, name), name=name)
            task.add_done_callback(partial(self._done, name))

    def _done(self, name: str, task: asyncio.Task[None]) -> None:
        if self._tasks.get(name) is task:
            del self._tasks[name]
            if not task.cancelled() and task.exception() is None:
                self._connect()  # it may be known again, since the task has ended

    async def _keep(self, fleet: Fleet, name: str) -> None:
        """Connects to a replica whenever it isn't connected, while it is known."""
        pause = PAUSE
        failure = ""
        while (address := self._known.get(name)) is not None and not fleet.has_ended:
            reason, was_connected = await self._visit(fleet, name, address)
            if was_connected:
                pause, failure = PAUSE, ""
            elif reason != failure and name in self._known:  # a repeated reason is logged once
                failure = reason
                log.warning("the replica %s can't be used: %s", name, reason)
            await asyncio.sleep(pause)
            pause = min(2 * pause, MAX_PAUSE)

    async def _visit(self, fleet: Fleet, name: str, address: Address) -> tuple[str, bool]:
        """Connects to a replica, and adds it to the fleet until the connection ends. Returns the
        reason of the end, and whether the replica belonged to the fleet."""
        loop = asyncio.get_running_loop()
        channel: Channel[ToIngress] = Channel(to_ingress_decoder)
        answered = asyncio.Event()
        refusal, was_member = "", False
        end: asyncio.Future[str] = loop.create_future()

        def on_message(first: ToIngress) -> None:
            nonlocal refusal, was_member
            if name not in self._known:  # since the connection was made
                channel.close()
            elif isinstance(first, Welcome):
                was_member = True
                log.info("the replica %s is connected", name)
                fleet.join(name, channel, first.info)
            else:
                refusal = first.reason if isinstance(first, Refused) else "its answer is unknown"
                channel.close()
            answered.set()

        def on_end(reason: str) -> None:
            if not end.done():
                end.set_result(refusal or reason)
            answered.set()

        channel.on_message, channel.on_end = on_message, on_end
        try:
            async with asyncio.timeout(CONNECT_SECONDS):
                await loop.create_connection(lambda: channel, address.host, address.port)
                channel.send(self._hello(secret=address.secret))
                await answered.wait()
            return await end, was_member
        except TimeoutError:
            return f"no answer in {CONNECT_SECONDS:.0f} s", False
        except OSError as error:
            return str(error), False
        finally:
            fleet.leave(name, end.result() if end.done() else "its connection is closed")
            channel.close()


def _random_first_id() -> int:
    """Returns the first request id of this ingress. Two of a hundred ingresses have the same one
    with a probability of 4e-5; then a replica refuses the second one."""
    return (secrets.randbits(62 - ID_BITS) + 1 << ID_BITS) + 1


# ---- The replicas that this process knows.


Update: TypeAlias = Callable[[Mapping[str, Address]], object]
"""Receives the replicas of a deployment, by their names."""


class GoneError(Exception):
    """The replica for which a call is meant is no longer there."""


class Discovery:
    """Passes the replicas of each deployment from the thread that learns of them to the event loop
    that uses them."""

    def __init__(self) -> None:
        self._known: dict[str, Mapping[str, Address]] = {}
        self._watchers: dict[str, Update] = {}

    def watch(self, deployment: str, update: Update) -> None:
        """Calls `update` on the running event loop: now, and at each change. A later call for the
        same deployment replaces this one."""
        loop = asyncio.get_running_loop()
        self._watchers[deployment] = lambda known: loop.call_soon_threadsafe(update, known)
        if (known := self._known.get(deployment)) is not None:
            update(known)

    def known(self, deployment: str) -> Mapping[str, Address] | None:
        """Returns the replicas of a deployment, or None if they haven't been reported yet."""
        return self._known.get(deployment)

    def publish(self, deployment: str, known: Mapping[str, Address]) -> None:
        """Reports all replicas of a deployment. Safe to call from any thread."""
        self._known[deployment] = known
        if (update := self._watchers.get(deployment)) is not None:
            with suppress(RuntimeError):  # the loop is closed: the server has ended
                update(known)


discovery = Discovery()
"""The one of this process, as the reporting code has no other way to it."""
