"""Several replicas as one process: which replica gets a message, and what happens when one is
lost. A test plays the replicas; the client is the server's."""

import asyncio
from collections.abc import Callable, Sequence
from random import Random
from typing import Any

import pytest

from specllama.engine.errors import EngineError
from specllama.engine.fleet import fleet as fleet_module
from specllama.engine.fleet.channel import Report, packed
from specllama.engine.fleet.fleet import Fleet
from specllama.engine.fleet.placing import Placing
from specllama.engine.models.client import EngineClient
from specllama.engine.models.engine_process import EngineProcess
from specllama.engine.models.generation import Generation
from specllama.engine.models.supervisor import Supervisor
from specllama.engine.options import EngineOptions
from specllama.engine.params import GenerationParams
from specllama.engine.wire.devices import DeviceMemory
from specllama.engine.wire.engine_log import EngineLog
from specllama.engine.wire.replies import (
    Accepted,
    Adapter,
    Adapters,
    Begun,
    Blocks,
    Ended,
    Failed,
    NoReplicas,
    Ready,
    Resized,
    SlotDone,
    Slots,
    SlotState,
    StatsReply,
    Step,
    Text,
    Timings,
    Vectors,
    WaitingState,
)
from specllama.engine.wire.requests import (
    Cancel,
    Detokenize,
    Embed,
    EndThoughts,
    GetBlocks,
    GetStats,
    Load,
    MeasureMemory,
    Pause,
    PromptParts,
    Rerank,
    Resume,
    SetAdapters,
    SlotAction,
    Submit,
    Terms,
    ids,
)
from specllama.engine.wire.stats import BLOCK, Histogram, ReplicaLoad, Stats
from tests.support.engines import AtOnce, generate
from tests.support.factories import TIMINGS, delta, finished, model_info
from tests.support.fleets import PaperChannel, until
from tests.support.options_support import model_options

FIRST = (3 << 35) + 1
PARAMS = GenerationParams()


class Stage:
    """A fleet with a client, as a supervisor connects them. `said` has the messages for the
    server."""

    def __init__(self) -> None:
        self.opened: list[tuple[str, list[int]]] = []
        self.said: list[Any] = []
        self.channels: dict[str, PaperChannel] = {}
        self.fleet = Fleet(FIRST, self._on_open, placing=Placing(Random(1), BLOCK))
        self.process = EngineProcess(self.fleet)
        self.fleet.listen(self._on_message)

    def _on_open(self, name: str, own: Sequence[int]) -> None:
        self.opened.append((name, list(own)))

    def _on_message(self, message: Any) -> None:
        self.said.append(message)
        if isinstance(message, Ready):
            self.process.open(message.info)
        elif not isinstance(message, NoReplicas):
            self.client.dispatch(message)

    @property
    def client(self) -> EngineClient:
        assert self.process.client is not None
        return self.process.client

    def join(self, *names: str, n_slots: int = 2) -> None:
        for name in names:
            channel = self.channels[name] = PaperChannel()
            self.fleet.join(name, channel, model_info(n_slots=n_slots))

    def lose(self, name: str) -> None:
        self.fleet.leave(name, "the cable is cut")

    def say(self, name: str, *events: Any) -> None:
        """Sends the events of one step of a replica."""
        self.channels[name].say(Step([*events]))

    def taken(self) -> dict[str, list[Any]]:
        """Returns the messages to all replicas since the last call, by replica."""
        found = {name: channel.taken() for name, channel in self.channels.items()}
        return {name: messages for name, messages in found.items() if messages}

    def place_of(self, id: int) -> str:
        """Returns the replica that has an open request."""
        [name] = [name for name, each in self.fleet._members.items() if id in each.open]
        return name

    def other(self, name: str) -> str:
        [other] = self.fleet._members.keys() - {name}
        return other


def play(story: Callable[[Stage], Any], *names: str) -> Stage:
    """Plays a story, which may be a coroutine, with the replicas `names`."""

    async def run() -> Stage:
        stage = Stage()
        stage.join(*names)
        found = story(stage)
        if found is not None:
            await found
        return stage

    return asyncio.run(run())


def idle(stage: Stage) -> None:
    """Asserts that no request is left in the fleet."""
    fleet = stage.fleet
    assert not [*fleet._open, *fleet._questions._open, *fleet._calls]
    assert not any(each.open for each in fleet._members.values())
    assert not fleet._placing._texts[[each.row for each in fleet._placing._members.values()]].any()


class Bill:
    """A meter."""

    def __init__(self) -> None:
        self.accepts: list[int] = []
        self.ends: list[Timings | None] = []

    def accepted(self, n_tokens: int) -> None:
        self.accepts.append(n_tokens)

    def ended(self, timings: Timings | None) -> None:
        self.ends.append(timings)


async def failure(generation: Generation) -> EngineError:
    with pytest.raises(EngineError) as caught:
        await generation.result()
    return caught.value


# ---- replicas ---------------------------------------------------------------------------


