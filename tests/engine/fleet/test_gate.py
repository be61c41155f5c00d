"""A replica's side of connections: real sockets, and an engine process that the test plays."""

import asyncio
import tracemalloc
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

import pytest

from specllama.engine.errors import ErrorInfo
from specllama.engine.fleet import channel as channel_module
from specllama.engine.fleet import gate as gate_module
from specllama.engine.fleet.channel import (
    ID_BITS,
    Address,
    Channel,
    Hello,
    Refused,
    Report,
    ToIngress,
    Welcome,
    numbers,
    packed,
    to_ingress_decoder,
)
from specllama.engine.fleet.gate import MAX_STRANGERS, Gate
from specllama.engine.models.engine_process import EngineProcess
from specllama.engine.models.supervisor import Supervisor
from specllama.engine.options import EngineOptions
from specllama.engine.params import GenerationParams
from specllama.engine.wire.engine_log import EngineLog
from specllama.engine.wire.framing import HEADER, MAX_FRAME, frame
from specllama.engine.wire.replies import (
    Begun,
    Delta,
    Digest,
    Ended,
    Failed,
    Heartbeat,
    Ready,
    StatsReply,
    Step,
    Text,
    Tokens,
    Vectors,
)
from specllama.engine.wire.requests import (
    Cancel,
    Detokenize,
    Embed,
    GetDigest,
    GetStats,
    Load,
    MeasureMemory,
    Pause,
    SetAdapters,
    Submit,
    Terms,
    Tokenize,
)
from specllama.engine.wire.stats import ReplicaLoad, Stats
from tests.support.engines import INFO, AtOnce, PaperChild
from tests.support.factories import TIMINGS, finished
from tests.support.fleets import until
from tests.support.options_support import engine_options, model_options

VERSION = "1.0"
METERED = Terms(is_metered=True)
ERROR = ErrorInfo("server_error", "a mistake")


def first_id(number: int) -> int:
    """The first request id of ingress `number`."""
    return (number << ID_BITS) + 1


class RecordingChild(PaperChild):
    """An engine process in name only; `taken` has the messages to it."""

    def __init__(self) -> None:
        super().__init__()
        self.taken: list[Any] = []

    def sender(self) -> Callable[[object], None]:
        return self.taken.append


