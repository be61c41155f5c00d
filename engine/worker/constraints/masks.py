"""Masks: the tokens that a grammar allows next."""

import time
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt
from llguidance import LLMatcher

from specllama.engine.grammars.compiling import TOO_COMPLEX, ConstraintError, mask
from specllama.engine.worker.backend import Model
from specllama.engine.worker.tokens import TokenArray

THREADS = 2
MAX_SECONDS = 0.25
"""The time of the processor after which a mask is the last one of its text: others wait for it."""
FREE_SECONDS = 0.01
SLOW_SECONDS = 2.0
"""The time of the processor that all masks of a text may take, beyond `FREE_SECONDS` each."""
DENSE = 16
"""Where more than one byte in so many has tokens, all of them are looked at."""
INLINE_SECONDS = 2e-4
"""After a mask that took less, the next one is computed at once: mostly it takes a few
microseconds, and handing it to another thread would take longer. Not in a text that had a slow one:
then nobody else in the step waits for the next."""


@dataclass(frozen=True)
class Mask:
    """The tokens that may come next, in ascending order; all of them end the text if `ended`.
    `stopped`: nothing may come, these are the tokens of the place before."""

    bits: bytes
    allowed: TokenArray
    ended: bool
    seconds: float  # that it took
    slow_seconds: float = 0.0  # of the processor, beyond those that are free, with those before it
    stopped: bool = False

    @property
    def only(self) -> int | None:
        """The token that has to come next, if there is just one and it ends no text."""
        return None if self.ended or len(self.allowed) != 1 else int(self.allowed[0])

    @property
    def is_quick(self) -> bool:
        """True if the next one is computed at once."""
        return self.seconds < INLINE_SECONDS and not self.slow_seconds


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
        allowed = _tokens(bits, self._n_vocab)
        if not len(allowed):
            raise ConstraintError("no token can come next")
        ended = len(allowed) <= len(self._eog) and bool(np.isin(allowed, self._eog).all())
        return Mask(bits, allowed, ended, seconds, slow)

    def close(self) -> None:
        """Wait for the threads: what they use is the model's."""
        self._pool.shutdown(cancel_futures=True)


def _tokens(bits: bytes, n_vocab: int) -> TokenArray:
    """The tokens, of `n_vocab`, whose bits are set, in ascending order."""
    every = np.frombuffer(bits, np.uint8)
    some = every.nonzero()[0]
    if len(some) > len(every) // DENSE:
        flags: npt.NDArray[np.uint8] = np.unpackbits(every, count=n_vocab, bitorder="little")
        return np.flatnonzero(flags.view(np.bool_)).astype(np.int32)
    row, bit = np.unpackbits(every[some][:, None], axis=1, bitorder="little").nonzero()
    tokens: TokenArray = (8 * some[row] + bit).astype(np.int32)
    return tokens[: tokens.searchsorted(n_vocab)]