def test_the_first_replica_makes_it_ready_and_further_ones_add_slots() -> None:
    def story(stage: Stage) -> None:
        stage.join("a")
        assert stage.said == [Ready(model_info())]
        stage.join("b", "c")
        assert stage.said[1:] == [Resized(4), Resized(6)]
        assert stage.client.info.n_slots == 6
        stage.lose("b")
        assert stage.client.info.n_slots == 4
        stage.lose("unknown")
        assert stage.client.info.n_slots == 4

    play(story)


def test_replicas_that_join_while_a_model_is_examined_count() -> None:
    """The supervisor examines a model before it opens the client."""

    async def run() -> None:
        fleet = Fleet(FIRST, lambda name, own: None)
        process = EngineProcess(fleet)
        taken: list[Any] = []
        listening = asyncio.create_task(process.listen(taken.append))
        fleet.join("a", PaperChannel(), model_info())
        await until(lambda: taken)
        fleet.join("b", PaperChannel(), model_info())
        assert taken == [Ready(model_info())]
        assert process.open(taken[0].info).info.n_slots == 4
        fleet.kill()
        await listening

    asyncio.run(run())


def test_messages_wait_for_the_first_listener() -> None:
    fleet = Fleet(FIRST, lambda name, own: None)
    fleet.join("a", PaperChannel(), model_info())
    fleet.join("b", PaperChannel(), model_info())
    said: list[Any] = []
    fleet.listen(said.append)
    assert said == [Ready(model_info()), Resized(4)]


def test_a_fleet_ends_with_its_last_replica() -> None:
    async def story(stage: Stage) -> None:
        ends = asyncio.create_task(stage.fleet.output_end(0.0))
        stage.lose("a")
        assert not stage.fleet.has_ended
        stage.lose("b")
        await ends
        assert await stage.fleet.reap(1.0) == 1
        stage.join("c")
        assert stage.channels["c"].is_closed

    assert play(story, "a", "b").fleet.has_ended


@pytest.mark.parametrize("way", ["kill", "end", "reap", "signal"])
def test_the_end_of_a_fleet_closes_its_connections(way: str) -> None:
    async def story(stage: Stage) -> None:
        if way == "end":
            assert await stage.fleet.end(0.0)
        elif way == "reap":
            assert await stage.fleet.reap() == 0
        elif way == "signal":
            stage.fleet.send_signal(3)
        else:
            stage.fleet.kill()
        assert all(each.is_closed for each in stage.channels.values())
        assert await stage.fleet.reap() == 0

    play(story, "a", "b")


def test_later_replicas_get_the_scales_of_adapters() -> None:
    async def story(stage: Stage) -> None:
        scales = [(0, 0.5), (1, 2.0)]
        asked = asyncio.create_task(stage.client.set_adapters(scales))
        await asyncio.sleep(0)
        [[message]] = stage.taken().values()
        assert message.scales == scales
        adapters = [Adapter(0, "x", 0.5, "", "")]
        stage.channels["a"].say(Adapters(message.id, adapters))
        assert await asked == adapters
        stage.join("b")
        assert stage.taken() == {"b": [SetAdapters(0, scales)]}

    play(story, "a")


@pytest.mark.parametrize("message", [Load(EngineOptions(), 0), MeasureMemory(None, {}, 0)])
def test_messages_of_a_start_are_mistakes(message: Any) -> None:
    def story(stage: Stage) -> None:
        with pytest.raises(RuntimeError, match=type(message).__name__):
            stage.process.send(message)

    play(story, "a")


# ---- the choice of a replica ------------------------------------------------------------


def test_requests_are_spread_and_end_at_their_replica() -> None:
    async def story(stage: Stage) -> None:
        texts = [generate(stage.client, ["a"], PARAMS) for _ in range(6)]
        assert {name: len(each) for name, each in stage.taken().items()} == {"a": 3, "b": 3}
        for each in texts:
            id = each.request.id
            name = stage.place_of(id)
            assert (name, [id]) in stage.opened
            stage.say(stage.other(name), Begun(id), finished(id=id))  # a mistake of the replica
            assert not each.ready
            stage.say(name, Begun(id), finished(id=id))
            assert (await each.result()).id == id

    idle(play(story, "a", "b"))


def test_the_texts_of_a_call_stay_together() -> None:
    def story(stage: Stage) -> None:
        for _ in range(4):
            first, second = stage.client.generate_all(["a"], [PARAMS, GenerationParams(seed=2)])
            group = first.request.group
            more = [generate(stage.client, ["b"], PARAMS, group=group) for _ in range(4)]
            stage.say(stage.place_of(second.request.id), finished(id=group))
            more.append(generate(stage.client, ["c"], PARAMS, group=group))
            assert len({stage.place_of(e.request.id) for e in [second, *more]}) == 1
            for each in [second, *more]:
                each.cancel()

    idle(play(story, "a", "b"))


