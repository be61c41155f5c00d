"""Which faults explain which answers, what the proxy tears, and the reports on both."""

import asyncio
import os
import random
import signal
import sys
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest

from contract_tests.chaos import faults as harm
from contract_tests.chaos.faults import Fault, Faults
from contract_tests.chaos.history import SETTLES, History
from contract_tests.chaos.proxy import HALF_CLOSED, Plan, Proxy
from contract_tests.kit.server import SECONDS
from contract_tests.load import reading
from contract_tests.load.asks import DISK, SERVER, Ask
from contract_tests.load.exchange import Client, Exchange
from contract_tests.load.judging import Outcome, Verdict
from contract_tests.load.keeper import Death, Keeper
from contract_tests.load.quiet import damaged, is_temporary
from contract_tests.own.servers import free_port

TALKER = "engine:talker"


def exchange(begun: float, ended: float, *uses: str, status: int = 200, port: int = 1) -> Exchange:
    ask = Ask(name="ask", path="/completion", body=lambda _: {}, read=reading.nothing,
              uses=frozenset({SERVER, *uses}))  # fmt: skip
    return Exchange(ask, 0, begun=begun, ended=ended, status=status, port=port)


def history(*faults: Fault) -> History:
    keeper = Keeper([], 0, Path("log"), {})
    made = History([*faults], keeper, Proxy(0, random.Random(1)), seed=7)
    made.begun = 0.0
    return made


def problems(made: History, each: Exchange, outcome: Outcome) -> list[str]:
    made.take(each, Verdict(outcome))
    made.review()
    return made.problems


KILLED = Fault(harm.KILL, TALKER, begun=10.0, healed=10.0, recovered=12.0)


@pytest.mark.parametrize(
    ("fault", "each", "is_explained"),
    [
        (KILLED, exchange(9.0, 11.0, TALKER, status=500), True),
        (KILLED, exchange(11.0, 13.0, TALKER, status=503), True),
        (KILLED, exchange(8.0, 9.0, TALKER, status=500), False),
        (KILLED, exchange(12.5 + SETTLES, 30.0, TALKER, status=500), False),
        (KILLED, exchange(9.0, 11.0, "engine:other", status=500), False),
        (KILLED, exchange(9.0, 11.0, TALKER, status=400), False),
        (Fault(harm.KILL, "engine:", begun=10.0), exchange(9.0, 11.0, TALKER, status=500), True),
        (Fault(harm.KILL, "decode", begun=10.0), exchange(9.0, 11.0, "decode", status=400), True),
        (Fault(harm.KILL, "decode", begun=10.0), exchange(9.0, 11.0, TALKER, status=500), False),
        (Fault(harm.STOP, TALKER, begun=10.0), exchange(9.0, 11.0, TALKER, status=500), False),
        (Fault(harm.STOP, "trial", begun=10.0), exchange(9.0, 11.0, "trial", status=503), True),
        (Fault(harm.FULL, DISK, begun=10.0), exchange(9.0, 11.0, DISK, status=500), True),
        (Fault(harm.FULL, DISK, begun=10.0), exchange(9.0, 11.0, TALKER, status=500), False),
        (Fault(harm.STORM, "network", begun=10.0), exchange(9.0, 11.0, status=500), False),
    ],
)
def test_which_fault_explains_an_error(fault: Fault, each: Exchange, is_explained: bool) -> None:
    assert bool(problems(history(fault), each, "error")) != is_explained


def test_a_torn_connection_explains_a_cut() -> None:
    made = history()
    made.proxy.torn[1] = "torn"
    assert not problems(made, exchange(1.0, 2.0), "cut")
    assert problems(made, exchange(1.0, 2.0, port=2), "cut")


def test_a_half_closed_connection_explains_an_error() -> None:
    made = history()
    made.proxy.torn[1] = HALF_CLOSED
    assert not problems(made, exchange(1.0, 2.0, status=400), "error")


