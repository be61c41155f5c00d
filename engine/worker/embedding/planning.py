"""Chooses the inputs, or their parts, that the next step evaluates. Plain data.

The inputs are admitted as the texts of a server that generates are
(`engine.worker.scheduling.admission`): by priority, then fairly by tokens, so that a call with
thousands of inputs doesn't delay the others.
"""

from collections import deque
from collections.abc import Sequence

from specllama.engine.worker.embedding.jobs import EmbeddingJob, Input, InputPart
from specllama.engine.worker.scheduling.admission import AdmissionQueue

MAX_SKIPPED = 64
"""Maximum number of requests skipped in one step because their next input doesn't fit."""


class EmbeddingBatcher:
    """Shares the steps among all requests with pending inputs. A step has at most `n_batch` tokens
    and `n_sequences` inputs; `n_cells` is the number of KV cells of the context, 0 without
    memory."""

    def __init__(self, n_sequences: int, n_batch: int, n_cells: int) -> None:
        self._n_sequences = n_sequences
        self._n_batch = n_batch
        self._n_cells = n_cells
        self.queue: AdmissionQueue[EmbeddingJob] = AdmissionQueue()
        """Requests with pending inputs."""
        self.n_tokens = 0
        """The number of their tokens."""
        self._alone: deque[Input] = deque()  # inputs whose step with others lacked memory
        self.long: Input | None = None
        """The input that takes several steps, if there is one."""

    @property
    def has_work(self) -> bool:
        return bool(self.queue.n_waiting or self._alone) or self.long is not None

    def add(self, job: EmbeddingJob, now: float = 0.0) -> None:
        self.queue.add(job.ticket, now)
        self.n_tokens += job.n_waiting

    def remove(self, job: EmbeddingJob) -> Input | None:
        """Forget a request. Returns its unfinished input, if it has one."""
        if job.n_begun < len(job.inputs):
            self.queue.remove(job.ticket)
            self.n_tokens -= job.n_waiting
        self._alone = deque(input for input in self._alone if input.job is not job)
        if self.long is None or self.long.job is not job:
            return None
        begun, self.long = self.long, None
        return begun

    def end_long(self) -> None:
        """Forget the long input, if it is complete."""
        if self.long is not None and not self.long.n_pending:
            self.long = None

    def put_apart(self, parts: Sequence[InputPart]) -> None:
        """Restart these inputs, each in steps of its own. The caller removes their tokens from the
        context."""
        self.long = None
        for part in parts:
            part.input.restart()
            part.input.is_alone = True
            self._alone.append(part.input)

    def plan(self, now: float = 0.0) -> list[InputPart]:
        """The parts of the next step; at least one, if there is work. A request whose next input
        doesn't fit with the others comes first in the next step."""
        long, room = self.long, self._n_batch
        if self._n_cells:
            room = min(room, self._n_cells)
        if long is None and self._alone:
            return [self._begin(self._alone.popleft(), room)]
        parts: list[InputPart] = []
        if long is not None:
            if long.span is not None:
                return [self._media_part(long)]
            share = max(1, room // 2) if self.queue.n_waiting and not long.is_alone else room
            parts.append(InputPart(long, min(long.n_text, share)))
            if long.is_alone:
                return parts
            room = min(room - parts[0].n, self._n_cells - long.n_past - parts[0].n)
        sequences = [i for i in range(self._n_sequences) if long is None or i != long.sequence]
        n_skipped = 0
        while room > 0 and sequences and n_skipped < MAX_SKIPPED:
            if (ticket := self.queue.first(now)) is None:
                break
            job = ticket.item
            next_ = Input(job, job.n_begun)
            fits = self._is_long(next_) or next_.n_pending <= room
            is_second = self._is_long(next_) and self.long is not None
            if not fits or is_second or (not next_.n_text and parts):
                self.queue.set_aside(ticket)
                n_skipped += 1
                continue
            next_.sequence = sequences.pop()
            part = self._begin(next_, room)
            parts.append(part)
            room -= room if next_.span is not None else part.n
            self._begun(job, now)
        self.queue.restore()
        return parts

    def _begun(self, job: EmbeddingJob, now: float) -> None:
        """The next input of `job` has begun."""
        self.n_tokens -= len(job.inputs[job.n_begun])
        job.n_begun += 1
        if job.n_begun < len(job.inputs):
            self.queue.serve_part(job.ticket, now, len(job.inputs[job.n_begun]))
        else:
            self.queue.admit(job.ticket, now)
            self.queue.use(job.ticket, job.ticket.n_tokens)
            self.queue.leave(job.ticket)

    def _is_long(self, input: Input) -> bool:
        return input.n_pending > self._n_batch or input.has_media

    def _begin(self, input: Input, room: int) -> InputPart:
        """The first part of `input`."""
        if self._is_long(input):
            self.long = input
        if input.span is not None:
            return self._media_part(input)
        return InputPart(input, min(input.n_text, room))

    def _media_part(self, input: Input) -> InputPart:
        """The next part of the medium at the current position of `input`, for a step of its own."""
        span = input.span
        assert span is not None
        return InputPart(input, min(span.stop - input.n_past, self._n_batch))
