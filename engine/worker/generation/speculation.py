"""Proposals in the step: what is asked for before it, and which of the tokens are confirmed.

A token is chosen from the target's own logits, by the request's own samplers and under its own
constraint, as if nothing had been proposed. Only then it is compared: if the proposed token is the
same, the logits behind it are those of the text, and the next one can be chosen at once.
"""

from collections.abc import Iterable, Mapping, Sequence

from engine.worker.backend import OffloadedSampler
from engine.worker.generation.request import Request
from engine.worker.generation.sampling import FORCED, Output
from engine.worker.scheduling.scheduler import Scheduler
from engine.worker.scheduling.sequences import Chunk
from engine.worker.speculation.proposing import MOST, Proposing, Wish


class Speculation:
    """What is proposed for the requests of one engine. Belongs to the thread that steps."""

    def __init__(self, proposing: Proposing, scheduler: Scheduler, *, possible: bool) -> None:
        """`possible` says that the memory can take tokens back, and more than one row of a
        sequence can have logits."""
        self._proposing = proposing
        self._scheduler = scheduler
        self._is_possible = possible
        self._chunks: dict[int, Chunk] = {}  # with proposals, by id of the sequence
        self._n_accepted: dict[int, int] = {}

    def propose(self, requests: Mapping[int, Request]) -> None:
        """Set what the next step may evaluate of what is proposed."""
        if not self._is_possible:
            return
        ready = [s for s in self._scheduler.active if s.is_next]
        wishes = [
            wish
            for sequence in ready
            if (wish := self._wish(requests[sequence.id])) is not None
        ]
        if wishes:
            self._proposing.propose(wishes, len(ready))

    def _wish(self, request: Request) -> Wish | None:
        if isinstance(request.sampler, OffloadedSampler):
            return None
        n = MOST if request.n_remain < 0 else min(MOST, request.n_remain - 1)
        n = min(n, self._scheduler.n_ctx - len(request.sequence.tokens) - 1)
        return Wish(request.sequence, n) if n > 0 else None

    def begin(self, chunks: Iterable[Chunk]) -> None:
        """These are evaluated."""
        self._chunks = {chunk.sequence.id: chunk for chunk in chunks if chunk.proposed}
        self._n_accepted = dict.fromkeys(self._chunks, 0)

    def outputs(
        self, chunks: Sequence[Chunk], requests: Sequence[Request], indices: Sequence[int]
    ) -> list[Output]:
        """Where the requests whose next token is to be chosen find its logits."""
        return [
            (request, FORCED if chunk.n_forced else index)
            for chunk, request, index in zip(chunks, requests, indices, strict=True)
            if chunk.is_last
        ]

    def confirmed(self, outputs: Iterable[Output]) -> list[Output]:
        """Those of the `outputs`, whose tokens are chosen, that go on with the token proposed
        there; with the place of the next one's logits."""
        if not self._chunks:
            return []
        return [
            (request, self._place(request, index))
            for request, index in outputs
            if self._is_confirmed(request)
        ]

    def _is_confirmed(self, request: Request) -> bool:
        sequence = request.sequence
        if not sequence.n_ahead:  # nothing is proposed there, or the request has ended
            return False
        chunk = self._chunks[sequence.id]
        proposed = chunk.proposed[self._n_accepted[sequence.id]]
        if sequence.tokens.item(len(sequence.tokens) - 1) != proposed:
            self._scheduler.take_back(sequence)
            return False
        self._scheduler.confirm(sequence)
        self._n_accepted[sequence.id] += 1
        return True
