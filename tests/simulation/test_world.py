"""The simulator itself: its tasks, clock, locks, pipes and disk."""

import asyncio
import errno
import random
from collections.abc import Callable
from concurrent import futures
from functools import partial
from pathlib import Path
from queue import Empty
from typing import Any

import pytest

from specllama.engine.wire.framing import frame
from tests.simulation.disk import SimulatedDisk
from tests.simulation.processes import Child, EventLoop
from tests.simulation.threads import system_of
from tests.simulation.world import StuckError, World

System = Callable[..., Any]
A_LITTLE, LONG = 0.1, 5.0
"""Seconds of a world, whose clock is simulated."""


def played(seed: int, main: Callable[[World, dict[str, System]], None]) -> World:
    """Runs `main` to its end as the first task of a world, and returns the world."""
    world = World(f"{seed}")
    ended: list[bool] = []

    def first() -> None:
        main(world, system_of(world))
        ended.append(True)

    with world.closing():
        world.start(first, "main", world.server)
        world.run(lambda: bool(ended))
    return world


# ---- tasks and the clock -----------------------------------------------------------------


def test_the_clock_moves_when_all_tasks_wait() -> None:
    def main(world: World, system: dict[str, System]) -> None:
        before = world.now
        world.sleep(30.0)
        assert 30.0 <= world.now - before < 30.1

    played(1, main)


def test_looking_at_the_clock_takes_time() -> None:
    def main(world: World, system: dict[str, System]) -> None:
        assert system["now"]() < system["now"]()

    played(1, main)


def order_of(seed: int) -> list[int]:
    order: list[int] = []

    def main(world: World, system: dict[str, System]) -> None:
        def each(number: int) -> None:
            for _ in range(3):
                order.append(number)
                world.yield_()

        for number in range(4):
            system["start_thread"](partial(each, number), f"{number}")
        world.sleep(1.0)

    played(seed, main)
    return order


def test_the_seed_orders_tasks() -> None:
    orders = {seed: order_of(seed) for seed in range(20)}
    assert all(order_of(seed) == order for seed, order in orders.items())
    assert len({tuple(order) for order in orders.values()}) > 10


def test_a_task_that_waits_for_ever_is_stuck() -> None:
    with pytest.raises(StuckError, match="server/main"):
        played(1, lambda world, system: system["Event"]().wait())


def test_a_process_ends_with_its_tasks() -> None:
    def main(world: World, system: dict[str, System]) -> None:
        steps: list[int] = []

        def other() -> None:
            while True:
                steps.append(1)
                world.sleep(1.0)

        process = type(world.server)("other")
        world.start(other, "other", process)
        world.sleep(2.5)
        assert len(steps) == 3
        process.stopped_until = world.now + 10
        world.sleep(5.0)
        assert len(steps) == 3
        world.sleep(6.5)
        assert len(steps) > 3
        process.end(-9)
        n = len(steps)
        world.sleep(10.0)
        assert (len(steps), process.returncode) == (n, -9)

    played(1, main)


# ---- in the place of threading -----------------------------------------------------------


@pytest.mark.parametrize("seed", range(10))
def test_one_task_holds_a_lock(seed: int) -> None:
    def main(world: World, system: dict[str, System]) -> None:
        lock, inside = system["Lock"](), 0

        def each() -> None:
            nonlocal inside
            with lock, lock:
                inside += 1
                assert inside == 1
                world.yield_()
                inside -= 1

        for task in [system["start_thread"](each, "each") for _ in range(4)]:
            task.join()

    played(seed, main)


@pytest.mark.parametrize("seed", range(10))
def test_a_condition_wakes_waiting_tasks(seed: int) -> None:
    def main(world: World, system: dict[str, System]) -> None:
        condition, items = system["Condition"](), []

        def give() -> None:
            world.sleep(0.5)
            with condition:
                items.append(1)
                condition.notify_all()

        with condition:
            assert not condition.wait_for(lambda: items, A_LITTLE)
        system["start_thread"](give, "give")
        with condition:
            assert condition.wait_for(lambda: items, LONG)
        assert world.now < 1002

    played(seed, main)


@pytest.mark.parametrize("seed", range(10))
def test_a_queue_keeps_its_order(seed: int) -> None:
    def main(world: World, system: dict[str, System]) -> None:
        queue = system["SimpleQueue"]()

        def give() -> None:
            for number in range(5):
                queue.put(number)

        system["start_thread"](give, "give")
        assert [queue.get() for _ in range(5)] == [0, 1, 2, 3, 4]
        with pytest.raises(Empty):
            queue.get(timeout=A_LITTLE)
        with pytest.raises(Empty):
            queue.get_nowait()

    played(seed, main)


@pytest.mark.parametrize("seed", range(10))
def test_a_pool_does_its_work(seed: int) -> None:
    def main(world: World, system: dict[str, System]) -> None:
        pool, running = system["pool"](2, "pool"), 0

        def work(number: int) -> int:
            nonlocal running
            running += 1
            assert running <= 2
            world.sleep(1.0)
            running -= 1
            if number == 3:
                raise ValueError("the third")
            return number

        made = [pool.submit(work, number) for number in range(4)]
        system["wait"](made, None, futures.FIRST_COMPLETED)
        assert any(future.done() for future in made)
        assert [future.result() for future in made[:3]] == [0, 1, 2]
        with pytest.raises(ValueError, match="third"):
            made[3].result()
        pool.shutdown()
        with pytest.raises(RuntimeError):
            pool.submit(work, 0)

    played(seed, main)


