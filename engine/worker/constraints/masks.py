"""Masks: the tokens that a grammar allows next."""

import time
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt
from llguidance import LLMatcher

from engine.worker.backend import Model
from engine.worker.constraints.matching import TOO_COMPLEX, ConstraintError, mask
from engine.worker.tokens import TokenArray

THREADS = 2
MAX_SECONDS = 0.25
"""The time of the processor after which a mask is the last one of its text: others wait for it."""
FREE_SECONDS = 0.01
SLOW_SECONDS = 2.0
"""The time of the processor that all masks of a text may take, beyond `FREE_SECONDS` each."""
INLINE_SECONDS = 2e-4
"""After a mask that took less, the next one is computed at once: mostly it takes a few
microseconds, and handing it to another thread would take longer. Not in a text that had a slow one:
then nobody else in the step waits for the next."""


@dataclass(frozen=True)
class Mask:
    """The tokens that may come next, in ascending order; all of them end the text if `ended`."""

    bits: bytes
    allowed: TokenArray
    ended: bool
    seconds: float  # that it took
    slow_seconds: float = 0.0  # of the processor, beyond those that are free, with those before it


class Masks:
    """Computes masks of a model's vocabulary, in a small pool if they are not quick."""

    def __init__(self, model: Model) -> None:
        self._n_vocab = model.n_vocab
        self._eog = np.array(sorted(model.eog), np.int32)
        self._pool = ThreadPoolExecutor(THREADS, thread_name_prefix="mask")

    def soon(self, matcher: LLMatcher, last: Mask) -> Future[Mask]:
        """`next`, in another thread."""
        return self._pool.submit(self.next, matcher, last)

    def next(self, matcher: LLMatcher, last: Mask | None) -> Mask:
        """The tokens that `matcher` allows next; those of `last` itself if they haven't changed.
        Raises ConstraintError."""
        begun, used = time.perf_counter(), time.thread_time()
        bits = mask(matcher)
        used = time.thread_time() - used
        seconds = time.perf_counter() - begun
        slow = max(0.0, used - FREE_SECONDS) + (last.slow_seconds if last is not None else 0.0)
        if used > MAX_SECONDS or slow > SLOW_SECONDS:
            raise ConstraintError(TOO_COMPLEX)
        if last is not None and bits == last.bits:
            return replace(last, seconds=seconds, slow_seconds=slow)
        flags: npt.NDArray[np.uint8] = np.unpackbits(
            np.frombuffer(bits, np.uint8), count=self._n_vocab, bitorder="little"
        )
        allowed = np.flatnonzero(flags.view(np.bool_)).astype(np.int32)
        if not len(allowed):
            raise ConstraintError("no token can come next")
        ended = len(allowed) <= len(self._eog) and bool(np.isin(allowed, self._eog).all())
        return Mask(bits, allowed, ended, seconds, slow)

    def close(self) -> None:
        """Wait for the threads: what they use is the model's."""
        self._pool.shutdown(cancel_futures=True)
