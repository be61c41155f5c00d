"""Counters of an engine process's work, for `GET /metrics`.

Counting costs a fraction of a microsecond per event. `--metrics` controls access to the counts. All
times are in seconds.
"""

from bisect import bisect_left
from typing import Final, Literal

import msgspec

from specllama.engine.wire.devices import DeviceMemory

TOKEN_BOUNDS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5)
"""Upper bounds of the buckets for step times and inter-token times."""
WAIT_BOUNDS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0)
"""The same for queue times and times to the first token, which may be longer."""


MissReason = Literal[
    "new",  # no cached text has it
    "edited",  # a cached text has another token at its place
    "evicted",  # it was cached, and is no longer
    "adapter",  # it is cached for other scales of LoRA adapters
    "key",  # it is cached for another API key
    "media",  # a cached text has another image or sound at its place
    "window",  # it is cached in memory that can't be cut there
    "shift",  # its cells were moved, so they are not exact
    "running",  # another request is computing it
    "cost",  # it is cached, but computing it is faster, or there is no room for it
    "disabled",  # the request doesn't use the cache
]
"""Why the first prompt token that wasn't cached had to be computed
(`engine.worker.scheduling.misses`)."""
REQUIRED = "none"
"""Stands for no reason: only the tokens that are always computed had to be."""


class Histogram(msgspec.Struct, array_like=True):
    """A histogram: `counts[i]` values up to `bounds[i]`; the last count is for values above all
    bounds. `total` is the sum of all values."""

    bounds: tuple[float, ...]
    counts: list[int]
    total: float = 0.0

    @classmethod
    def of(cls, bounds: tuple[float, ...]) -> "Histogram":
        return cls(bounds, [0] * (len(bounds) + 1))

    def observe(self, value: float) -> None:
        self.counts[bisect_left(self.bounds, value)] += 1
        self.total += value

    @property
    def count(self) -> int:
        return sum(self.counts)

    def cumulative(self) -> list[int]:
        """The numbers of values up to each bound; the last one is the total number."""
        sums, so_far = [], 0
        for count in self.counts:
            so_far += count
            sums.append(so_far)
        return sums


def _waits() -> Histogram:
    return Histogram.of(WAIT_BOUNDS)


class Stats(msgspec.Struct, kw_only=True):
    """The counts of one engine process since its start.

    `inter_token` has one value for each token except a request's first one, so its count and total
    are the tokens and the time of all generation after the first tokens. `step` has the time of
    each step, `prompt_seconds` the time of all steps with prompt tokens. `idle_seconds` is the time
    from the result of each decode to the next decode, while there was work. `n_busy` is the sum of
    busy slots over all steps.
    """

    n_prompt: int = 0  # tokens evaluated
    n_prompt_cached: int = 0
    n_prompt_shared: int = 0  # of the cached ones, shared with another text that kept them
    n_prompt_restored: int = 0  # of the cached ones, from the second tier
    n_prompt_from_files: int = 0  # of the restored ones
    n_prompt_missed: dict[str, int] = {}  # computed ones, by `MissReason` or `REQUIRED`
    prompt_seconds: float = 0.0
    idle_seconds: float = 0.0
    n_predicted: int = 0
    n_decode: int = 0  # number of decodes
    n_busy: int = 0
    n_tokens_max: int = 0  # of one sequence
    n_drafts: int = 0  # proposals that were evaluated
    n_drafted: int = 0  # tokens of these
    n_drafts_accepted: int = 0  # of these, confirmed ones
    n_preempted: int = 0  # requests that gave their slots to requests with better priorities
    n_refused: int = 0  # requests refused by the limits of the queue, or by their deadlines
    queue: Histogram = msgspec.field(default_factory=_waits)
    first_token: Histogram = msgspec.field(default_factory=_waits)
    step: Histogram = msgspec.field(default_factory=lambda: Histogram.of(TOKEN_BOUNDS))
    inter_token: Histogram = msgspec.field(default_factory=lambda: Histogram.of(TOKEN_BOUNDS))

    # Filled in on request:
    n_processing: int = 0
    n_deferred: int = 0
    n_tokens_waiting: int = 0  # uncached prompt tokens of the requests that wait
    wait_seconds: float = 0.0  # estimated wait for a slot, of a request that arrives now
    n_tokens_running: int = 0  # of the texts in slots, with their prompts' unevaluated tokens
    n_cells_running: int = 0  # cells of the texts in slots; the others are only cached
    n_cells_used: int = 0
    n_cells: int = 0
    n_bytes_cache_ram: int = 0  # texts of the second tier in host memory
    n_bytes_checkpoints: int = 0
    n_bytes_constraints: int = 0  # cached compiled constraints
    n_bytes_resident: int = 0  # of the whole process; 0 if unknown
    devices: list[DeviceMemory] = []

    # For a model with replicas, as far as they have answered:
    replicas: dict[str, "Stats"] = {}  # of each one, by its name
    report_age: float = 0.0  # of a replica: seconds since it last reported its cache and load

    def cache_usage(self) -> float:
        """The fraction of the KV cache that running requests use."""
        return self.n_cells_running / self.n_cells if self.n_cells else 0.0

    def tokens_per_second(self) -> float:
        """The tokens per second that all running requests get together, estimated from the average
        time between tokens since the start."""
        between = self.inter_token
        return self.n_processing * between.count / between.total if between.total else 0.0


BLOCK: Final = 32
"""Tokens of a block, the unit in which replicas of a model compare their cached texts. Computing
fewer tokens than these takes about one step, which is no reason to prefer a replica. With 32, the
8,192 hashes (64 KiB) of a digest cover 262,144 tokens, and hashing costs 0.02 microseconds per
token, a small part of the time for tokenizing."""


class ReplicaLoad(msgspec.Struct, frozen=True, array_like=True):
    """The load of one replica of a model, which it reports to the server that chooses among the
    replicas (`engine.fleet.placing`). 0 is an unknown time."""

    n_slots: int = 0
    n_busy: int = 0  # slots with a running text
    n_waiting: int = 0  # texts that wait for a slot
    n_tokens_waiting: int = 0  # uncached prompt tokens of these, and the rest of running prompts
    prompt_seconds: float = 0.0  # of one prompt token, measured
    step_seconds: float = 0.0  # of a step without prompts and with one more text than now, measured
    wait_seconds: float = 0.0  # estimated wait for a slot, with the prompts before it
