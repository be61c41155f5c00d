"""The second tier: saves texts evicted from the KV cache to host memory, and optionally from there
to files, and restores them when that is faster than computing them again.

A text is restored if computing the saved tokens would take longer than fetching its bytes, both by
measurement. It is saved unless that delays generating sequences too much: a text whose copy doesn't
fit into `max_stall` of a step is dropped instead.

A text that can't be cut is saved with its checkpoints, which are in host memory already. It can be
restored up to any of them.
"""

import logging
import math
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from statistics import median_low
from typing import Protocol

from specllama.engine import system
from specllama.engine.worker.backend import BackendError
from specllama.engine.worker.cache.block_hashes import HashedText
from specllama.engine.worker.cache.checkpoints import Checkpoint
from specllama.engine.worker.cache.disk_cache import DiskCache, Stored
from specllama.engine.worker.cache.host_cache import HostCache, KeptText, StateArray
from specllama.engine.worker.cache.texts import Found, Key, Near
from specllama.engine.worker.media.registry import ids_in
from specllama.engine.worker.tokens import TokenArray

log = logging.getLogger("specllama.engine.worker.cache.second_tier")

MIN_TOKENS = 8
"""Minimum length of a saved text, and minimum number of tokens that a restore must save."""
FIRST_GUESS = 1e-9
"""Assumed seconds per byte of a copy. It counts as the first measurement."""
RECENT = 5
"""Number of measurements whose median is used: one that the machine has disturbed has no effect."""
PASSES = 15_000
"""Attention over so many cells takes about as long as the rest of the work for a prompt token:
30,000 for a model with 8 billion parameters on an H200, 10,000 for 100 million on a CPU, and 6,000
for 4 million there."""
SAMPLE = 512
"""The number of prompt tokens whose time is compared with that."""
LONE_SECONDS = 1.0
"""If no sequence generates, a step may spend so many seconds on removing idle texts, or remove one
that takes longer."""


class States(Protocol):
    """Copies the cells of a sequence (`engine.worker.backend.Context`)."""

    def first_cut_of_copy(self, n_tokens: int) -> int: ...
    def state_size(self, sequence: int) -> int: ...
    def save_sequence(self, sequence: int) -> StateArray: ...
    def restore_sequence(self, sequence: int, state: StateArray, n_tokens: int) -> None: ...


class _Speed:
    """Seconds per byte, measured."""

    def __init__(self) -> None:
        self.each = FIRST_GUESS
        self._recent = deque([FIRST_GUESS], maxlen=RECENT)

    def observe(self, n_bytes: int, seconds: float) -> None:
        if n_bytes:
            self._recent.append(seconds / n_bytes)
            self.each = median_low(self._recent)