def test_the_end_of_the_server_explains_a_cut_even_if_it_is_noticed_later() -> None:
    made = history()
    made.take(exchange(1.0, 2.0), Verdict("cut"))
    assert not made.problems, "it is only suspicious"
    made.keeper.deaths.append(Death(2.1, -9, back=4.0))
    made.review()
    assert not made.problems
    assert problems(made, exchange(4.5, 5.0), "cut")


def test_a_wrong_text_is_never_explained() -> None:
    made = history(KILLED)
    made.take(exchange(9.0, 11.0, TALKER), Verdict("wrong", "another text"))
    [story] = made.problems
    assert story.startswith("seed 7, 9.0 to 11.0 s: another text")
    assert "engine:talker killed, right again 2.0 s later" in story


def test_a_right_answer_that_began_later_is_the_recovery() -> None:
    fault = Fault(harm.KILL, TALKER, begun=10.0, healed=10.0)
    made = history(fault)
    for each in (exchange(9.0, 11.0, TALKER), exchange(10.5, 11.5, "engine:other")):
        made.take(each, Verdict("right"))
        assert fault.recovered is None
    made.take(exchange(11.0, 12.5, TALKER), Verdict("right"))
    assert fault.recovered == 12.5
    assert "| engine killed | 1 | 1 | 2.50 | 2.50 | 2.50 |" in made.recoveries()
    assert "| all | 3 | 0 | 0 | 0 | 0 |" in made.answers()


def test_a_stopped_process_recovers_from_when_it_goes_on() -> None:
    fault = Fault(harm.STOP, TALKER, begun=10.0)
    made = history(fault)
    made.take(exchange(11.0, 12.0, TALKER), Verdict("right"))
    assert fault.recovered is None
    fault.healed = 20.0
    made.take(exchange(21.0, 22.0, TALKER), Verdict("right"))
    assert "| engine stopped | 1 | 1 | 2.00 | 2.00 | 2.00 |" in made.recoveries()


def test_a_recovery_during_another_fault_is_counted_apart() -> None:
    faults = [
        Fault(harm.KILL, TALKER, begun=10.0, healed=10.0, recovered=12.0),
        Fault(harm.KILL, TALKER, begun=20.0, healed=20.0, recovered=50.0),
        Fault(harm.FOR_EVER, TALKER, begun=21.0, healed=45.0, recovered=50.0),
        Fault(harm.FULL, DISK, begun=30.0, healed=31.0, recovered=32.0),
        Fault(harm.KILL, SERVER, begun=60.0, healed=60.0),
    ]
    table = history(*faults).recoveries()
    assert "| engine killed | 2 | 1 | 2.00 | 2.00 | 30.00 |" in table
    assert "| disk full | 1 | 1 | 1.00 | 1.00 | 1.00 |" in table
    assert "| engine stuck | 1 | 0 | - | - | 29.00 |" in table
    assert "| server killed | 1 | 0 | - | - | never |" in table


def test_temporary_files_are_known() -> None:
    for name in ("slots/.slot-1.part", "tmpabc", "a.tmp", "cache/x.part"):
        assert is_temporary(name)
    for name in ("slots", "slots/0.bin", "cache/0a.kv", "responses.db-wal"):
        assert not is_temporary(name)


def test_a_damaged_database_is_reported(tmp_path: Path) -> None:
    assert not damaged(tmp_path / "none")
    (tmp_path / "a.db").write_bytes(b"")
    assert not damaged(tmp_path / "a.db")


def test_the_same_seed_draws_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("contract_tests.chaos.faults.family", lambda _: [])

    def drawn() -> list[object]:
        made = Faults(Keeper([], 0, Path("log"), {}), Proxy(0, random.Random(1)), None,
                      random.Random(5))  # fmt: skip
        return [made.draw(1) for _ in range(20)]

    assert drawn() == drawn()


# ---- the proxy, over real sockets ---------------------------------------------------------------

ANSWER = b"HTTP/1.1 200 OK\r\nContent-Length: 5000\r\n\r\n" + b"x" * 5000