class Replica:
    """A gate and its supervisor, whose processes the test plays."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.children: list[RecordingChild] = []
        monkeypatch.setattr(EngineProcess, "start", self._start)
        self.gate = Gate(VERSION)
        self.supervisor = Supervisor(
            model_options(), start_process=self.gate.start_process, restarts=AtOnce()
        )
        self.gate.guard(self.supervisor)

    async def _start(
        self, options: EngineOptions, engine_log: EngineLog, log_level: int
    ) -> EngineProcess:
        await asyncio.sleep(0)
        child: Any = RecordingChild()
        self.children.append(child)
        return EngineProcess(child)

    @property
    def child(self) -> RecordingChild:
        return self.children[-1]

    async def ready(self, n: int) -> None:
        """Process number `n` becomes ready."""
        await until(lambda: len(self.children) == n and self.supervisor._process)
        self.child.say(Ready(INFO))
        await until(lambda: self.supervisor.state == "ready")

    async def next(self) -> Any:
        """Waits for the next message to the process, and takes it."""
        await until(lambda: self.child.taken)
        return self.child.taken.pop(0)

    async def cancels(self, n: int) -> list[int]:
        """Takes `n` Cancels, and the question whose answer shows their end. Answers it."""
        found = [await self.next() for _ in range(n + 1)]
        *cancels, question = found
        assert isinstance(question, GetStats)
        self.child.say(StatsReply(question.id, Stats()))
        return [each.id for each in cancels if isinstance(each, Cancel)]


@asynccontextmanager
async def replica(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[tuple[Replica, Address]]:
    found = Replica(monkeypatch)
    found.supervisor.start()
    await found.ready(1)
    address = await found.gate.open("127.0.0.1")
    try:
        yield found, address
    finally:
        await found.gate.close()
        await found.supervisor.stop()


class Ingress:
    """The other end of a connection to a gate."""

    def __init__(self) -> None:
        self.channel: Channel[ToIngress] = Channel(to_ingress_decoder)
        self.received: list[Any] = []
        self.ends: list[str] = []
        self.channel.on_message = self.received.append
        self.channel.on_end = self.ends.append
        self.transport: asyncio.Transport

    async def connect(self, address: Address) -> "Ingress":
        loop = asyncio.get_running_loop()
        transport, _ = await loop.create_connection(
            lambda: self.channel, address.host, address.port
        )
        self.transport = transport
        return self

    async def next(self) -> Any:
        await until(lambda: self.received or self.ends)
        return self.received.pop(0) if self.received else f"it has ended: {self.ends}"

    async def end(self) -> str:
        await until(lambda: self.ends)
        return self.ends[0]

    def send(self, *messages: object) -> None:
        for message in messages:
            self.channel.send(message)

    async def events(self) -> list[Any]:
        message = await self.next()
        assert isinstance(message, Step), message
        return message.events


async def connected(address: Address, number: int = 1) -> Ingress:
    """Returns ingress `number`, which the gate has let in."""
    ingress = await Ingress().connect(address)
    ingress.send(Hello(VERSION, address.secret, first_id(number)))
    assert await ingress.next() == Welcome(INFO)
    return ingress


def submit(id: int, n_others: int = 0, *, metered: bool = False) -> Submit:
    others = [(id + n, n) for n in range(1, n_others + 1)]
    terms = METERED if metered else Terms()
    return Submit(id, ["a"], GenerationParams(), group=id, others=others, terms=terms)


@pytest.fixture(autouse=True)
def _no_reports(monkeypatch: pytest.MonkeyPatch) -> None:
    """Questions for reports would be among the messages to the process."""
    monkeypatch.setattr(gate_module, "REPORT_SECONDS", 1e6)


def play(
    monkeypatch: pytest.MonkeyPatch, story: Callable[[Replica, Address], Awaitable[None]]
) -> None:
    async def run() -> None:
        async with replica(monkeypatch) as (found, address):
            await story(found, address)

    asyncio.run(run())


# ---- the first message ------------------------------------------------------------------


def hello(**changes: Any) -> Callable[[Address], object]:
    def make(address: Address) -> Hello:
        fields = {"version": VERSION, "secret": address.secret, "first_id": first_id(1)}
        return Hello(**{**fields, **changes})

    return make


REFUSED: dict[str, tuple[Callable[[Address], object], str, bool]] = {
    "another secret": (hello(secret="guessed"), "the secret is wrong", False),
    "no secret": (hello(secret=""), "the secret is wrong", False),
    "letters that are not ascii": (hello(secret="ü" * 20), "the secret is wrong", False),
    "another version": (hello(version="2.0"), "the versions differ: 2.0 here, 1.0 in", False),
    "another version and secret": (hello(secret="x", version="2"), "the secret is wrong", False),
    "ids of the replica itself": (hello(first_id=5), "has the same ids", True),
    "negative ids": (hello(first_id=-first_id(3)), "has the same ids", True),
    "no hello": (lambda _: submit(first_id(1)), "the secret is wrong", False),
    "a message of a start": (lambda _: Load(engine_options(), 0), "the secret is wrong", False),
}


@pytest.mark.parametrize("name", REFUSED)
def test_a_wrong_first_message_is_refused(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    message, reason, may_retry = REFUSED[name]

    async def story(found: Replica, address: Address) -> None:
        ingress = await Ingress().connect(address)
        ingress.send(message(address))
        refused = await ingress.next()
        assert isinstance(refused, Refused)
        assert reason in refused.reason
        assert refused.may_retry == may_retry
        assert address.secret not in refused.reason
        assert await ingress.end() == "the other end closed it"
        assert not found.child.taken
        await connected(address)  # others are not concerned

    play(monkeypatch, story)


def test_a_connection_without_a_hello_is_closed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gate_module, "HELLO_SECONDS", 0.0)

    async def story(found: Replica, address: Address) -> None:
        ingress = await Ingress().connect(address)
        assert await ingress.next() == Refused("no hello", False)
        await ingress.end()
        assert not found.gate._strangers

    play(monkeypatch, story)


def test_a_welcome_ends_the_time_for_a_hello(monkeypatch: pytest.MonkeyPatch) -> None:
    timers: list[asyncio.TimerHandle] = []

    async def story(found: Replica, address: Address) -> None:
        loop = asyncio.get_running_loop()
        call_later = loop.call_later

        def noted(delay: float, *arguments: Any, **others: Any) -> asyncio.TimerHandle:
            timer = call_later(delay, *arguments, **others)
            if delay == gate_module.HELLO_SECONDS:
                timers.append(timer)
            return timer

        monkeypatch.setattr(loop, "call_later", noted)
        await connected(address)
        assert timers
        assert all(timer.cancelled() for timer in timers)

    play(monkeypatch, story)


def test_the_number_of_strangers_is_limited(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gate_module, "MAX_STRANGERS", 3)

    async def story(found: Replica, address: Address) -> None:
        friend = await connected(address, 9)
        strangers = [await Ingress().connect(address) for _ in range(3)]
        await until(lambda: len(found.gate._strangers) == 3)
        for _ in range(5):
            late = await Ingress().connect(address)
            assert await late.next() == Refused("too many connections", True)
            assert await late.end() == "the other end closed it"
        strangers[0].channel.close()
        await until(lambda: len(found.gate._strangers) == 2)
        await connected(address)  # in its place
        friend.send(Detokenize(first_id(9), [1]))
        assert await found.next() == Detokenize(first_id(9), [1])
        assert not any(each.ends for each in strangers[1:])

    play(monkeypatch, story)


def test_two_ingresses_with_the_same_ids_are_not_served_together(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def story(found: Replica, address: Address) -> None:
        first = await connected(address)
        second = await Ingress().connect(address)
        second.send(Hello(VERSION, address.secret, first_id(1)))
        assert await second.next() == Refused("another ingress has the same ids", True)
        first.channel.close()
        await until(lambda: not found.gate._visitors)
        await connected(address)

    play(monkeypatch, story)


def test_while_no_process_serves_an_ingress_may_retry(monkeypatch: pytest.MonkeyPatch) -> None:
    async def story(found: Replica, address: Address) -> None:
        ingress = await connected(address)
        ingress.send(submit(first_id(1)))
        await found.next()
        hold = asyncio.create_task(found.gate.ended([first_id(1)]))
        found.child.exit(-9)
        assert await ingress.end() == "the other end closed it"
        await hold
        late = await Ingress().connect(address)
        late.send(Hello(VERSION, address.secret, first_id(1)))
        assert await late.next() == Refused("the engine process is being replaced", True)
        await found.ready(2)
        again = await connected(address)
        again.send(submit(first_id(1)))
        assert await found.next() == submit(first_id(1))  # the new process got no Cancel
        assert found.gate.n_open == 1

    play(monkeypatch, story)


# ---- hostile clients --------------------------------------------------------------------

ATTACKS = {
    "a gigabyte": HEADER.pack(MAX_FRAME) + b"x" * 100_000,
    "more": HEADER.pack(0xFFFFFFFF),
    "half a frame": frame(Hello(VERSION, "x" * 1000, 1))[:500],
    "half a header": b"\x01\x00",
    "nothing": b"",
    "http": b"GET / HTTP/1.1\r\n\r\n",
    "beats": frame(Heartbeat()) * 1000,
    "a long hello": frame(Hello(VERSION, "x" * 5000, 1)),
}


def test_strangers_cost_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each attack from many connections; meanwhile an ingress is served."""
    n_each = MAX_STRANGERS // len(ATTACKS)

    async def story(found: Replica, address: Address) -> None:
        friend = await connected(address)
        tracemalloc.start()
        before, _ = tracemalloc.get_traced_memory()
        clients: list[tuple[asyncio.StreamReader, asyncio.StreamWriter]] = []
        for data in ATTACKS.values():
            for _ in range(n_each):
                reader, writer = await asyncio.open_connection(address.host, address.port)
                writer.write(data)
                clients.append((reader, writer))
        friend.send(Detokenize(first_id(1), [7]))
        assert await found.next() == Detokenize(first_id(1), [7])
        found.child.say(Text(first_id(1), "seven"))
        assert await friend.next() == Text(first_id(1), "seven")
        silent = [name for name in ATTACKS if name.startswith(("half", "nothing", "beats"))]
        await until(lambda: len(found.gate._strangers) == n_each * len(silent))
        assert len(found.gate._visitors) == 1
        now, _ = tracemalloc.get_traced_memory()
        tracemalloc.stop()
        assert now - before < 20_000_000  # with the clients' own buffers
        for _, writer in clients:
            writer.close()
        await until(lambda: not found.gate._strangers)

    play(monkeypatch, story)