@pytest.mark.parametrize("kind", ["embed", "rerank"])
def test_the_slices_of_a_call_stay_together(kind: str) -> None:
    async def story(stage: Stage) -> None:
        if kind == "embed":
            calls = [stage.client.embed([["a"]] * 300, normalize=2) for _ in range(3)]
        else:
            calls = [stage.client.rerank("q", ["a"] * 300) for _ in range(3)]
        for call in calls:
            reading = asyncio.create_task(_drain(call))
            places = set()
            for _ in range(5):
                await until(lambda: stage.fleet._open)
                id = min(stage.fleet._open)
                places.add(stage.place_of(id))
                stage.say(stage.place_of(id), Vectors(id, b"", [1], 1))
                await asyncio.sleep(0)
            assert await reading == 5
            assert len(places) == 1

    async def run() -> None:
        stage = Stage()
        for name in ("a", "b", "c"):
            channel = stage.channels[name] = PaperChannel()
            stage.fleet.join(name, channel, model_info(pooling="rank"))
        await story(stage)
        idle(stage)
        sent = [each for messages in stage.taken().values() for each in messages]
        assert {type(each) for each in sent} == {Embed if kind == "embed" else Rerank}

    asyncio.run(run())


async def _drain(answers: Any) -> int:
    return len([each async for each in answers])


def test_a_replica_that_is_lost_after_its_answer_counts_once() -> None:
    async def story(stage: Stage) -> None:
        question, id = await asked(stage, stage.client.stats())
        stage.channels["a"].say(StatsReply(id, Stats(n_prompt=7, n_processing=1)))
        stage.lose("a")
        stage.channels["b"].say(StatsReply(id, Stats(n_prompt=2)))
        found = await question
        assert (found.n_prompt, found.n_processing, [*found.replicas]) == (9, 0, ["b"])

    idle(play(story, "a", "b"))


def test_the_given_rules_choose() -> None:
    """Also while they have no member, which makes them false."""
    placing = Placing(Random(1), BLOCK)
    assert not placing
    assert Fleet(FIRST, lambda name, own: None, placing=placing)._placing is placing