async def _answering(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    head = await reader.readuntil(b"\r\n\r\n")
    [length] = [line for line in head.lower().split(b"\r\n") if line.startswith(b"content-length")]
    await reader.readexactly(int(length.split()[1]))
    writer.write(ANSWER)
    await writer.drain()
    writer.close()


def through(plan: Plan) -> tuple[Exchange, Proxy]:
    """Returns a request's exchange through a proxy with this plan, and the proxy."""

    class PlannedProxy(Proxy):
        def plan(self) -> Plan:
            return plan

    async def run() -> tuple[Exchange, Proxy]:
        server = await asyncio.start_server(_answering, "127.0.0.1", 0)
        proxy = PlannedProxy(server.sockets[0].getsockname()[1], random.Random(1))
        proxy.storm = True
        client = Client(await proxy.start(), 1, SECONDS)
        try:
            return await client.send(exchange(0, 0).ask, 1), proxy
        finally:
            await client.close()
            await proxy.close()
            server.close()

    return asyncio.run(run())


@pytest.mark.parametrize("plan", [Plan(), Plan(dribble=True), Plan(delays=1)])
def test_a_proxy_changes_nothing(plan: Plan) -> None:
    found, proxy = through(plan)
    assert (found.status, found.content, found.cut) == (200, b"x" * 5000, "")
    assert not proxy.torn


@pytest.mark.parametrize(
    "plan",
    [
        Plan(answer_bytes=0), Plan(answer_bytes=20), Plan(answer_bytes=1000),
        Plan(answer_bytes=1000, reset=True), Plan(request_bytes=0), Plan(request_bytes=50),
    ],
)  # fmt: skip
def test_a_torn_connection_is_a_cut_and_known(plan: Plan) -> None:
    found, proxy = through(plan)
    assert found.cut
    assert found.port in proxy.torn
    assert len(found.content) < 5000


def test_no_server_behind_the_proxy() -> None:
    async def run() -> tuple[Exchange, Proxy]:
        proxy = Proxy(free_port(), random.Random(1))
        client = Client(await proxy.start(), 0, SECONDS)
        try:
            return await client.send(exchange(0, 0).ask, 1), proxy
        finally:
            await client.close()
            await proxy.close()

    found, proxy = asyncio.run(run())
    assert found.cut
    assert found.port in proxy.refused


# ---- the keeper ---------------------------------------------------------------------------------


def kept(tmp_path: Path, program: str, work: Callable[[Keeper], Awaitable[None]]) -> Keeper:
    async def run() -> Keeper:
        keeper = Keeper([sys.executable, "-c", program], 0, tmp_path / "log", {})
        keeper.start()
        while not keeper.alive() or b"begun" not in keeper.log.read_bytes():
            await asyncio.sleep(0.01)
        await work(keeper)
        await keeper.close()
        return keeper

    return asyncio.run(run())


@pytest.mark.slow
@pytest.mark.skipif(os.name != "posix", reason="sessions and signals")
def test_a_server_that_ends_is_started_again(tmp_path: Path) -> None:
    async def work(keeper: Keeper) -> None:
        first = keeper.pid
        os.kill(first, signal.SIGKILL)
        while keeper.pid == first or not keeper.alive():
            await asyncio.sleep(0.01)

    keeper = kept(tmp_path, "import time; print('begun', flush=True); time.sleep(1000)", work)
    assert keeper.deaths[0].code == -signal.SIGKILL
    assert not keeper.orphans
    assert not keeper.alive()


@pytest.mark.slow
@pytest.mark.skipif(os.name != "posix", reason="sessions and signals")
def test_processes_that_outlive_their_server_are_reported_and_ended(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("contract_tests.load.keeper.LINGER", 0.2)
    program = (
        "import subprocess, sys, time\n"
        "subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(1000)'])\n"
        "print('begun', flush=True); time.sleep(1000)"
    )

    async def work(keeper: Keeper) -> None:
        os.kill(keeper.pid, signal.SIGKILL)
        while not keeper.orphans:
            await asyncio.sleep(0.01)

    assert kept(tmp_path, program, work).orphans
