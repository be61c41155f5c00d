"""Counts of what the steps do, for `GET /metrics`. Always kept: an event costs a fraction of a
microsecond. All times are seconds."""

from collections.abc import Sequence

from specllama.engine.wire.stats import Stats
from specllama.engine.worker.generation.request import Request
from specllama.engine.worker.scheduling.scheduler import Scheduler
from specllama.engine.worker.scheduling.sequences import Chunk


class Counting:
    """The counts of one engine. Belongs to the thread that steps."""

    def __init__(self) -> None:
        self._stats = Stats()
        self._computed = 0.0  # when the last decode had its results, if there is more to do
        self._has_prompt = False  # whether the last decode had prompt tokens in it

    def admitted(self, request: Request, now: float) -> None:
        """`request` has got its first slot."""
        sequence = request.sequence
        self._stats.queue.observe(now - request.arrived)
        self._stats.n_prompt_cached += sequence.n_cached
        self._stats.n_prompt_restored += sequence.n_restored
        self._stats.n_prompt_shared += sequence.n_shared

    def begins(self, now: float) -> None:
        """The device gets its work of a step."""
        if self._computed:
            self._stats.idle_seconds += now - self._computed

    def computed(self, now: float) -> None:
        """It has done that."""
        self._computed = now

    def rests(self) -> None:
        """There is nothing more to do."""
        self._computed = 0.0

    def decoded(self, chunks: Sequence[Chunk], n_busy: int) -> None:
        """`chunks` are evaluated, and none of their requests has its next token yet."""
        n_prompt = sum(c.stop - c.start for c in chunks if not c.sequence.generating)
        self._has_prompt = n_prompt > 0
        self._stats.n_prompt += n_prompt
        self._stats.n_decode += 1
        self._stats.n_busy += n_busy
        for chunk in chunks:
            if (n := len(chunk.proposed) - chunk.n_forced) > 0:
                self._stats.n_drafts += 1
                self._stats.n_drafted += n
        self._stats.n_tokens_max = max([self._stats.n_tokens_max, *(c.stop for c in chunks)])

    def sampled(self, request: Request, now: float) -> None:
        """A token is chosen for `request`, which doesn't count it yet."""
        self._stats.n_predicted += 1
        if request.n_decoded:
            self._stats.inter_token.observe(now - request.last_token)
        else:
            self._stats.first_token.observe(now - request.arrived)

    def stepped(self, seconds: float) -> None:
        """The step of the last decode has taken `seconds`."""
        self._stats.prompt_seconds += seconds if self._has_prompt else 0.0
        self._stats.step.observe(seconds)

    def stats(self, scheduler: Scheduler, n_cells: int) -> Stats:
        """All counts since the start, and how much there is to do now."""
        stats = self._stats
        stats.n_processing = len(scheduler.active)
        stats.n_deferred = scheduler.n_waiting + scheduler.n_paused
        stats.n_cells_used = scheduler.n_cells_used
        stats.n_cells = n_cells
        return stats