def test_a_timer_can_be_cancelled() -> None:
    def main(world: World, system: dict[str, System]) -> None:
        called: list[int] = []
        system["call_later"](1.0, lambda: called.append(1))
        other = system["call_later"](1.0, lambda: called.append(2))
        other.cancel()
        world.sleep(2.0)
        assert called == [1]

    played(1, main)


# ---- processes and pipes -----------------------------------------------------------------


class Output(asyncio.SubprocessProtocol):
    """Records the output at the server's end of a process."""

    def __init__(self) -> None:
        self.data = bytearray()
        self.n_parts = 0
        self.ends: list[str] = []

    def pipe_data_received(self, fd: int, data: bytes) -> None:
        assert not self.ends
        self.data += data
        self.n_parts += 1

    def pipe_connection_lost(self, fd: int, exc: Exception | None) -> None:
        self.ends.append(f"pipe {fd}")

    def process_exited(self) -> None:
        self.ends.append("exit")


def outcome_of(seed: int, failing: str = "") -> tuple[Output, int | None]:
    """Returns the outcome of a process that sends 300 frames back and ends."""
    world, dice = World(f"{seed}"), random.Random(seed)
    frames = b"".join(frame(["message", number]) for number in range(300))
    found: list[tuple[Output, int | None]] = []

    def program(child: Child) -> int:
        received = b""
        while part := child.read(1 << 16):
            received += part
        while received:
            received = received[child.write(received[:64]) :]
        return 7

    loop = EventLoop(world, program, lambda what: what == failing and dice.random() < 0.5)

    async def serve() -> None:
        child, protocol = await loop.subprocess_exec(Output, "program")
        assert isinstance(protocol, Output)
        pipe = child.get_pipe_transport(0)
        assert isinstance(pipe, asyncio.WriteTransport)
        pipe.write(frames)
        pipe.close()
        while len(protocol.ends) < 3:
            await asyncio.sleep(0.1)
        if not failing:
            assert bytes(protocol.data) == frames
        assert frames.startswith(bytes(protocol.data)) or failing == "nonsense"
        found.append((protocol, child.get_returncode()))

    with world.closing():
        world.start(lambda: loop.run_until_complete(serve()), "event loop", world.server)
        world.run(lambda: bool(found))
    loop.abandon()
    return found[0]


def test_pipes_lose_nothing_and_cut_anywhere() -> None:
    outcomes = [outcome_of(seed) for seed in range(20)]
    assert {code for _, code in outcomes} == {7}
    assert max(protocol.n_parts for protocol, _ in outcomes) > 1
    assert len({tuple(protocol.ends) for protocol, _ in outcomes}) > 1


def test_a_process_dies_within_a_message() -> None:
    outcomes = [outcome_of(seed, "death") for seed in range(20)]
    assert -9 in {code for _, code in outcomes}


def test_a_process_writes_nonsense() -> None:
    lengths = {len(outcome_of(seed, "nonsense")[0].data) for seed in range(20)}
    assert len(lengths) > 1


def test_a_process_does_not_start() -> None:
    world = World("1")
    errors: list[OSError] = []
    loop = EventLoop(world, lambda child: 0, lambda what: what == "start")

    async def serve() -> None:
        try:
            await loop.subprocess_exec(Output, "program")
        except OSError as error:
            errors.append(error)

    with world.closing():
        world.start(lambda: loop.run_until_complete(serve()), "event loop", world.server)
        world.run(lambda: bool(errors))
    loop.abandon()
    assert errors[0].errno == errno.EAGAIN


# ---- the disk ----------------------------------------------------------------------------


def with_disk(path: Path, failing: str, use: Callable[[SimulatedDisk], None]) -> None:
    def main(world: World, system: dict[str, System]) -> None:
        use(SimulatedDisk(world, lambda what: what == failing))

    (path / "a").write_bytes(b"12345678")
    played(3, main)


def test_a_disk_has_the_times_of_its_world(tmp_path: Path) -> None:
    def use(disk: SimulatedDisk) -> None:
        disk.replace(str(tmp_path / "a"), tmp_path / "b")
        with disk.scandir(str(tmp_path)) as entries:
            (entry,) = entries
        assert entry.name == "b"
        assert 1000 <= entry.stat().st_mtime < 1001

    with_disk(tmp_path, "", use)


def test_a_disk_fails_in_the_middle(tmp_path: Path) -> None:
    def use(disk: SimulatedDisk) -> None:
        failures = "No space left|Input/output error|Too many open files"
        with disk.open_file(tmp_path / "b", "wb") as file, pytest.raises(OSError, match=failures):
            file.write(b"12345678")
        assert (tmp_path / "b").read_bytes() == b"1234"

    with_disk(tmp_path, "disk", use)


def test_a_file_is_torn_or_gone(tmp_path: Path) -> None:
    def torn(disk: SimulatedDisk) -> None:
        disk.replace(str(tmp_path / "a"), tmp_path / "b")
        assert (tmp_path / "b").read_bytes() == b"1234"

    def gone(disk: SimulatedDisk) -> None:
        with pytest.raises(FileNotFoundError):
            disk.open(tmp_path / "a", 0)

    with_disk(tmp_path, "torn", torn)
    with_disk(tmp_path, "gone", gone)
