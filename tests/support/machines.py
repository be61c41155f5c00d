"""Simulated machines: the cost of a step there, in seconds, without noise."""

from bisect import bisect
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from specllama.engine.worker.scheduling.sweep import Sweep, measure


@dataclass(frozen=True)
class Machine:
    """`prompts(n, length)` are the seconds that `n` prompt tokens add to the `decode` seconds of
    generating sequences in the same step; `shared` seconds are saved in such a step."""

    name: str
    decode: float
    prompts: Callable[[int, float], float]
    shared: float = 0.0

    def seconds(self, n_generating: int, n: int, length: float) -> float:
        decode = self.decode if n_generating else 0.0
        if not n:
            return decode
        return max(decode, decode - self.shared * bool(n_generating) + self.prompts(n, length))

    def sweep(self) -> Sweep:
        """Returns the measurements that the engine makes at its start. Rows with logits take as
        long as tokens of prompts."""

        def evaluate(lengths: Sequence[int], every: bool) -> float:
            singles, n = (lengths[:-1], lengths[-1]) if lengths[-1] > 1 else (lengths, 0)
            return self.seconds(len(singles), n, 0)

        return measure(evaluate, n_most=512, n_sequences=4, n_rows=32)

    def times(self, factor: float) -> "Machine":
        """Returns the machine with all times multiplied by `factor`, as by other work on it."""
        return Machine(
            f"{factor} x {self.name}",
            factor * self.decode,
            lambda n, length: factor * self.prompts(n, length),
            factor * self.shared,
        )


def _line(xs: Sequence[float], ys: Sequence[float], x: float) -> float:
    """Returns y at `x`: interpolated linearly between points, and in proportion outside of them."""
    if x <= xs[0]:
        return ys[0] * x / xs[0] if xs[0] else ys[0]
    if x >= xs[-1]:
        return ys[-1] * x / xs[-1]
    i = bisect(xs, x)
    return ys[i - 1] + (ys[i] - ys[i - 1]) * (x - xs[i - 1]) / (xs[i] - xs[i - 1])


def measured(
    rows: Sequence[int], tables: dict[int, Sequence[float]], decode: float
) -> Callable[[int, float], float]:
    """Returns seconds by rows and length, from `tables` of the milliseconds of whole steps by
    `rows`, for each length. Steps with fewer than 64 rows are interpolated separately."""
    split = next((i for i, n in enumerate(rows) if n >= 64), 0)
    lengths = sorted(tables)

    def seconds(n: int, length: float) -> float:
        part = slice(0, split) if n < 64 and split else slice(split, None)
        xs = rows[part]
        at = [1e-3 * _line(xs, tables[at][part], n) - decode for at in lengths]
        if len(at) == 1:
            return at[0]
        i = min(max(bisect(lengths, length), 1), len(lengths) - 1)
        each = (at[i] - at[i - 1]) / (lengths[i] - lengths[i - 1])
        return max(1e-6, at[i - 1] + each * (length - lengths[i - 1]))

    return seconds


def per_token(classes: dict[int, float]) -> Callable[[int, float], float]:
    """Returns seconds, from milliseconds per prompt token by the largest size of a class."""

    def seconds(n: int, _: float) -> float:
        size = next((size for size in classes if size >= n), max(classes))
        return 1e-3 * classes[size] * n

    return seconds


BUSY = Machine("4 busy cores", 0.030, per_token({32: 20.0, 64: 28.0, 96: 4.3, 128: 4.5}))
"""bench-100m, 1,536 tokens before, separate caches: the smallest size is a trap."""

ROWS = (1, 4, 8, 16, 24, 32, 48, 64, 80, 96, 128, 192, 256, 512)
TWO_CORES = Machine(
    "2 cores",
    0.0115,
    measured(
        ROWS,
        {
            0: (11.5, 12, 12.9, 15.6, 18.4, 21.5, 28.2, 32.6, 38.8, 43.3, 54.1, 76.8, 102, 204),
            1536: (16, 29, 45, 78, 110, 144, 214, 68, 75, 79, 110, 152, 197, 362),
            6144: (30, 79, 143, 266, 398, 524, 773, 177, 192, 200, 290, 386, 482, 848),
        },
        0.0115,
    ),
)
"""bench-100m with two streams, unified cache: short prompts are cheap in any size; after long
texts a step of 32 tokens costs three times as much as one of 64."""

FAST = Machine("fast CPU", 2e-3, lambda n, length: n * (5e-5 + 1e-8 * length))
GPU = Machine("GPU", 0.011, lambda n, length: 0.0115 + n * (2e-5 + 2e-9 * length), shared=0.011)
LARGE_GPU_MODEL = Machine(
    "GPU, large model", 0.035, lambda n, length: 0.036 + n * (4e-4 + 1e-8 * length), shared=0.035
)
STAIRS = Machine("GPU, stairs", 0.008, lambda n, _: 0.004 * -(-n // 64) + 0.001 * -(-n // 512))
OVERFLOW = Machine("cache that overflows", 0.010, lambda n, _: n * 1.5e-4 if n <= 192 else n * 4e-4)
SLOW = Machine("slow machine", 0.3, lambda n, length: n * (0.06 + 1e-6 * length))
MISSES = Machine("misses the target", 0.15, lambda n, _: 0.02 + 0.01 * n)
LARGE_MODEL = Machine(
    "2 cores, large model",
    0.070,
    measured(
        (1, 32, 72, 96, 128, 512),
        {
            0: (70, 580, 1150, 1520, 2000, 8000),
            1500: (80, 1200, 1500, 1950, 2700, 10200),
        },
        0.070,
    ),
)
"""1.3 B parameters in Q4_0 with two streams: no size keeps the target, and after long texts the
smallest is the slowest."""

MACHINES = (
    *(BUSY, TWO_CORES, FAST, GPU, LARGE_GPU_MODEL, STAIRS, OVERFLOW, SLOW, MISSES, LARGE_MODEL),
)
