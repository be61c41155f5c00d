"""The replicas of a model, which count as one engine process: each request goes to one of them."""

import asyncio
import logging
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial
from random import Random
from typing import TypeAlias

import msgspec

from specllama.engine import system
from specllama.engine.errors import ErrorInfo
from specllama.engine.fleet.channel import Channel, Report, ToIngress, numbers
from specllama.engine.fleet.joining import JointQuestions, ToAll
from specllama.engine.fleet.lookup import LEAST_TOKENS, Lookups, n_tokens_of
from specllama.engine.fleet.placing import PlacedRequest, Placing, WantedPrompt
from specllama.engine.wire.process import Changes
from specllama.engine.wire.replies import (
    Delta,
    Ended,
    Event,
    Failed,
    Finished,
    Lost,
    ModelInfo,
    NoReplicas,
    Ready,
    Reply,
    Resized,
    Step,
    ToServer,
    Vectors,
)
from specllama.engine.wire.requests import (
    Cancel,
    Embed,
    EndThoughts,
    GetAdapters,
    GetSlots,
    GetStats,
    Load,
    MeasureMemory,
    Pause,
    Rerank,
    Resume,
    SetAdapters,
    SlotAction,
    Submit,
    ToEngine,
    ids,
)
from specllama.engine.wire.stats import BLOCK, ReplicaLoad

log = logging.getLogger("specllama.engine.fleet")

_CONTROLS = (Cancel, Pause, Resume, EndThoughts)
_LAST = (Finished, Failed, Ended, Vectors)
_SHOWS_SLOT = (Delta, Finished)
PARK_SECONDS = 30.0
"""How long a request waits while each replica is about to end. It fails then."""
_RETRY_AFTER = 10  # s, of a request that has waited so long

_NO_REPLICA = ErrorInfo(
    "unavailable_error", "each replica of the model is about to end", retry_after=_RETRY_AFTER
)

OnOpen: TypeAlias = Callable[[str, Sequence[int]], None]
"""Is called with the name of a replica and the ids of requests that are sent to it together."""


class Member:
    """A connected replica. Its slots are numbered from `first_slot` on."""

    def __init__(
        self, name: str, channel: Channel[ToIngress], info: ModelInfo, first_slot: int
    ) -> None:
        self.name = name
        self.info = info
        self.first_slot = first_slot
        self.is_leaving = False  # gets no new requests
        self.channel = channel
        self.open: set[int] = set()


class _Open:
    """A request at a member. It belongs to the call `group` (0: none); `placed` is None for an
    action on a slot, and for all texts of a message except the first."""

    __slots__ = ("group", "is_metered", "member", "placed")

    def __init__(
        self, member: Member, placed: PlacedRequest | None, group: int, is_metered: bool
    ) -> None:
        self.member = member
        self.placed = placed
        self.group = group
        self.is_metered = is_metered


class _Call:
    """A request of a client, with open texts (or slices of its inputs) at one member."""

    __slots__ = ("member", "n_open")

    def __init__(self, member: Member) -> None:
        self.member = member
        self.n_open = 0