def test_slots_have_numbers_across_replicas() -> None:
    async def story(stage: Stage) -> None:
        for slot in range(4):
            name = "ab"[slot // 2]
            text = generate(stage.client, ["a"], GenerationParams(id_slot=slot))
            id = text.request.id
            [submit] = stage.taken()[name]
            assert submit.params.id_slot == slot % 2
            shown = delta("x")
            stage.say(
                name,
                Begun(id),
                type(shown)(id, "x", [1], slot % 2, TIMINGS),
                finished(id=id, id_slot=slot % 2),
            )
            assert [each.id_slot async for each in text] == [slot, slot]

    idle(play(story, "a", "b"))


def test_only_the_first_text_of_a_call_has_a_slot() -> None:
    def story(stage: Stage) -> None:
        variants = [GenerationParams(id_slot=3), *[GenerationParams(seed=n) for n in range(3)]]
        stage.client.generate_all(["a"], variants)
        [submit] = stage.taken()["b"]
        assert len(ids(submit)) == 4
        assert submit.params.id_slot == 1

    play(story, "a", "b")


def test_a_slot_that_is_gone_is_refused() -> None:
    async def story(stage: Stage) -> None:
        stage.lose("b")
        texts = stage.client.generate_all(["a"], [GenerationParams(id_slot=3), PARAMS])
        for each in texts:
            error = await failure(each)
            assert error.info.type == "invalid_request_error"
            assert "no slot 3" in error.info.message
        assert not stage.taken()

    idle(play(story, "a", "b"))


def test_a_slot_that_never_was_is_ignored_as_without_replicas() -> None:
    async def story(stage: Stage) -> None:
        text = generate(stage.client, ["a"], GenerationParams(id_slot=4))
        [(name, [submit])] = stage.taken().items()
        assert submit.params.id_slot == 4, "a replica ignores it"
        stage.say(name, Begun(text.request.id), finished(id=text.request.id))
        assert [each async for each in text]
        with pytest.raises(EngineError, match="no slot 9"):
            await stage.client.slot_action(9, "erase")

    idle(play(story, "a", "b"))


def test_a_new_replica_gets_the_lowest_free_slots() -> None:
    async def story(stage: Stage) -> None:
        stage.lose("a")
        generate(stage.client, ["a"], GenerationParams(id_slot=2))
        assert [*stage.taken()] == ["b"]
        with pytest.raises(EngineError, match="no slot 0"):
            await stage.client.slot_action(0, "erase")
        stage.join("c")
        generate(stage.client, ["a"], GenerationParams(id_slot=1))
        assert [*stage.taken()] == ["c"]

    play(story, "a", "b")


def test_an_action_on_a_slot_goes_to_its_replica() -> None:
    async def story(stage: Stage) -> None:
        asked = asyncio.create_task(stage.client.slot_action(3, "save", "file"))
        await asyncio.sleep(0)
        [action] = stage.taken()["b"]
        assert action == SlotAction(action.id, 1, "save", "file")
        stage.channels["b"].say(SlotDone(action.id, 1, 2, 0.5))
        assert (await asked).n_bytes == 2

    idle(play(story, "a", "b"))


def test_an_action_on_a_slot_of_a_lost_replica_is_not_repeated() -> None:
    async def story(stage: Stage) -> None:
        asked = asyncio.create_task(stage.client.slot_action(0, "save", "file"))
        await asyncio.sleep(0)
        stage.taken()
        stage.lose("a")
        with pytest.raises(EngineError, match="the cable is cut"):
            await asked
        assert not stage.taken()

    idle(play(story, "a", "b"))


def test_controls_go_to_the_replica_with_the_request() -> None:
    def story(stage: Stage) -> None:
        text = generate(stage.client, ["a"], PARAMS)
        id, name = text.request.id, stage.place_of(text.request.id)
        stage.taken()
        stage.client.pause(id)
        stage.client.resume(id)
        text.end_thoughts()
        text.cancel()
        text.cancel()
        controls = [Pause(id), Resume(id), EndThoughts(id), Cancel(id)]
        assert stage.taken() == {name: controls}
        stage.say(name, Begun(id), finished(id=id))  # they were on their way
        assert not [event for step in stage.said if isinstance(step, Step) for event in step.events]
        stage.process.send(Cancel(id))
        assert not stage.taken()

    idle(play(story, "a", "b"))


# ---- prompts whose blocks are asked for -------------------------------------------------

LONG: PromptParts = ["x" * 10_000]


def question(stage: Stage) -> tuple[str, int]:
    """Takes the question for the blocks of a prompt. Returns the replica, and the id."""
    [(name, [message])] = stage.taken().items()
    assert isinstance(message, GetBlocks)
    assert message.prompt == LONG
    return name, message.id


@pytest.mark.parametrize("end", ["answer", "failure", "loss"])
def test_a_long_prompt_goes_to_the_replica_with_its_blocks(end: str) -> None:
    def story(stage: Stage) -> None:
        for name in "abc":
            blocks = packed(range(20)) if name == "b" else b""
            stage.channels[name].say(Report(ReplicaLoad(n_slots=2), blocks, b""))
        text = generate(stage.client, LONG, PARAMS)
        name, id = question(stage)
        assert not stage.opened
        if end == "answer":
            stage.channels[name].say(Blocks(id, 1500, packed(range(20))))
            stage.channels[name].say(Blocks(id, 1500, packed(range(20))))
        elif end == "failure":
            stage.channels[name].say(Failed(id, EngineError.of("server_error", "x").info))
        else:
            stage.lose(name)
        [(chosen, [submit])] = stage.taken().items()
        assert submit == text.request
        assert stage.opened == [(chosen, [text.request.id])]
        assert chosen == "b" if end == "answer" else chosen
        stage.say(chosen, Begun(text.request.id), finished(id=text.request.id))

    idle(play(story, "a", "b", "c"))


def test_messages_of_an_undecided_call_follow_it() -> None:
    def story(stage: Stage) -> None:
        first, second = (generate(stage.client, LONG, PARAMS) for _ in range(2))
        stage.taken()
        group = first.request.group
        more = [generate(stage.client, ["a"], PARAMS, group=group) for _ in range(2)]
        stage.client.pause(more[0].request.id)
        more[1].cancel()
        second.cancel()
        assert not stage.taken()
        [one, two] = stage.fleet._lookups._asked.items()
        for id, asked in (one, two):
            stage.channels[asked.replica].say(Blocks(id, 1000, b""))
        sent = stage.taken()
        where = stage.place_of(first.request.id)
        ids = [first.request.id, *(each.request.id for each in more)]
        own = [each for each in sent[where] if each.id in ids]
        assert [(type(each), each.id) for each in own] == [
            (Submit, ids[0]),
            (Submit, ids[1]),
            (Submit, ids[2]),
            (Pause, ids[1]),
            (Cancel, ids[2]),
        ]
        other = [each for messages in sent.values() for each in messages if each.id not in ids]
        assert [type(each) for each in other] == [Submit, Cancel]
        first.cancel()
        more[0].cancel()

    idle(play(story, "a", "b"))


def test_a_replica_that_does_not_answer_is_not_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("specllama.engine.fleet.lookup.SECONDS", 0.0)

    async def story(stage: Stage) -> None:
        text = generate(stage.client, LONG, PARAMS)
        name, id = question(stage)
        await until(lambda: stage.opened)
        stage.channels[name].say(Blocks(id, 1000, b""))
        assert len(stage.said) == 2  # no message about the late answer
        text.cancel()

    idle(play(story, "a", "b"))


def test_undecided_requests_wait_for_the_next_fleet() -> None:
    async def story(stage: Stage) -> None:
        text = generate(stage.client, LONG, PARAMS)
        question(stage)
        stage.lose("a")
        stage.lose("b")
        assert not text.ready
        assert not stage.fleet._lookups._asked

    play(story, "a", "b")


# ---- questions to all -------------------------------------------------------------------


async def asked(stage: Stage, question: Any) -> tuple["asyncio.Task[Any]", int]:
    """Asks a question. Returns its task, and its id."""
    task = asyncio.create_task(question)
    await asyncio.sleep(0)
    taken = stage.taken()
    assert taken.keys() == {n for n, each in stage.fleet._members.items() if not each.is_leaving}
    [id] = {message.id for messages in taken.values() for message in messages}
    return task, id


def test_the_slots_of_all_replicas_are_joined() -> None:
    def state(id: int, **fields: Any) -> SlotState:
        return SlotState(id=id, n_ctx=64, **fields)

    def waits(id: int, place: int) -> WaitingState:
        return WaitingState(id=id, place=place, n_tokens=1, n_uncached=1, age_ms=0, wait_ms=0)

    async def story(stage: Stage) -> None:
        slots, id = await asked(stage, stage.client.slots_and_queue())
        stage.channels["b"].say(
            Slots(id, [state(0), state(1, id_task=FIRST + 6)], [waits(FIRST + 7, 1)], 3)
        )
        stage.channels["b"].say(Slots(id, [], [], 9))  # a second answer has no effect
        assert not slots.done()
        stage.channels["a"].say(
            Slots(id, [state(0), state(1)], [waits(FIRST + 8, 2), waits(FIRST + 9, 1)], 2)
        )
        found = await slots
        assert [each.id for each in found.slots] == [0, 1, 2, 3]
        assert [each.id_task for each in found.slots] == [-1, -1, -1, 7]
        assert [each.id for each in found.waiting] == [10, 8, 9]
        assert found.n_waiting == 5

    idle(play(story, "a", "b"))


def test_the_statistics_of_all_replicas_are_joined() -> None:
    async def story(stage: Stage) -> None:
        stats, id = await asked(stage, stage.client.stats())
        one, two = (
            Stats(
                n_prompt=n,
                n_prompt_missed={"new": n, f"only {n}": 7},
                n_tokens_max=10 * n,
                wait_seconds=0.5 * n,
                queue=Histogram((1.0, 2.0), [n, 0, 1], 3.0),
                devices=[DeviceMemory("CUDA0", n, 10), DeviceMemory(f"CUDA{n}", 1, 10)],
            )
            for n in (1, 2)
        )
        stage.channels["a"].say(StatsReply(id, one))
        stage.channels["b"].say(StatsReply(id, two))
        found = await stats
        assert (found.n_prompt, found.n_tokens_max, found.wait_seconds) == (3, 20, 0.5)
        assert found.n_prompt_missed == {"new": 3, "only 1": 7, "only 2": 7}
        assert found.queue == Histogram((1.0, 2.0), [3, 0, 2], 6.0)
        assert found.step == Stats().step
        assert found.devices == [
            DeviceMemory("CUDA0", 3, 20),
            DeviceMemory("CUDA1", 1, 10),
            DeviceMemory("CUDA2", 1, 10),
        ]
        assert one.n_prompt_missed == {"new": 1, "only 1": 7}

    idle(play(story, "a", "b"))


def test_the_adapters_are_those_of_the_first_slots() -> None:
    async def story(stage: Stage) -> None:
        adapters, id = await asked(stage, stage.client.adapters())
        for name in ("b", "a"):
            stage.channels[name].say(Adapters(id, [Adapter(0, name, 1.0, "", "")]))
        assert [each.path for each in await adapters] == ["a"]

    idle(play(story, "a", "b"))


def test_a_failed_answer_of_one_replica_fails_the_question() -> None:
    async def story(stage: Stage) -> None:
        adapters, id = await asked(stage, stage.client.set_adapters([(9, 1.0)]))
        error = EngineError.of("invalid_request_error", "there is no adapter 9").info
        stage.channels["b"].say(Failed(id, error))
        stage.channels["a"].say(Adapters(id, []))
        with pytest.raises(EngineError, match="no adapter 9"):
            await adapters

    idle(play(story, "a", "b"))


def test_a_lost_replica_is_left_out_of_the_answer() -> None:
    async def story(stage: Stage) -> None:
        before, id = await asked(stage, stage.client.stats())
        stage.channels["a"].say(StatsReply(id, Stats(n_prompt=1)))
        stage.channels["c"].say(StatsReply(id, Stats(n_prompt=1, n_processing=3)))
        stage.lose("b")
        found = await before
        assert (found.n_prompt, found.n_processing, [*found.replicas]) == (2, 3, ["a", "c"])
        after, id = await asked(stage, stage.client.stats())
        stage.lose("c")
        stage.channels["a"].say(StatsReply(id, Stats(n_prompt=5, wait_seconds=2.0)))
        found = await after
        assert (found.n_prompt, found.n_processing) == (6, 0), "counters of c stay"
        assert found.wait_seconds == 2.0
        assert {name: each.n_prompt for name, each in found.replicas.items()} == {"a": 5}

    idle(play(story, "a", "b", "c"))


def test_a_question_is_asked_again_if_all_asked_replicas_are_lost() -> None:
    async def story(stage: Stage) -> None:
        stats, id = await asked(stage, stage.client.stats())
        stage.join("b")
        stage.lose("a")
        assert stage.taken() == {"b": [GetStats(id)]}
        stage.join("c")
        stage.lose("b")
        with pytest.raises(EngineError, match="the cable is cut"):  # not a third time
            await stats
        assert not stage.taken()

    idle(play(story, "a"))


def test_a_cancelled_question_is_not_answered() -> None:
    async def story(stage: Stage) -> None:
        slots, id = await asked(stage, stage.client.slots())
        slots.cancel()
        await asyncio.wait({slots})
        n_said = len(stage.said)
        for name in ("a", "b"):
            stage.channels[name].say(Slots(id, []))
        assert len(stage.said) == n_said
        assert not stage.taken()

    idle(play(story, "a", "b"))


def test_other_questions_go_to_one_replica() -> None:
    async def story(stage: Stage) -> None:
        for _ in range(4):
            text = asyncio.create_task(stage.client.detokenize([1]))
            await asyncio.sleep(0)
            [(name, [question])] = stage.taken().items()
            assert isinstance(question, Detokenize)
            stage.channels[stage.other(name)].say(Text(question.id, "two"))
            stage.channels[name].say(Text(question.id, "one"))
            assert await text == "one"
        assert not stage.opened  # only work is reported

    idle(play(story, "a", "b"))


# ---- a replica that is lost -------------------------------------------------------------


def test_requests_that_had_not_begun_are_sent_again_once() -> None:
    async def story(stage: Stage) -> None:
        texts = [generate(stage.client, ["a"], PARAMS, confirm=True) for _ in range(4)]
        gone = stage.place_of(texts[0].request.id)
        stay = stage.other(gone)
        there = [each for each in texts if stage.place_of(each.request.id) == gone]
        first, second = there
        stage.taken()
        stage.say(gone, Accepted(first.request.id), Accepted(second.request.id))
        stage.say(gone, Begun(first.request.id))
        stage.lose(gone)
        [moved] = stage.taken()[stay]
        assert isinstance(moved, Submit)
        assert moved.id == second.request.id
        assert not moved.confirm
        error = (await _begun_failure(first)).info
        assert error.type == "server_error"
        assert error.message == "the replica that had the request is gone: the cable is cut"
        assert stage.opened[-1] == (stay, [second.request.id])
        stage.join("c")
        stage.lose(stay)  # with all others
        assert [each.id for each in stage.taken()["c"]] == [
            each.request.id for each in texts if each not in there
        ]
        await second.accepted()
        assert (await failure(second)).info == error

    play(story, "a", "b")


async def _begun_failure(generation: Generation) -> EngineError:
    await generation.accepted()
    await generation.begun()
    return await failure(generation)


def test_slots_of_replicas_of_different_sizes_have_different_numbers() -> None:
    def story(stage: Stage) -> None:
        stage.join("b", n_slots=4)
        stage.join("c", n_slots=1)
        assert [each.first_slot for each in stage.fleet._members.values()] == [0, 2, 6]
        stage.lose("b")
        stage.join("d", n_slots=3)
        stage.join("e", n_slots=2)
        firsts = {each.name: each.first_slot for each in stage.fleet._members.values()}
        assert firsts == {"a": 0, "c": 6, "d": 2, "e": 7}

    play(story, "a")


def test_the_texts_of_a_call_move_together_in_one_message() -> None:
    def story(stage: Stage) -> None:
        variants = [GenerationParams(seed=seed) for seed in range(50)]
        first = stage.client.generate_all(["a" * 100], variants)
        name = stage.place_of(first[0].request.id)
        stage.taken()
        stage.lose(name)
        [[submit]] = stage.taken().values()
        assert ids(submit) == [each.request.id for each in first]
        assert [seed for _, seed in submit.others] == [*range(1, 50)]

    play(story, "a", "b", "c")


def test_a_slice_of_a_lost_replica_is_sent_again() -> None:
    async def run() -> None:
        stage, bill = Stage(), Bill()
        for name in ("a", "b"):
            channel = stage.channels[name] = PaperChannel()
            stage.fleet.join(name, channel, model_info(pooling="mean"))
        reading = asyncio.create_task(
            _drain(stage.client.embed([["a"]] * 100, normalize=2, meter=bill))
        )
        await until(lambda: len(stage.fleet._open) == 2)
        one, two = sorted(stage.fleet._open)
        name = stage.place_of(one)
        stage.say(name, Accepted(one, 10), Vectors(one, b"", [1], 10))
        stage.lose(name)
        other = stage.place_of(two)
        stage.say(other, Accepted(two, 5), Vectors(two, b"", [1], 5))
        assert await reading == 2
        assert [each.prompt_n for each in bill.ends if each] == [15]
        idle(stage)

    asyncio.run(run())


def test_a_slot_of_a_lost_replica_is_not_given_to_another_one() -> None:
    async def story(stage: Stage) -> None:
        text = generate(stage.client, ["a"], GenerationParams(id_slot=1))
        stage.lose("a")
        assert "no slot 1" in (await failure(text)).info.message

    idle(play(story, "a", "b"))


HISTORIES: dict[str, Timings | None] = {
    "finished": TIMINGS,
    "failed": TIMINGS,
    "cancel ended": TIMINGS,
    "cancel finished": TIMINGS,  # both were on their way
    "cancel cancel ended": TIMINGS,
    "cancel lose": None,
    "cancel lose_all": None,
    "lose_all": None,
    "lose_all cancel": None,
    "begin finished": TIMINGS,
    "begin failed": TIMINGS,
    "begin cancel ended": TIMINGS,
    "begin cancel finished": TIMINGS,
    "begin cancel lose": None,
    "begin lose": None,
    "begin lose cancel": None,
    "begin lose_all": None,
    "lose finished": TIMINGS,  # it has moved
    "lose failed": TIMINGS,
    "lose cancel ended": TIMINGS,
    "lose cancel lose_all": None,
    "lose begin lose_all": None,
    "lose lose_all": None,
}
"""Events of a metered request with two replicas, and the tokens that its meter gets."""


@pytest.mark.parametrize("history", HISTORIES)
def test_a_metered_request_is_settled_once(history: str) -> None:
    bill, error = Bill(), EngineError.of("server_error", "gone").info

    def story(stage: Stage) -> None:
        text = generate(stage.client, ["a"], PARAMS, meter=bill)
        id = text.request.id
        stage.say(stage.place_of(id), Accepted(id, 10))
        for step in history.split():
            assert not bill.ends or step == "cancel"
            if step == "cancel":
                text.cancel()
            elif step == "lose":
                stage.lose(stage.place_of(id))
            elif step == "lose_all":
                for name in [*stage.fleet._members]:
                    stage.lose(name)
                stage.client.detach(error)
                stage.client.close(error)  # there is no next fleet
            else:
                events = {
                    "begin": Begun(id),
                    "finished": finished(id=id),
                    "failed": Failed(id, error, TIMINGS),
                    "ended": Ended(id, TIMINGS),
                }
                stage.say(stage.place_of(id), events[step])
        assert bill.ends == [HISTORIES[history]]
        stage.client.close(error)
        assert bill.accepts == [10]
        assert len(bill.ends) == 1

    play(story, "a", "b")


# ---- the last replica -------------------------------------------------------------------


def test_messages_after_the_end_are_dropped() -> None:
    """Until the supervisor has seen the end: the requests wait for the next fleet."""

    async def story(stage: Stage) -> None:
        stage.lose("a")
        text = generate(stage.client, ["a"], PARAMS)
        question = asyncio.create_task(stage.client.stats())
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        assert not text.ready
        assert not question.done()
        question.cancel()
        assert not any(isinstance(each, Failed) for each in stage.said)

    play(story, "a")


class Fleets:
    """Starts fleets for a supervisor."""

    def __init__(self) -> None:
        self.all: list[Fleet] = []

    async def start_process(
        self, options: EngineOptions, engine_log: EngineLog, log_level: int
    ) -> EngineProcess:
        await asyncio.sleep(0)
        self.all.append(Fleet(FIRST, lambda name, own: None, placing=Placing(Random(1), BLOCK)))
        return EngineProcess(self.all[-1])

    async def add(self, n: int, name: str) -> PaperChannel:
        """A replica joins fleet number `n`, once it exists."""
        await until(lambda: len(self.all) == n)
        channel = PaperChannel()
        self.all[-1].join(name, channel, model_info())
        return channel


def test_waiting_requests_move_to_the_next_fleet() -> None:
    async def run() -> None:
        fleets = Fleets()
        supervisor = Supervisor(
            model_options(), start_process=fleets.start_process, restarts=AtOnce()
        )
        supervisor.start()
        channel = await fleets.add(1, "a")
        await until(lambda: supervisor.state == "ready")
        client = await supervisor.engine()
        begun, waiting = (generate(client, ["a"], PARAMS) for _ in range(2))
        assert (begun.request.id, waiting.request.id) == (FIRST, FIRST + 1)
        channel.say(Step([Begun(FIRST)]))
        fleets.all[0].leave("a", "the cable is cut")
        late = generate(client, ["b"], PARAMS)  # before the supervisor has seen it
        assert (await failure(begun)).info.type == "server_error"
        assert supervisor.state == "restarting"
        assert supervisor.exit_code == 1
        between = generate(client, ["c"], PARAMS)
        channel = await fleets.add(2, "a")
        await until(lambda: supervisor.state == "ready")
        assert [each.id for each in channel.taken()] == [FIRST + 1, FIRST + 2, FIRST + 3]
        channel.say(Step([finished(id=each.request.id) for each in (waiting, late, between)]))
        for each in (waiting, late, between):
            assert (await each.result()).id == each.request.id
        assert generate(await supervisor.engine(), ["d"], PARAMS).request.id == FIRST + 4
        await supervisor.stop()
        assert channel.is_closed

    asyncio.run(run())


def test_a_fleet_without_replicas_is_stopped() -> None:
    async def run() -> None:
        fleets = Fleets()
        supervisor = Supervisor(model_options(), start_process=fleets.start_process)
        supervisor.start()
        await until(lambda: fleets.all)
        await supervisor.stop()
        assert fleets.all[0].has_ended

    asyncio.run(run())


# ---- a replica that is about to end -----------------------------------------------------


def test_a_retired_replica_gets_no_new_requests_and_ends_when_it_is_idle() -> None:
    async def story(stage: Stage) -> None:
        old = generate(stage.client, ["a"], GenerationParams(id_slot=0))
        group = old.request.group
        stage.fleet.retire("a")
        stage.fleet.retire("unknown")
        stage.taken()
        for _ in range(5):
            generate(stage.client, ["b"], PARAMS)
        assert [*stage.taken()] == ["b"]
        generate(stage.client, ["c"], PARAMS, group=group).cancel()  # of the same call
        assert [*stage.taken()] == ["a"]
        with pytest.raises(EngineError, match="no slot 1"):
            await stage.client.slot_action(1, "erase")
        stats, id = await asked(stage, stage.client.stats())
        stage.channels["b"].say(StatsReply(id, Stats(n_prompt=2)))
        assert (await stats).n_prompt == 2
        assert not stage.channels["a"].is_closed
        stage.say("a", Begun(old.request.id), finished(id=old.request.id))
        assert (await old.result()).id == old.request.id
        assert stage.channels["a"].is_closed
        assert stage.client.info.n_slots == 2

    play(story, "a", "b")


def test_an_idle_replica_ends_at_once_when_it_is_retired() -> None:
    def story(stage: Stage) -> None:
        stage.fleet.retire("a")
        assert stage.channels["a"].is_closed
        assert NoReplicas() not in stage.said
        stage.fleet.retire("b")
        assert NoReplicas() in stage.said

    play(story, "a", "b")


def test_the_last_event_of_the_last_replica_arrives() -> None:
    async def story(stage: Stage) -> None:
        text = generate(stage.client, ["a"], PARAMS)
        stage.fleet.retire("a")
        last = finished(id=text.request.id)
        stage.say("a", Begun(text.request.id), last)
        assert stage.said[-2:] == [Step([Begun(text.request.id), last]), NoReplicas()]
        assert (await text.result()).id == text.request.id

    play(story, "a")


def test_a_fleet_becomes_ready_only_once() -> None:
    def story(stage: Stage) -> None:
        stage.fleet.retire("a")
        stage.join("b")
        assert stage.said == [Ready(model_info()), NoReplicas(), Resized(2)]

    play(story, "a")


def test_the_cancellation_of_its_last_request_ends_a_retired_replica() -> None:
    def story(stage: Stage) -> None:
        text = generate(stage.client, ["a"], GenerationParams(id_slot=0))
        stage.fleet.retire("a")
        text.cancel()
        assert stage.channels["a"].sent[-1] == Cancel(text.request.id)
        assert stage.channels["a"].is_closed

    idle(play(story, "a", "b"))


def test_a_question_to_a_replica_that_ends_is_answered_by_the_others() -> None:
    async def story(stage: Stage) -> None:
        slots, id = await asked(stage, stage.client.slots())
        stage.channels["b"].say(Slots(id, [SlotState(id=0, n_ctx=1)]))
        stage.fleet.retire("a")
        assert [each.id for each in await slots] == [2]

    idle(play(story, "a", "b"))


def test_while_all_replicas_are_about_to_end_requests_wait_for_another_one() -> None:
    async def story(stage: Stage) -> None:
        old = generate(stage.client, ["a"], PARAMS)
        stage.fleet.retire("a")
        text, cancelled = (generate(stage.client, [each], PARAMS) for each in "bc")
        tokens = asyncio.create_task(stage.client.detokenize([1]))
        await asyncio.sleep(0)
        cancelled.cancel()
        stage.taken()
        stage.join("b")
        first, *rest = stage.taken()["b"]
        assert first == text.request
        assert [type(each) for each in rest] == [Submit, Detokenize, Cancel]
        stage.channels["b"].say(Text(rest[1].id, "one"))
        assert await tokens == "one"
        old.cancel()

    play(story, "a")


def test_without_another_replica_waiting_requests_fail(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fleet_module, "PARK_SECONDS", 0.0)

    async def story(stage: Stage) -> None:
        old = generate(stage.client, ["a"], PARAMS)
        stage.fleet.retire("a")
        error = (await failure(generate(stage.client, ["b"], PARAMS))).info
        assert error.type == "unavailable_error"
        assert error.retry_after
        stage.join("b")
        assert not stage.taken().get("b")
        old.cancel()

    play(story, "a")


def test_terms_are_those_of_the_request() -> None:
    def story(stage: Stage) -> None:
        terms = Terms(priority=3, key_name="k", is_metered=True)
        text = generate(stage.client, ["a"], PARAMS, terms=terms, meter=Bill())
        [[submit]] = stage.taken().values()
        assert submit == text.request

    play(story, "a")
