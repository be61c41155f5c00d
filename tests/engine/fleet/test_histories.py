"""Random histories of a fleet: replicas join, end and are lost while requests are sent, begin, end
and are cancelled. Messages take their time in both directions."""

import asyncio
from collections import Counter, deque
from collections.abc import Callable
from random import Random
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from specllama.engine.errors import EngineError, ErrorInfo
from specllama.engine.fleet.channel import packed
from specllama.engine.fleet.fleet import Fleet
from specllama.engine.fleet.placing import Placing
from specllama.engine.models.client import EngineClient
from specllama.engine.models.engine_process import EngineProcess
from specllama.engine.models.generation import Generation
from specllama.engine.params import GenerationParams
from specllama.engine.wire.replies import (
    Accepted,
    Begun,
    Blocks,
    Delta,
    Ended,
    Failed,
    Finished,
    Lost,
    NoReplicas,
    Ready,
    Slots,
    SlotState,
    StatsReply,
    Step,
    Text,
    Timings,
)
from specllama.engine.wire.requests import (
    Cancel,
    Detokenize,
    GetBlocks,
    GetSlots,
    GetStats,
    Pause,
    PromptParts,
    Resume,
    Submit,
    ids,
)
from specllama.engine.wire.stats import BLOCK, Stats
from tests.support.covering import examples
from tests.support.engines import generate
from tests.support.factories import TIMINGS, finished, model_info
from tests.support.fleets import PaperChannel

ERROR = ErrorInfo("server_error", "a mistake")
GONE = ErrorInfo("server_error", "the process is gone")
NAMES = ("a", "b", "c")
LONG = "x" * 1000
"""A prompt for whose blocks the fleet asks a replica."""
FIRST = (3 << 35) + 1


class Replica:
    """A replica behind a slow network. It answers questions by itself; the test begins and ends
    its texts. It follows the rules of `engine.wire.requests` for cancelled requests."""

    def __init__(self) -> None:
        self.channel = PaperChannel()
        self.out: deque[Any] = deque()  # on the way to the fleet
        self.waiting: dict[int, bool] = {}  # texts, and whether they are metered
        self.running: dict[int, bool] = {}
        self.paused: set[int] = set()

    @property
    def texts(self) -> dict[int, bool]:
        return self.waiting | self.running

    def receive(self) -> None:
        """Takes one message."""
        if not self.channel.sent:
            return
        match self.channel.sent.pop(0):
            case Submit() as submit:
                own = dict.fromkeys(ids(submit), submit.terms.is_metered)
                assert not self.texts.keys() & own.keys()
                self.waiting |= own
                self.say(*(Accepted(id, 5) for id, metered in own.items() if metered))
            case Cancel(id=id):
                if self.texts.get(id):
                    self.say(Ended(id, TIMINGS))
                self._forget(id)
            case Pause(id=id):
                self.paused.add(id)
            case Resume(id=id):
                self.paused.discard(id)
            case GetStats(id=id):
                self.out.append(StatsReply(id, Stats(n_prompt=1)))
            case GetSlots(id=id):
                self.out.append(Slots(id, [SlotState(id=n, n_ctx=8) for n in range(2)]))
            case Detokenize(id=id):
                self.out.append(Text(id, "a"))
            case GetBlocks(id=id) if id % 3:
                self.out.append(Blocks(id, 1000, packed(range(10))))
            case GetBlocks(id=id):
                self.out.append(Failed(id, ERROR))
            case other:
                raise AssertionError(other)

    def say(self, *events: Any) -> None:
        if events:
            self.out.append(Step([*events]))

    def _forget(self, id: int) -> bool:
        self.paused.discard(id)
        return bool(self.waiting.pop(id, False) | self.running.pop(id, False))

    def begin(self, id: int) -> None:
        if id in self.waiting and id not in self.paused:
            self.running[id] = self.waiting.pop(id)
            self.say(Begun(id))

    def end(self, id: int, *, fails: bool) -> None:
        if id in self.running and id not in self.paused:
            self._forget(id)
            self.say(Failed(id, ERROR, TIMINGS) if fails else finished(id=id))
        elif id in self.waiting and fails:
            self._forget(id)
            self.out.append(Failed(id, ERROR))

    def deliver(self) -> None:
        """One message arrives at the fleet."""
        if self.out:
            self.channel.say(self.out.popleft())