# ---- messages of ingresses --------------------------------------------------------------

ONE, TWO = first_id(1), first_id(2)
BREAKS: dict[str, object] = {
    "load": Load(engine_options(), 0),
    "measure": MeasureMemory(None, {}, 0),
    "a second hello": Hello(VERSION, "x", ONE),
    "ids of another ingress": submit(TWO),
    "an id of another ingress among its own": Submit(
        ONE, ["a"], GenerationParams(), group=ONE, others=[(TWO, 1)]
    ),
    "cancels another one's request": Cancel(TWO),
    "ids of the replica itself": Tokenize(3, ["a"]),
    "negative ids": Tokenize(-3, ["a"]),
    "an answer": Text(ONE, "a"),
}


@pytest.mark.parametrize("name", BREAKS)
def test_a_violation_ends_the_connection(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    async def story(found: Replica, address: Address) -> None:
        other = await connected(address, 2)
        other.send(submit(TWO))
        await found.next()
        ingress = await connected(address)
        ingress.send(submit(ONE + 1))
        assert await found.next() == submit(ONE + 1)
        ingress.send(BREAKS[name], submit(ONE + 2))
        assert await ingress.end() == "the other end closed it"
        assert await found.cancels(1) == [ONE + 1]
        assert not found.child.taken  # neither the message nor the one behind it
        assert not other.ends
        assert found.gate.n_open == 1

    play(monkeypatch, story)


def test_each_ingress_gets_its_own_events(monkeypatch: pytest.MonkeyPatch) -> None:
    async def story(found: Replica, address: Address) -> None:
        one, two = await connected(address, 1), await connected(address, 2)
        one.send(submit(ONE, 1), Tokenize(ONE + 5, ["a"]))
        two.send(submit(TWO))
        for _ in range(3):
            await found.next()
        assert found.gate.n_open == 4
        text = Delta(TWO, "a", [1], 0, TIMINGS)
        found.child.say(Step([Begun(ONE), Begun(TWO), Begun(ONE + 1), text, Begun(7)]))
        assert await one.events() == [Begun(ONE), Begun(ONE + 1)]
        assert await two.events() == [Begun(TWO), text]
        found.child.say(Tokens(ONE + 5, [1, 2]))
        assert await one.next() == Tokens(ONE + 5, [1, 2])
        found.child.say(Tokens(ONE + 5, [1, 2]))  # not asked
        found.child.say(Tokens(TWO + 5, [1, 2]))
        found.child.say(Failed(ONE, ERROR))
        assert await one.next() == Failed(ONE, ERROR)
        found.child.say(Step([finished(id=TWO), finished(id=ONE + 1)]))
        assert await one.events() == [finished(id=ONE + 1)]
        assert await two.events() == [finished(id=TWO)]
        assert found.gate.n_open == 0
        found.child.say(Step([Begun(ONE), Begun(TWO)]))  # of ended requests
        two.send(SetAdapters(0, []), Detokenize(TWO + 9, []))
        assert await found.next() == SetAdapters(0, [])
        assert await found.next() == Detokenize(TWO + 9, [])
        assert not [*one.received, *two.received]
        assert found.gate.n_open == 1

    play(monkeypatch, story)


def test_the_supervisor_s_own_questions_are_answered_to_it(monkeypatch: pytest.MonkeyPatch) -> None:
    async def story(found: Replica, address: Address) -> None:
        ingress = await connected(address)
        asked = asyncio.create_task((await found.supervisor.engine()).detokenize([1]))
        question = await found.next()
        found.child.say(Text(question.id, "one"))
        assert await asked == "one"
        assert not ingress.received

    play(monkeypatch, story)


LAST: dict[str, Callable[[int], Any]] = {
    "finished": lambda id: finished(id=id),
    "failed": lambda id: Failed(id, ERROR, TIMINGS),
    "vectors": lambda id: Vectors(id, b"", [], 0),
    "ended": lambda id: Ended(id, TIMINGS),
}


@pytest.mark.parametrize("name", LAST)
def test_a_cancelled_request_that_is_metered_stays_open(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def story(found: Replica, address: Address) -> None:
        ingress = await connected(address)
        metered = Embed(ONE, [["a"]], 2, group=ONE, terms=METERED)
        ingress.send(metered, submit(ONE + 1), Cancel(ONE), Cancel(ONE + 1), Pause(ONE + 1))
        for _ in range(5):
            await found.next()
        assert [*found.gate._visitors[1].open] == [ONE]
        found.child.say(Step([LAST[name](ONE), finished(id=ONE + 1)]))
        assert await ingress.events() == [LAST[name](ONE)]
        assert found.gate.n_open == 0

    play(monkeypatch, story)


# ---- an ingress that is gone ------------------------------------------------------------


@pytest.mark.parametrize("metered", [False, True])
@pytest.mark.parametrize("way", ["closed", "reset"])
def test_the_requests_of_a_lost_ingress_are_cancelled(
    way: str, metered: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def story(found: Replica, address: Address) -> None:
        other = await connected(address, 2)
        other.send(submit(TWO))
        await found.next()
        ingress = await connected(address)
        ingress.send(submit(ONE, 2, metered=metered), Tokenize(ONE + 5, ["a"]))
        await found.next()
        await found.next()
        found.child.say(Step([finished(id=ONE + 1)]))
        await ingress.next()
        if way == "closed":
            ingress.channel.close()
        else:
            ingress.transport.abort()
        assert await found.cancels(3) == [ONE, ONE + 2, ONE + 5]
        assert found.gate.n_open == 1
        found.child.say(Step([finished(id=ONE), Begun(TWO)]))
        assert await other.events() == [Begun(TWO)]

    play(monkeypatch, story)


def test_an_ingress_that_returns_gets_no_events_of_its_last_connection(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Its requests that had not begun may be sent to the same replica again, with the same ids."""

    async def story(found: Replica, address: Address) -> None:
        ingress = await connected(address)
        ingress.send(submit(ONE, metered=True))
        await found.next()
        ingress.channel.close()
        cancel, question = await found.next(), await found.next()
        assert cancel == Cancel(ONE)
        early = await Ingress().connect(address)
        early.send(Hello(VERSION, address.secret, ONE))
        assert await early.next() == Refused("its last requests are being cancelled", True)
        await connected(address, 2)  # others need not wait
        found.child.say(Step([Begun(ONE), Ended(ONE, TIMINGS)]))
        found.child.say(StatsReply(question.id, Stats()))
        again = await connected(address)
        again.send(submit(ONE, metered=True))
        await found.next()
        found.child.say(Step([Begun(ONE), finished(id=ONE)]))
        assert await again.events() == [Begun(ONE), finished(id=ONE)]

    play(monkeypatch, story)


def test_closing_the_gate_cancels_all_requests(monkeypatch: pytest.MonkeyPatch) -> None:
    async def story(found: Replica, address: Address) -> None:
        ingress, stranger = await connected(address), await Ingress().connect(address)
        await until(lambda: found.gate._strangers)
        ingress.send(submit(ONE))
        await found.next()
        await found.gate.close()
        assert await found.cancels(1) == [ONE]
        await ingress.end()
        await stranger.end()
        with pytest.raises(OSError, match=str(address.port)):
            await Ingress().connect(address)

    play(monkeypatch, story)


def test_an_ingress_that_does_not_read_does_not_delay_the_end(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(channel_module, "CLOSE_SECONDS", 0.0)

    async def story(found: Replica, address: Address) -> None:
        ingress = await connected(address)
        ingress.send(submit(ONE))
        await found.next()
        ingress.transport.pause_reading()
        long = Delta(ONE, "x" * 1_000_000, [1], 0, TIMINGS)
        transport = found.gate._visitors[1].channel._transport
        assert transport is not None
        while not transport.get_write_buffer_size():  # the buffers of the system are full
            found.child.say(Step([long]))
            await asyncio.sleep(0)
        await found.gate.close()
        await until(lambda: not transport.get_write_buffer_size())

    play(monkeypatch, story)


# ---- reports ----------------------------------------------------------------------------


def test_each_ingress_gets_the_changes_since_its_last_report(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(gate_module, "REPORT_SECONDS", 0.0)

    async def story(found: Replica, address: Address) -> None:
        async def report(*blocks: int) -> None:
            question = await found.next()
            assert isinstance(question, GetDigest)
            load = ReplicaLoad(n_busy=len(blocks))
            found.child.say(Digest(question.id, packed(blocks), load))

        first = await connected(address, 1)
        await report(1, 2)
        assert await first.next() == Report(ReplicaLoad(n_busy=2), packed([1, 2]), b"")
        second = await connected(address, 2)
        await report(2, 3)
        assert await first.next() == Report(ReplicaLoad(n_busy=2), packed([3]), packed([1]))
        assert await second.next() == Report(ReplicaLoad(n_busy=2), packed([2, 3]), b"")
        second.channel.close()
        await report()
        gone = await first.next()
        assert sorted(numbers(gone.removed)) == [2, 3]
        found.child.exit(-9)  # while it is asked
        await first.end()
        await found.ready(2)
        first = await connected(address, 1)
        await report(5)
        assert await first.next() == Report(ReplicaLoad(n_busy=1), packed([5]), b"")

    play(monkeypatch, story)


# ---- waiting for the end of requests ----------------------------------------------------


def test_the_wait_is_for_exactly_these_requests(monkeypatch: pytest.MonkeyPatch) -> None:
    async def story(found: Replica, address: Address) -> None:
        ingress = await connected(address)
        early = asyncio.create_task(found.gate.ended([ONE, ONE + 1]))  # before the request
        await asyncio.sleep(0)
        ingress.send(submit(ONE, 1), submit(ONE + 2))
        await found.next()
        await found.next()
        late = asyncio.create_task(found.gate.ended([ONE + 2]))
        both = [asyncio.create_task(found.gate.ended([ONE + 1])) for _ in range(2)]
        await asyncio.sleep(0)
        found.child.say(Step([finished(id=ONE)]))
        await ingress.events()
        assert not any(each.done() for each in (early, late, *both))
        found.child.say(Step([finished(id=ONE + 1)]))
        await early
        await asyncio.gather(*both)
        assert not late.done()
        ingress.send(Cancel(ONE + 2))
        await late
        assert not found.gate._ends._waiting

    play(monkeypatch, story)


def test_requests_that_ended_before_the_wait_are_not_waited_for(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A short request may be faster than the call that waits for it."""

    async def story(found: Replica, address: Address) -> None:
        ingress = await connected(address)
        ingress.send(submit(ONE), submit(ONE + 1))
        await found.next()
        await found.next()
        found.child.say(Step([finished(id=ONE)]))
        await ingress.events()
        await found.gate.ended([ONE])
        rest = asyncio.create_task(found.gate.ended([ONE, ONE + 1]))
        await asyncio.sleep(0)
        ingress.channel.close()
        await rest  # the requests of an ingress that is gone have ended

    play(monkeypatch, story)


def test_the_memory_of_ended_requests_is_short(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gate_module, "OPENING_SECONDS", -1.0)

    async def story(found: Replica, address: Address) -> None:
        ingress = await connected(address)
        for n in range(100):
            ingress.send(submit(ONE + n), Cancel(ONE + n))
            await found.next()
            await found.next()
        assert len(found.gate._ends._recent) <= 2

    play(monkeypatch, story)


def test_requests_that_never_arrive_count_as_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gate_module, "OPENING_SECONDS", 0.0)

    async def story(found: Replica, address: Address) -> None:
        ingress = await connected(address)
        ingress.send(submit(ONE))
        await found.next()
        await found.gate.ended([ONE + 7, first_id(5), 3])
        some = asyncio.create_task(found.gate.ended([ONE, ONE + 7]))
        await until(lambda: not found.gate._ends._waiting.get(ONE + 7))
        assert not some.done()
        ingress.send(Cancel(ONE))
        await some

    play(monkeypatch, story)


def test_draining_waits_for_all_requests(monkeypatch: pytest.MonkeyPatch) -> None:
    async def story(found: Replica, address: Address) -> None:
        one, two = await connected(address, 1), await connected(address, 2)
        await found.gate.drain()
        one.send(submit(ONE))
        two.send(submit(TWO))
        await found.next()
        await found.next()
        draining = asyncio.create_task(found.gate.drain())
        await asyncio.sleep(0)
        one.send(submit(ONE + 1))
        await found.next()
        found.child.say(Step([finished(id=ONE), finished(id=TWO)]))
        await one.events()
        assert not draining.done()
        one.channel.close()
        await draining

    play(monkeypatch, story)


def test_a_wait_may_be_cancelled(monkeypatch: pytest.MonkeyPatch) -> None:
    async def story(found: Replica, address: Address) -> None:
        waits = [asyncio.create_task(found.gate.ended([ONE, ONE + 1])) for _ in range(2)]
        await until(lambda: len(found.gate._ends._waiting) == 2)
        waits[0].cancel()
        await asyncio.wait({waits[0]})
        assert len(found.gate._ends._waiting) == 2
        waits[1].cancel()
        await asyncio.wait({waits[1]})
        assert not found.gate._ends._waiting

    play(monkeypatch, story)
