"""Asks a replica for the blocks of a prompt, before a replica is chosen for it."""

import asyncio
import itertools
from collections.abc import Callable, Sequence
from typing import TypeAlias

from specllama.engine.fleet.channel import ID_BITS, Channel, ToIngress, numbers
from specllama.engine.fleet.placing import WantedPrompt
from specllama.engine.wire.media import Media
from specllama.engine.wire.replies import Blocks, Failed, Reply
from specllama.engine.wire.requests import (
    Cancel,
    Embed,
    EndThoughts,
    GetBlocks,
    Infill,
    Pause,
    Rerank,
    Resume,
    Submit,
    ToEngine,
    ids,
)

LEAST_TOKENS = 128
"""A prompt with an estimate of fewer tokens has few blocks, so they aren't asked for."""
SECONDS = 0.5  # for the answer of a replica
_CHARACTERS_PER_TOKEN = 4
_FIRST_ID = 1 << (ID_BITS - 1)  # of the questions, from the first id of the fleet on

Decide: TypeAlias = Callable[[Submit, WantedPrompt], None]
"""Chooses a replica for a request, and sends the request there."""


class _Undecided:
    """A request without a replica. `later` has the messages that have to follow it."""

    def __init__(self, submit: Submit, replica: str, timer: asyncio.TimerHandle) -> None:
        self.submit = submit
        self.replica = replica  # that was asked
        self.timer = timer
        self.later: list[ToEngine] = []
        self.ids = {submit.group or submit.id, *ids(submit)}  # and of texts that follow


class Lookups:
    """The requests of a fleet for which a replica was asked. Each is decided when that has
    answered, has failed or is gone, or after SECONDS."""

    def __init__(self, first_id: int, decide: Decide, send: Callable[[ToEngine], None]) -> None:
        """`first_id` is that of the fleet. `send` sends the messages that follow a request."""
        self._decide = decide
        self._send = send
        self._questions = itertools.count(first_id + _FIRST_ID)
        self._asked: dict[int, _Undecided] = {}  # by question
        self._undecided: dict[int, _Undecided] = {}  # by its ids

    def ask(self, submit: Submit, replica: str, channel: Channel[ToIngress]) -> None:
        """Asks a replica for the blocks of a request."""
        id = next(self._questions)
        timer = asyncio.get_running_loop().call_later(SECONDS, self._end, id, None)
        undecided = self._asked[id] = _Undecided(submit, replica, timer)
        self._undecided |= dict.fromkeys(undecided.ids, undecided)
        channel.send(GetBlocks(id, submit.prompt, submit.params, submit.owner, submit.private))

    def keep(self, message: ToEngine) -> bool:
        """Keeps a message that has to follow an undecided request: one that controls it, or another
        text of its call. Returns False for any other message."""
        id = 0
        if isinstance(message, Submit):
            id = message.group
        elif isinstance(message, Cancel | Pause | Resume | EndThoughts):
            id = message.id
        undecided = self._undecided.get(id) if id else None
        if undecided is not None:
            undecided.later.append(message)
            if isinstance(message, Submit):
                undecided.ids.update(ids(message))
                self._undecided |= dict.fromkeys(ids(message), undecided)
        return undecided is not None

    def take(self, message: Reply | Failed) -> bool:
        """Takes the answer to a question. Returns False for any other message."""
        if message.id not in self._asked:
            return False
        self._end(message.id, message if isinstance(message, Blocks) else None)
        return True

    def leave(self, replica: str) -> None:
        """Decides the requests for which a replica was asked that is gone."""
        for id in [id for id, each in self._asked.items() if each.replica == replica]:
            self._end(id, None)

    def close(self) -> None:
        """Drops all requests."""
        for each in self._asked.values():
            each.timer.cancel()
        self._asked.clear()
        self._undecided.clear()

    def _end(self, id: int, blocks: Blocks | None) -> None:
        undecided = self._asked.pop(id, None)
        if undecided is None:
            return
        undecided.timer.cancel()
        submit = undecided.submit
        for own in undecided.ids:
            self._undecided.pop(own, None)
        wanted = WantedPrompt(n_tokens_of(submit))
        if blocks is not None:
            wanted = WantedPrompt(blocks.n_tokens, numbers(blocks.blocks), blocks.media)
        self._decide(submit, wanted)
        for message in undecided.later:
            self._send(message)


def n_tokens_of(message: Submit | Embed | Rerank) -> int:
    """Returns an estimate of the tokens of a message. A medium counts so much that the replicas are
    asked whether they have it."""
    if isinstance(message, Rerank):
        n = sum(len(message.query) + len(each) for each in message.documents)
        return 1 + n // _CHARACTERS_PER_TOKEN
    if isinstance(message, Embed):
        return sum(_n_tokens(each) for each in message.inputs)
    if isinstance(message.prompt, Infill):
        return _n_tokens([*message.prompt.prefix, *message.prompt.suffix])
    return _n_tokens(message.prompt)


def _n_tokens(parts: Sequence[int | str | Media]) -> int:
    n = 1
    for part in parts:
        if isinstance(part, str):
            n += len(part) // _CHARACTERS_PER_TOKEN
        else:
            n += LEAST_TOKENS if isinstance(part, Media) else 1
    return n