class SecondTier:
    """`engine.worker.cache.texts.Tier` over host memory and, if there is one, a `DiskCache`.

    `is_busy()` is true while a sequence generates. `compute_seconds(n, start)` is the time to
    compute `n` tokens from position `start` on, 0 if unknown. `max_stall` is in seconds, 0 for no
    limit.
    """

    def __init__(
        self,
        states: States,
        host: HostCache,
        disk: DiskCache | None,
        *,
        is_busy: Callable[[], bool],
        compute_seconds: Callable[[int, int], float],
        max_stall: float,
    ) -> None:
        self._states = states
        self._host = host
        self._disk = disk
        self._is_busy = is_busy
        self._compute_seconds = compute_seconds
        self._max_stall = max_stall or math.inf
        self._stall = 0.0  # so far in this step
        self._saving, self._restoring = _Speed(), _Speed()

    # ---- the interface of engine.worker.cache.texts.Tier ---------------------------

    def offer(
        self,
        sequence: int,
        tokens: TokenArray,
        key: Key,
        checkpoints: Sequence[Checkpoint] = (),
        owner: int = 0,
    ) -> bool:
        n = len(checkpoints)
        if len(tokens) < MIN_TOKENS:
            return False
        if self._host.covers(tokens, key, n):
            return True
        if self._disk is not None and self._host.limit == 0 and self._disk.covers(tokens, key, n):
            return True
        seconds = self._states.state_size(sequence) * self._saving.each
        if self._is_busy() and self._stall + seconds > self._max_stall:
            log.debug(
                "a text of %d tokens is not saved: that would take %.3f s", len(tokens), seconds
            )
            return False
        if (saved := self._save(sequence, tokens, key, checkpoints, owner)) is None:
            return False
        for text in self._host.put(saved):
            if self._disk is not None:
                self._disk.write(text)
        return self._disk is not None or self._host.covers(tokens, key)

    def is_worth(self, n_tokens: int, n_bytes: int, n_passed: float) -> bool:
        if self._disk is None and self._host.limit is not None and n_bytes > self._host.limit:
            return False
        saving, restoring = n_bytes * self._saving.each, n_bytes * self._restoring.each
        is_busy = self._is_busy()
        most = self._max_stall if is_busy else LONE_SECONDS
        if self._stall + saving > most and (is_busy or self._stall):
            return False
        lost = n_passed / PASSES * self._compute_seconds(SAMPLE, 0) / SAMPLE
        return lost > saving + restoring and self._is_faster(0, n_tokens, restoring)

    def find(self, tokens: TokenArray, key: Key, n_held: int) -> Found | None:
        kept = self._host.find(tokens, key)
        best = None
        if kept is not None:
            text, n = kept
            if self._is_faster(n_held, n, text.state.nbytes * self._restoring.each):
                best = Found(n, len(text.tokens), text)
                n_held = n
        if self._disk is None:
            return best
        stored = self._disk.find(tokens, key)
        if stored is None or not self._is_faster(n_held, stored.n, self._seconds_from_disk(stored)):
            return best
        return Found(stored.n, stored.length, self._disk.fetch(stored), is_file=True)

    def common_prefix(self, tokens: TokenArray, key: Key) -> int:
        n = self._host.common_prefix(tokens, key)
        return n if self._disk is None else max(n, self._disk.common_prefix(tokens, key))

    def near(self, tokens: TokenArray, key: Key, n_rest: int) -> Near:
        host = self._host.near(tokens, key, n_rest)
        if self._disk is None:
            return host
        disk = self._disk.near(tokens, key, n_rest)
        nearest = max(host, disk, key=lambda near: near.at.n)
        return nearest._replace(n_usable=max(host.n_usable, disk.n_usable))

    def keys(self) -> Iterator[Key]:
        yield from self._host.keys()
        if self._disk is not None:
            yield from self._disk.keys()

    def restorable(self) -> Iterator[HashedText]:
        for text in reversed(self._host):
            seconds = text.state.nbytes * self._restoring.each
            if self._is_faster(0, len(text.tokens), seconds):
                yield HashedText(text.tokens, text.key, text.hashes)

    def n_bytes_of(self, owner: int) -> int:
        return self._host.n_bytes_of(owner)

    def drop_oldest_of(self, owner: int) -> bool:
        return self._host.drop_oldest_of(owner)

    def restore(self, sequence: int, found: Found) -> Sequence[Checkpoint] | None:
        text = found.text
        assert isinstance(text, KeptText)
        started = system.now()
        try:
            self._states.restore_sequence(sequence, text.state, len(text.tokens))
        except BackendError as error:
            log.warning("a kept text of %d tokens can't be used: %s", len(text.tokens), error)
            self._host.drop(text)
            if self._disk is not None:
                self._disk.forget(text)
            return None
        self._restoring.observe(text.state.nbytes, system.now() - started)
        self._host.use(text)
        if self._disk is not None:
            self._disk.use(text)
        return text.checkpoints

    @property
    def n_bytes(self) -> int:
        """The size of the texts in host memory."""
        return self._host.n_bytes

    def media(self) -> Iterator[int]:
        """The ids of the media in all kept texts."""
        for text in self._host:
            yield from ids_in(text.tokens)
        if self._disk is not None:
            yield from self._disk.media()

    # ---- of the engine -------------------------------------------------------------------

    def begin_step(self) -> None:
        """Begin a step, which may spend `max_stall` on saving texts. Handles finished file
        operations."""
        self._stall = 0.0
        if self._disk is not None:
            self._disk.poll()

    def wait(self, seconds: float) -> None:
        """Wait until a fetch is done, at most `seconds`. Called when every sequence waits for
        one."""
        if self._disk is not None:
            self._disk.wait(seconds)

    def close(
        self,
        finished: Iterable[tuple[int, TokenArray, Key, Sequence[Checkpoint]]],
        seconds: float,
    ) -> None:
        """Write texts to files for at most `seconds`: first the `finished` texts (sequence, tokens,
        key, checkpoints) in their order, then the texts in host memory."""
        disk = self._disk
        if disk is None:
            return
        deadline = system.now() + seconds
        for sequence, tokens, key, checkpoints in finished:
            if system.now() > deadline:
                break
            if len(tokens) < MIN_TOKENS or disk.covers(tokens, key, len(checkpoints)):
                continue
            if (saved := self._save(sequence, tokens, key, checkpoints)) is not None:
                disk.write(saved)
        for text in reversed(list(self._host)):
            disk.write(text)
        disk.close(deadline)

    def _save(
        self,
        sequence: int,
        tokens: TokenArray,
        key: Key,
        checkpoints: Sequence[Checkpoint],
        owner: int = 0,
    ) -> KeptText | None:
        """Copy the cells of a text to host memory; None if there is no memory for the copy."""
        started = system.now()
        try:
            state = self._states.save_sequence(sequence)
        except BackendError as error:
            log.warning("a text of %d tokens is not kept: %s", len(tokens), error)
            return None
        elapsed = system.now() - started
        self._saving.observe(state.nbytes, elapsed)
        self._stall += elapsed
        first_cut = self._states.first_cut_of_copy(len(tokens))
        return KeptText(tokens.copy(), key, state, first_cut, tuple(checkpoints), owner)

    def _is_faster(self, n_held: int, n: int, seconds: float) -> bool:
        """True if restoring tokens `n_held` up to `n` within `seconds` is faster than computing
        them, or if the time to compute them is unknown."""
        if n - n_held < MIN_TOKENS:
            return False
        computing = self._compute_seconds(n - n_held, n_held)
        return not computing or seconds < computing

    def _seconds_from_disk(self, stored: Stored) -> float:
        assert self._disk is not None
        return stored.n_bytes * (self._restoring.each + self._disk.seconds_per_byte)