class Fleet:
    """Has the methods of `engine.models.engine_process.Process`. It becomes ready with its first
    replica, and ends when it loses its last one; if that has ended regularly, the model sleeps.

    The texts of a call go to the replica that has other texts of the call, so do the slices of its
    inputs. A request with `id_slot` goes to the replica with this slot, and fails if that is gone.
    A replica that joins gets the lowest numbers of slots that are free.
    """

    pid = 0
    failure: Exception | None = None

    def __init__(self, first_id: int, on_open: OnOpen, *, placing: Placing | None = None) -> None:
        """`placing` chooses the replicas."""
        self.first_id = first_id
        self._on_open = on_open
        # An empty one is false.
        self._placing = Placing(Random(), BLOCK) if placing is None else placing
        self._members: dict[str, Member] = {}
        self._n_numbers = 0  # of slots that there are or were
        self._open: dict[int, _Open] = {}
        self._calls: dict[int, _Call] = {}  # by group
        self._questions = JointQuestions(self._say)
        self._parked: list[ToEngine] = []  # messages that wait for a replica
        self._lookups = Lookups(first_id, self._decide, self._send)
        self._adapters: SetAdapters | None = None  # for replicas that join later
        self._is_ready = False  # a first replica has joined
        self._on_message: Callable[[ToServer], None] | None = None
        self._unheard: list[ToServer] = []
        self._changes = Changes()
        self._code: int | None = None  # once it has ended

    # ---- replicas --------------------------------------------------------------------------

    @property
    def has_ended(self) -> bool:
        return self._code is not None

    def join(self, name: str, channel: Channel[ToIngress], info: ModelInfo) -> None:
        """Adds a replica, which has sent its `Welcome`."""
        if self.has_ended:
            channel.close()
            return
        first_slot = self._free_slots(info.n_slots)
        self._n_numbers = max(self._n_numbers, first_slot + info.n_slots)
        member = self._members[name] = Member(name, channel, info, first_slot)
        self._placing.join(name, ReplicaLoad(n_slots=info.n_slots), system.now())
        channel.on_message = partial(self._take, member)
        if not self._is_ready:
            self._is_ready = True
            self._say(Ready(info))
        else:
            self._say(Resized(self._n_slots))
        if self._adapters is not None:
            channel.send(self._adapters)
        parked, self._parked = self._parked, []
        for message in parked:
            self._send(message)

    def retire(self, name: str) -> None:
        """Sends no further request to a replica, which is about to end."""
        if (member := self._members.get(name)) and not member.is_leaving:
            member.is_leaving = True
            self._close_idle(member)

    def leave(self, name: str, reason: str) -> None:
        """Removes a replica, which is gone. Requests that it had not begun go to another one."""
        member = self._members.pop(name, None)
        if member is None:
            return
        self._placing.leave(name)
        member.channel.close()
        if not self._members:
            if member.is_leaving and not member.open:
                self._say(NoReplicas())
            else:
                self._finish(1)
            return
        self._lookups.leave(name)
        lost = sorted(member.open)
        if lost:
            log.error("the replica %s is gone (%s), with %d requests", name, reason, len(lost))
        for id in lost:
            self._close(id)
        lost += self._questions.leave(name)
        self._say(Resized(self._n_slots))
        if lost:
            text = f"the replica that had the request is gone: {reason}"
            self._say(Lost(lost, ErrorInfo("server_error", text)))

    def _free_slots(self, n: int) -> int:
        """Returns the first of `n` consecutive numbers that no slot has. During an update, replicas
        may have different numbers of slots."""
        first = 0
        for member in sorted(self._members.values(), key=lambda each: each.first_slot):
            if member.first_slot - first >= n:
                break
            first = member.first_slot + member.info.n_slots
        return first

    @property
    def _n_slots(self) -> int:
        return sum(each.info.n_slots for each in self._members.values())

    def _close_idle(self, member: Member) -> None:
        """Ends the connection to a replica that is about to end, once it has no request."""
        if member.is_leaving and not member.open:
            self.leave(member.name, "it has ended")

    # ---- as a process ----------------------------------------------------------------------

    def sender(self) -> Callable[[ToEngine], None]:
        return self._send

    def listen(self, on_message: Callable[[ToServer], None] | None) -> None:
        self._on_message = on_message
        unheard, self._unheard = self._unheard, []
        for message in unheard:
            self._say(message)

    async def output_end(self, silence: float) -> None:
        await self._changes.until(lambda: self.has_ended)

    def send_signal(self, number: int) -> None:
        self.kill()

    def kill(self) -> None:
        self._finish(0)

    async def end(self, seconds: float) -> bool:
        self._finish(0)
        return True

    async def reap(self, grace: float = 0.0) -> int:
        if self._code is None and grace:
            with suppress(TimeoutError):
                await asyncio.wait_for(self._changes.until(lambda: self.has_ended), grace)
        self._finish(0)
        assert self._code is not None, "it has just ended"
        return self._code

    def _finish(self, code: int) -> None:
        if self._code is None:
            self._code = code
            self._lookups.close()
            for member in self._members.values():
                member.channel.close()
            self._members.clear()
            self._changes.announce()

    def _say(self, message: ToServer) -> None:
        if self._on_message is not None:
            self._on_message(message)
        elif self._code is None:
            self._unheard.append(message)

    # ---- requests --------------------------------------------------------------------------

    def _send(self, message: ToEngine) -> None:
        if self.has_ended:
            return  # the request waits for the next fleet
        if self._lookups.keep(message):
            return
        match message:
            case Submit():
                self._submit(message)
            case Embed() | Rerank():
                wanted = WantedPrompt(n_tokens_of(message))
                self._begin(message, [message.id], wanted, message.group or message.id)
            case Cancel() | Pause() | Resume() | EndThoughts():
                self._control(message)
            case SlotAction():
                self._act_on_slot(message)
            case Load() | MeasureMemory():
                raise RuntimeError(f"{type(message).__name__} is for a process")
            case GetSlots() | GetStats() | GetAdapters() | SetAdapters():
                self._ask_all(message)
            case _:
                self._begin(message, [message.id], WantedPrompt(1), 0)

    def _submit(self, submit: Submit) -> None:
        slot = submit.params.id_slot
        member = None
        if 0 <= slot < self._n_numbers:  # as an engine process ignores other numbers
            member = self._member_of_slot(slot)
            if member is None:
                self._refuse(ids(submit), _no_slot(f"id_slot: there is no slot {slot}"))
                return
            params = msgspec.structs.replace(submit.params, id_slot=slot - member.first_slot)
            submit = msgspec.structs.replace(submit, params=params)
        n_tokens = n_tokens_of(submit)
        group = submit.group or submit.id
        able = [each for each in self._members.values() if not each.is_leaving]
        if member or group in self._calls or len(able) < 2 or n_tokens < LEAST_TOKENS:
            self._begin(submit, ids(submit), WantedPrompt(n_tokens), group, member)
        else:
            asked = min(able, key=lambda each: len(each.open))
            self._lookups.ask(submit, asked.name, asked.channel)

    def _decide(self, submit: Submit, wanted: WantedPrompt) -> None:
        self._begin(submit, ids(submit), wanted, submit.group or submit.id)

    def _begin(
        self,
        message: ToEngine,
        own: Sequence[int],
        wanted: WantedPrompt,
        group: int,
        member: Member | None = None,
    ) -> None:
        """Sends a message with the ids `own` to `member`, to the replica with the call `group`, or
        to the best one."""
        if member is None and (call := self._calls.get(group)) is not None:
            member = call.member
        without = {each.name for each in self._members.values() if each is not member}
        if member is None:
            without = {each.name for each in self._members.values() if each.is_leaving}
        placed = self._placing.place(wanted, system.now(), without)
        if placed is None:  # each replica is about to end
            self._park(message, own)
            return
        member = self._members[str(placed.member)]
        is_work = isinstance(message, Submit | Embed | Rerank)
        is_metered = isinstance(message, Submit | Embed | Rerank) and message.terms.is_metered
        for id in own:
            self._open[id] = _Open(member, placed if id == own[0] else None, group, is_metered)
        member.open.update(own)
        if group:
            self._calls.setdefault(group, _Call(member)).n_open += len(own)
        member.channel.send(message)
        if is_work:
            self._on_open(member.name, own)

    def _control(self, message: Cancel | Pause | Resume | EndThoughts) -> None:
        if self._questions.drop(message.id):
            return
        if (found := self._open.get(message.id)) is not None:
            found.member.channel.send(message)
            if isinstance(message, Cancel) and not found.is_metered:
                self._close(message.id)
        elif self._parked:
            self._parked.append(message)  # it may be for one of the requests before

    def _act_on_slot(self, message: SlotAction) -> None:
        member = self._member_of_slot(message.slot)
        if member is None:
            self._refuse([message.id], _no_slot(f"there is no slot {message.slot}"))
            return
        slot = message.slot - member.first_slot
        self._open[message.id] = _Open(member, None, 0, False)
        member.open.add(message.id)
        member.channel.send(msgspec.structs.replace(message, slot=slot))

    def _ask_all(self, message: ToAll) -> None:
        everyone = list(self._members.values())
        members = [each for each in everyone if not each.is_leaving] or everyone
        if isinstance(message, SetAdapters):
            self._adapters = msgspec.structs.replace(message, id=0)
        if message.id and not members:
            self._park(message, [message.id])
        elif message.id:
            first_slots = {each.name: each.first_slot for each in members}
            self._questions.ask(message.id, first_slots)
        for member in members:
            member.channel.send(message)

    def _member_of_slot(self, slot: int) -> Member | None:
        for member in self._members.values():
            if 0 <= slot - member.first_slot < member.info.n_slots and not member.is_leaving:
                return member
        return None

    def _park(self, message: ToEngine, own: Sequence[int]) -> None:
        """Keeps a request until another replica joins."""
        self._parked.append(message)
        asyncio.get_running_loop().call_later(PARK_SECONDS, self._give_up, message, own)

    def _give_up(self, message: ToEngine, own: Sequence[int]) -> None:
        """Fails a request that still has no replica."""
        if any(each is message for each in self._parked):
            self._parked = [each for each in self._parked if each is not message]
            self._refuse(own, _NO_REPLICA)

    def _refuse(self, own: Sequence[int], error: ErrorInfo) -> None:
        loop = asyncio.get_running_loop()
        for id in own:
            loop.call_soon(self._say, Failed(id, error))

    def _close(self, id: int) -> None:
        found = self._open.pop(id, None)
        if found is None:
            return
        if found.placed is not None:
            self._placing.ended(found.placed, system.now())
        if (call := self._calls.get(found.group)) is not None:
            call.n_open -= 1
            if not call.n_open:
                del self._calls[found.group]
        found.member.open.discard(id)
        self._close_idle(found.member)

    # ---- events ----------------------------------------------------------------------------

    def _take(self, member: Member, message: ToIngress) -> None:
        """Passes a message of a replica on, with the fleet's numbers of slots."""
        if isinstance(message, Step):
            self._take_step(member, message)
        elif isinstance(message, Report):
            added, removed = numbers(message.added), numbers(message.removed)
            self._placing.report(member.name, message.load, added, removed, system.now())
        elif isinstance(message, Reply | Failed):
            if self._lookups.take(message):
                return
            age = self._placing.age(member.name, system.now())
            if self._questions.take(member.name, message, age):
                return
            if message.id in member.open:
                self._say(message)
                self._close(message.id)

    def _take_step(self, member: Member, step: Step) -> None:
        events: list[Event | Vectors] = []
        for event in step.events:
            if event.id not in member.open:
                continue
            if isinstance(event, _SHOWS_SLOT) and member.first_slot:
                event = msgspec.structs.replace(event, id_slot=event.id_slot + member.first_slot)
            if isinstance(event, Delta) and event.timings.predicted_n == 1:
                self._began(event.id)
            events.append(event)
        self._say(Step(events))
        for event in events:
            if isinstance(event, _LAST):
                self._close(event.id)

    def _began(self, id: int) -> None:
        found = self._open.get(id)
        if found is not None and found.placed is not None:
            self._placing.began(found.placed, system.now())


def _no_slot(text: str) -> ErrorInfo:
    return ErrorInfo("invalid_request_error", text)
