"""The replicas of a model, which count as one engine process: each request goes to one of them."""

import asyncio
import itertools
import logging
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial
from random import Random
from typing import TypeAlias

import msgspec

from specllama.engine import system
from specllama.engine.errors import ErrorInfo
from specllama.engine.fleet.channel import ID_BITS, Channel, Report, ToIngress, numbers
from specllama.engine.fleet.joining import Joining, ToAll
from specllama.engine.fleet.placing import PlacedRequest, Placing, WantedPrompt
from specllama.engine.wire.media import Media
from specllama.engine.wire.process import Changes
from specllama.engine.wire.replies import (
    Blocks,
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
    GetBlocks,
    GetSlots,
    GetStats,
    Infill,
    Load,
    MeasureMemory,
    Pause,
    PromptParts,
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
_CHARACTERS_PER_TOKEN = 4
LOOKUP_CHARACTERS = 512
"""A shorter prompt has few blocks, so its replica is chosen without their hashes."""
LOOKUP_SECONDS = 0.5  # for the answer of a replica with the hashes of a prompt
_LOOKUPS = 1 << (ID_BITS - 1)  # the first id of the fleet's own questions, from its first id on

OnOpen: TypeAlias = Callable[[str, Sequence[int]], None]
"""Is called with the name of a replica and the ids of requests that are sent to it together."""


class Member:
    """A connected replica. Its slots are numbered from `first_slot` on."""

    def __init__(self, name: str, channel: Channel[ToIngress], info: ModelInfo, place: int) -> None:
        self.name = name
        self.info = info
        self.place = place
        self.is_leaving = False  # gets no new requests
        self.channel = channel
        self.open: set[int] = set()

    @property
    def first_slot(self) -> int:
        return self.place * self.info.n_slots


class _Open:
    """A request at a member; `placed` is None for questions."""

    __slots__ = ("is_metered", "member", "placed")

    def __init__(self, member: Member, placed: PlacedRequest | None, is_metered: bool) -> None:
        self.member = member
        self.placed = placed
        self.is_metered = is_metered


class _Undecided:
    """A request whose replica is chosen as soon as the replica `asked` has returned the hashes of
    its prompt's blocks. `later` has the messages that have to follow it."""

    def __init__(self, submit: Submit, asked: Member, timer: asyncio.TimerHandle) -> None:
        self.submit = submit
        self.asked = asked
        self.timer = timer
        self.later: list[ToEngine] = []


class Fleet:
    """Has the methods of `engine.models.engine_process.Process`. It becomes ready with its first
    replica, and ends when it loses its last one; if that has ended regularly, the model sleeps.

    All texts of a call go to the same replica, so do the slices of its inputs. A request with
    `id_slot` goes to the replica with this slot: the slots of the replica with the lowest free
    number come first.
    """

    pid = 0
    failure: Exception | None = None

    def __init__(self, first_id: int, on_open: OnOpen, *, random: Random | None = None) -> None:
        self.first_id = first_id
        self._on_open = on_open
        self._placing = Placing(random or Random(), BLOCK)
        self._members: dict[str, Member] = {}
        self._open: dict[int, _Open] = {}
        self._joining: dict[int, Joining] = {}
        self._lookups: dict[int, _Undecided] = {}  # by the ids of the fleet's questions
        self._undecided: dict[int, _Undecided] = {}  # by the ids of the requests
        self._lookup_ids = itertools.count(first_id + _LOOKUPS)
        self._adapters: SetAdapters | None = None  # for replicas that join later
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
        taken = {each.place for each in self._members.values()}
        place = next(n for n in range(len(taken) + 1) if n not in taken)
        member = self._members[name] = Member(name, channel, info, place)
        self._placing.join(name, ReplicaLoad(n_slots=info.n_slots), system.now())
        channel.on_message = partial(self._take, member)
        if len(self._members) == 1:
            self._say(Ready(info))
        else:
            self._say(Resized(self._n_slots))
        if self._adapters is not None:
            channel.send(self._adapters)

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
        for joining in list(self._joining.values()):
            self._answer(joining.id, joining.leave(name))
        for id in [id for id, each in self._lookups.items() if each.asked is member]:
            self._decide(id, None)
        lost = list(member.open)
        for id in lost:
            self._close(id)
        self._say(Resized(self._n_slots))
        if lost:
            log.error("the replica %s is gone (%s), with %d requests", name, reason, len(lost))
            text = f"the replica that had the request is gone: {reason}"
            self._say(Lost(lost, ErrorInfo("server_error", text)))

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
        if (before := self._undecided.get(_follows(message))) is not None:
            before.later.append(message)
            return
        match message:
            case Submit():
                self._submit(message)
            case Embed() | Rerank():
                with_group = self._open.get(message.group)
                member = with_group.member if with_group else None
                self._begin(message, [message.id], WantedPrompt(_length(message)), member)
            case Cancel() | Pause() | Resume() | EndThoughts():
                self._control(message)
            case SlotAction():
                self._act_on_slot(message)
            case Load() | MeasureMemory():
                raise RuntimeError(f"{type(message).__name__} is for a process")
            case GetSlots() | GetStats() | GetAdapters() | SetAdapters():
                self._ask_all(message)
            case _:
                self._begin(message, [message.id], WantedPrompt(1), None)

    def _submit(self, submit: Submit) -> None:
        slot = submit.params.id_slot
        with_group = self._open.get(submit.group)
        member = with_group.member if with_group else None
        if slot >= 0:
            member = self._member_of_slot(slot)
            if member is None:
                self._refuse(ids(submit), f"id_slot: there is no slot {slot}")
                return
            params = msgspec.structs.replace(submit.params, id_slot=slot - member.first_slot)
            submit = msgspec.structs.replace(submit, params=params)
        n_tokens = _length(submit)
        n_open = [len(each.open) for each in self._members.values() if not each.is_leaving]
        if member or len(n_open) < 2 or n_tokens * _CHARACTERS_PER_TOKEN < LOOKUP_CHARACTERS:
            self._begin(submit, ids(submit), WantedPrompt(n_tokens), member)
        else:
            self._look_up(submit)

    def _look_up(self, submit: Submit) -> None:
        """Asks the replica with the fewest requests for the hashes of the prompt's blocks."""
        asked = min(
            (each for each in self._members.values() if not each.is_leaving),
            key=lambda each: len(each.open),
        )
        id = next(self._lookup_ids)
        timer = asyncio.get_running_loop().call_later(LOOKUP_SECONDS, self._decide, id, None)
        self._lookups[id] = undecided = _Undecided(submit, asked, timer)
        self._undecided |= dict.fromkeys(ids(submit), undecided)
        asked.channel.send(
            GetBlocks(id, submit.prompt, submit.params, submit.owner, submit.private)
        )

    def _decide(self, id: int, blocks: Blocks | None) -> None:
        """Sends the request of a lookup to the best replica, with what is known of its blocks."""
        undecided = self._lookups.pop(id, None)
        if undecided is None:
            return
        undecided.timer.cancel()
        submit = undecided.submit
        for own in ids(submit):
            del self._undecided[own]
        wanted = WantedPrompt(_length(submit))
        if blocks is not None:
            wanted = WantedPrompt(blocks.n_tokens, numbers(blocks.blocks))
        self._begin(submit, ids(submit), wanted, None)
        for message in undecided.later:
            self._send(message)

    def _begin(
        self,
        message: ToEngine,
        own: Sequence[int],
        wanted: WantedPrompt,
        member: Member | None,
    ) -> None:
        """Sends a message with the ids `own` to `member`, or to the best replica."""
        without = {each.name for each in self._members.values() if each is not member}
        if member is None:
            without = {each.name for each in self._members.values() if each.is_leaving}
        placed = self._placing.place(wanted, system.now(), without)
        if placed is None:  # each replica is about to end
            self._refuse(own, "no replica of the model is available")
            return
        member = self._members[str(placed.member)]
        is_work = isinstance(message, Submit | Embed | Rerank)
        is_metered = isinstance(message, Submit | Embed | Rerank) and message.terms.is_metered
        for id in own:
            self._open[id] = _Open(member, placed if id == own[0] else None, is_metered)
        member.open.update(own)
        member.channel.send(message)
        if is_work:
            self._on_open(member.name, own)

    def _control(self, message: Cancel | Pause | Resume | EndThoughts) -> None:
        if (joining := self._joining.get(message.id)) is not None:
            del self._joining[joining.id]
        elif (found := self._open.get(message.id)) is not None:
            found.member.channel.send(message)
            if isinstance(message, Cancel) and not found.is_metered:
                self._close(message.id)

    def _act_on_slot(self, message: SlotAction) -> None:
        member = self._member_of_slot(message.slot)
        if member is None:
            self._refuse([message.id], f"there is no slot {message.slot}")
            return
        slot = message.slot - member.first_slot
        self._open[message.id] = _Open(member, None, False)
        member.open.add(message.id)
        member.channel.send(msgspec.structs.replace(message, slot=slot))

    def _ask_all(self, message: ToAll) -> None:
        members = [each for each in self._members.values() if not each.is_leaving]
        if isinstance(message, SetAdapters):
            self._adapters = msgspec.structs.replace(message, id=0)
        if message.id:
            first_slots = {each.name: each.first_slot for each in members}
            self._joining[message.id] = Joining(message.id, first_slots)
        for member in members:
            member.channel.send(message)

    def _member_of_slot(self, slot: int) -> Member | None:
        for member in self._members.values():
            if 0 <= slot - member.first_slot < member.info.n_slots and not member.is_leaving:
                return member
        return None

    def _refuse(self, own: Sequence[int], text: str) -> None:
        error = ErrorInfo("invalid_request_error", text)
        loop = asyncio.get_running_loop()
        for id in own:
            loop.call_soon(self._say, Failed(id, error))

    def _close(self, id: int) -> None:
        found = self._open.pop(id, None)
        if found is not None:
            if found.placed is not None:
                self._placing.ended(found.placed, system.now())
            found.member.open.discard(id)
            self._close_idle(found.member)

    # ---- events ----------------------------------------------------------------------------

    def _take(self, member: Member, message: ToIngress) -> None:
        """Passes a message of a replica on, with the fleet's numbers of slots."""
        if isinstance(message, Step):
            self._say(Step([self._event(member, each) for each in message.events]))
        elif isinstance(message, Report):
            added, removed = numbers(message.added), numbers(message.removed)
            self._placing.report(member.name, message.load, added, removed, system.now())
        elif isinstance(message, Reply | Failed):
            if message.id in self._lookups:
                self._decide(message.id, message if isinstance(message, Blocks) else None)
            elif (joining := self._joining.get(message.id)) is not None:
                self._answer(joining.id, joining.take(member.name, message))
            elif message.id in member.open:
                self._say(message)
                self._close(message.id)

    def _event(self, member: Member, event: Event | Vectors) -> Event | Vectors:
        if isinstance(event, _SHOWS_SLOT) and member.place:
            event = msgspec.structs.replace(event, id_slot=event.id_slot + member.first_slot)
        if isinstance(event, Delta) and event.timings.predicted_n == 1:
            found = self._open.get(event.id)
            if found is not None and found.placed is not None:
                self._placing.began(found.placed, system.now())
        elif isinstance(event, _LAST):
            self._close(event.id)
        return event

    def _answer(self, id: int, answer: Reply | Failed | None) -> None:
        if answer is not None:
            self._joining.pop(id, None)
            self._say(answer)


def _follows(message: ToEngine) -> int:
    """Returns the id of the request after which a message has to be sent; 0 for none."""
    if isinstance(message, Submit):
        return message.group
    return message.id if isinstance(message, _CONTROLS) else 0


def _length(message: Submit | Embed | Rerank) -> int:
    """Returns an estimate of the tokens of a message."""
    if isinstance(message, Rerank):
        n = sum(len(message.query) + len(each) for each in message.documents)
        return n // _CHARACTERS_PER_TOKEN
    if isinstance(message, Embed):
        return sum(_n_tokens(each) for each in message.inputs)
    if isinstance(message.prompt, Infill):
        return _n_tokens([*message.prompt.prefix, *message.prompt.suffix])
    return _n_tokens(message.prompt)


def _n_tokens(parts: PromptParts) -> int:
    n = 1
    for part in parts:
        if isinstance(part, str):
            n += len(part) // _CHARACTERS_PER_TOKEN
        elif not isinstance(part, Media):
            n += 1
    return n