class Watched:
    """A text as its client sees it, who reads nothing before the end of the history."""

    def __init__(self) -> None:
        self.generation: Generation
        self.ends: list[Timings | None] = []
        self.n_accepted = 0
        self.seen_at_cancel: int | None = None

    def accepted(self, n_tokens: int) -> None:
        self.n_accepted += 1

    def ended(self, timings: Timings | None) -> None:
        self.ends.append(timings)

    @property
    def id(self) -> int:
        return self.generation.request.id

    @property
    def events(self) -> list[Any]:
        return list(self.generation._events)

    @property
    def is_over(self) -> bool:
        return self.generation.last is not None or self.seen_at_cancel is not None

    def check(self) -> None:
        n_last = sum(isinstance(each, Finished | Failed) for each in self.events)
        assert n_last <= 1
        assert len(self.ends) <= 1
        assert self.n_accepted <= 1
        if n_last:
            assert isinstance(self.events[-1], Finished | Failed)
        if self.seen_at_cancel is not None:
            assert len(self.events) == self.seen_at_cancel


class History:
    """A fleet, its client and its replicas."""

    def __init__(self, random: Random) -> None:
        self.loop = asyncio.new_event_loop()
        self.random = random
        self.replicas: dict[str, Replica] = {}
        self.texts: list[Watched] = []
        self.asked: list[asyncio.Task[Any]] = []
        self.n_sent: Counter[int] = Counter()
        self.client: EngineClient | None = None
        self.ended: EngineClient | None = None  # the client of the last fleet, which waits
        self._play(self._start_fleet)
        self.join()

    def play(self, n_acts: int) -> None:
        """Does random things, then lets everything end."""
        acts = [*ACTS]
        try:
            for act in self.random.choices(acts, [ACTS[each] for each in acts], k=n_acts):
                act(self)
                self._check()
            for _ in range(3):  # the fleet may end, and the next one continues
                self._play(self._let_all_end)
            self._check_ends()
        finally:
            self.loop.close()

    def _check(self) -> None:
        self._check_places()
        self._check_clients()

    def _play(self, act: Callable[[], object]) -> None:
        """Acts, lets the tasks run, and handles the end of the fleet as a supervisor does."""

        async def run() -> None:
            act()
            for _ in range(4):
                await asyncio.sleep(0)
            if self.fleet.has_ended:
                self._replace_fleet()
                for _ in range(4):
                    await asyncio.sleep(0)

        self.loop.run_until_complete(run())

    # ---- the supervisor's part ----------------------------------------------------------

    def _start_fleet(self) -> None:
        self.fleet = Fleet(FIRST, self._on_open, placing=Placing(self.random, BLOCK))
        self.process = EngineProcess(self.fleet)
        self.fleet.listen(self._on_message)

    def _on_open(self, name: str, own: Any) -> None:
        self.n_sent.update(own)

    def _on_message(self, message: Any) -> None:
        if isinstance(message, Ready):
            self.client = self.process.open(message.info)
            if self.ended is not None:
                self.client.adopt_from(self.ended)
                self.ended = None
            return
        if isinstance(message, NoReplicas):
            self.fleet.kill()
            return
        assert self.client is not None
        if isinstance(message, Step):
            expected = self.client._generations.keys() | self.client._leaving.keys()
            assert {each.id for each in message.events} <= expected
        self.client.dispatch(message)
        if isinstance(message, Lost):
            assert not {*message.ids} & {
                id for id, each in self.client._generations.items() if each.has_begun
            }

    def _replace_fleet(self) -> None:
        self.fleet.listen(None)
        assert all(each.channel.is_closed for each in self.replicas.values())
        self.replicas.clear()
        if self.client is not None:
            self.client.detach(GONE)
            self.ended, self.client = self.client, None
        self._start_fleet()

    @property
    def _any_client(self) -> EngineClient | None:
        return self.client or self.ended

    # ---- what happens -------------------------------------------------------------------

    def join(self) -> None:
        name = self.random.choice(NAMES)
        if name not in self.replicas:
            replica = self.replicas[name] = Replica()
            self._play(lambda: self.fleet.join(name, replica.channel, model_info()))

    def lose(self) -> None:
        if name := self._replica():
            del self.replicas[name]
            self._play(lambda: self.fleet.leave(name, "it is lost"))

    def retire(self) -> None:
        name = self._replica()
        self._play(lambda: self.fleet.retire(name))

    def submit(self) -> None:
        """Several texts of one call, or further texts of the last call."""
        if (client := self._any_client) is not None:
            group, n, metered = 0, self.random.randint(1, 3), self._maybe()
            if self.texts and self._maybe():
                group = self.texts[-1].generation.request.group
            self._play(lambda: self._submit(client, n, group, metered=metered))

    def _submit(self, client: EngineClient, n: int, group: int, *, metered: bool) -> None:
        for seed in range(n):  # each has a meter of its own
            watched = Watched()
            meter = watched if metered else None
            prompt: PromptParts = [LONG if self._maybe() else "a"]
            watched.generation = generate(
                client, prompt, GenerationParams(seed=seed), group=group, meter=meter
            )
            group = watched.generation.request.group
            self.texts.append(watched)

    def submit_together(self) -> None:
        """Texts in one message."""
        n = self.random.randint(2, 3)
        if (client := self._any_client) is not None:
            self._play(lambda: self._submit_together(client, n))

    def _submit_together(self, client: EngineClient, n: int) -> None:
        for generation in client.generate_all(
            [LONG if self._maybe() else "b"], [GenerationParams()] * n
        ):
            watched = Watched()
            watched.generation = generation
            self.texts.append(watched)

    def ask(self) -> None:
        if (client := self._any_client) is not None:
            question: Any
            if self._maybe():
                question = client.detokenize([1])
            else:
                question = client.stats() if self._maybe() else client.slots()
            self.asked.append(self.loop.create_task(question))
            self._play(lambda: None)

    def withdraw(self) -> None:
        """A client doesn't wait for an answer."""
        if self.asked:
            self._play(self.random.choice(self.asked[-5:]).cancel)

    def _text(self) -> Watched | None:
        """One of the last texts."""
        return self.random.choice(self.texts[-8:]) if self.texts else None

    def _replica(self) -> str:
        """The name of a connected replica, if there is one."""
        return self.random.choice([*self.replicas]) if self.replicas else ""

    def _maybe(self) -> bool:
        return self.random.random() < 0.5

    def cancel(self) -> None:
        text = self._text()
        if text is not None and text.seen_at_cancel is None:
            text.seen_at_cancel = len(text.events)
            self._play(text.generation.cancel)

    def pause(self) -> None:
        text = self._text()
        if text is not None:
            client, id, resumes = text.generation.client, text.id, self._maybe()
            self._play(lambda: client.resume(id) if resumes else client.pause(id))

    def go_on(self) -> None:
        """The replica that has a text continues with it."""
        text, what = self._text(), self.random.choice(["begin", "delta", "end", "end", "fail"])
        for replica in self.replicas.values() if text is not None else ():
            assert text is not None
            if what == "begin":
                replica.begin(text.id)
            elif what == "delta" and text.id in replica.running:
                replica.say(Delta(text.id, "x", [1], 0, TIMINGS))
            elif what in ("end", "fail"):
                if what == "end":
                    replica.begin(text.id)
                replica.end(text.id, fails=what == "fail")

    def receive(self) -> None:
        """Messages arrive at a replica."""
        if name := self._replica():
            for _ in range(self.random.randint(1, 5)):
                self.replicas[name].receive()

    def flow(self) -> None:
        """Everything that is on its way arrives."""
        for replica in [*self.replicas.values()]:
            while replica.channel.sent:
                replica.receive()
            while replica.out and not replica.channel.is_closed:
                self._play(replica.deliver)

    def deliver(self) -> None:
        """Messages arrive at the fleet."""
        if name := self._replica():
            replica = self.replicas[name]
            for _ in range(self.random.randint(1, 5)):
                self._play(replica.deliver)

    def lose_all_at_once(self) -> None:
        """And a client acts before the supervisor has seen it."""
        text, client = self._text(), self._any_client
        names = [*self.replicas]
        if not names or text is None or client is None:
            return
        self.replicas.clear()

        def act() -> None:
            for name in names:
                self.fleet.leave(name, "it is lost")
            self._submit(client, 1, 0, metered=True)
            if text.seen_at_cancel is None:
                text.seen_at_cancel = len(text.events)
                text.generation.cancel()

        self._play(act)
        assert self.texts[-1].generation.last is None  # it waits for the next fleet

    # ---- what is always true ------------------------------------------------------------

    def _check_places(self) -> None:
        members = self.fleet._members
        counts = Counter(id for each in members.values() for id in each.open)
        assert set(counts.values()) <= {1}
        assert counts.keys() == self.fleet._open.keys()
        for each in self.fleet._open.values():
            assert each.member is members[each.member.name]
        for group, call in self.fleet._calls.items():
            own = [each for each in self.fleet._open.values() if each.group == group]
            assert len(own) == call.n_open > 0
        # A retired replica leaves with its last request.
        self.replicas = {n: each for n, each in self.replicas.items() if not each.channel.is_closed}
        assert members.keys() == self.replicas.keys()
        assert all(each.open for each in members.values() if each.is_leaving)

    def _parked(self) -> set[int]:
        """Returns the texts that wait for a replica."""
        return {id for each in self.fleet._parked if isinstance(each, Submit) for id in ids(each)}

    def _check_clients(self) -> None:
        for each in self.texts:
            each.check()
            assert self.n_sent[each.id] <= 2  # sent again once at most
        client = self._any_client
        if client is not None:
            alive = {each.id for each in self.texts if not each.is_over}
            assert client._generations.keys() == alive
        if self.client is not None:
            lookups = self.fleet._lookups
            assert alive <= self.fleet._open.keys() | lookups._undecided.keys() | self._parked()
            assert not self.fleet._open.keys() & {
                id for each in lookups._asked.values() for id in ids(each.submit)
            }

    def _let_all_end(self) -> None:
        """All messages arrive, and all texts end."""
        if not self.replicas or self.fleet._parked:
            new = self.replicas["new"] = Replica()
            self.fleet.join("new", new.channel, model_info())
        for text in self.texts:
            text.generation.client.resume(text.id)
        moves = True
        while moves and not self.fleet.has_ended:
            moves = False
            for replica in [*self.replicas.values()]:
                while replica.channel.sent:
                    moves = True
                    replica.receive()
                replica.paused.clear()
                for id in replica.texts:
                    replica.begin(id)
                    replica.end(id, fails=False)
                while replica.out and not self.fleet.has_ended:
                    moves = True
                    replica.deliver()

    def _check_ends(self) -> None:
        """Nothing is left, and each question has an answer, an error, or was withdrawn."""
        fleet = self.fleet
        assert not [
            *fleet._open,
            *fleet._questions._open,
            *fleet._calls,
            *fleet._lookups._undecided,
        ]
        rows = [each.row for each in fleet._placing._members.values()]
        assert not fleet._placing._texts[rows].any()
        for text in self.texts:
            text.check()
            assert text.is_over
            if text.generation.request.terms.is_metered:
                assert len(text.ends) == 1
        if self.client is not None:
            assert not [*self.client._generations, *self.client._leaving]
        for task in self.asked:
            assert task.done()
            if not task.cancelled() and (error := task.exception()) is not None:
                assert isinstance(error, EngineError)


ACTS: dict[Callable[[History], None], int] = {
    History.join: 4,
    History.lose: 2,
    History.lose_all_at_once: 1,
    History.retire: 2,
    History.submit: 8,
    History.submit_together: 3,
    History.ask: 4,
    History.withdraw: 1,
    History.cancel: 5,
    History.pause: 3,
    History.go_on: 16,
    History.receive: 10,
    History.deliver: 10,
    History.flow: 4,
}
"""What may happen, and how often in proportion."""


@given(st.integers(0, 1 << 32))
@examples(40)
def test_each_request_ends_once(seed: int) -> None:
    History(Random(seed)).play(120)
