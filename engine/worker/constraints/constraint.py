"""The constraint of one text: the masks along it, and the tokens that it forces.

Where a mask holds one token, there is nothing to choose: the matcher goes on behind it at once, as
far as the next place with a choice, and the masks on the way are kept. So what is forced costs
nothing more to know than to generate.
"""

from collections import deque
from collections.abc import Sequence
from copy import copy
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt
from llguidance import LLMatcher

from specllama.engine import system
from specllama.engine.grammars.compiling import TOO_COMPLEX, ConstraintError, consume, mask
from specllama.engine.grammars.gbnf import GrammarError
from specllama.engine.worker.backend import Model
from specllama.engine.worker.constraints.lazy import Waiting
from specllama.engine.worker.constraints.vocabulary import Vocabulary
from specllama.engine.worker.tokens import TokenArray

# ---- Masks: the tokens that a grammar allows next.


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
        self._pool = system.pool(THREADS, "mask")

    def soon(self, matcher: LLMatcher, last: Mask) -> system.Future[Mask]:
        """`next`, in another thread."""
        return self._pool.submit(self.next, matcher, last)

    def next(self, matcher: LLMatcher, last: Mask | None) -> Mask:
        """The tokens that `matcher` allows next; those of `last` itself if they haven't changed.
        Raises ConstraintError."""
        begun, used = system.now(), system.processor_seconds()
        bits = mask(matcher)
        used = system.processor_seconds() - used
        seconds = system.now() - begun
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


FEW = 32
"""The spellings of a forced text are no more: its beginnings that are tokens."""

LOOK_SECONDS = 1e-3


@dataclass(frozen=True)
class Compiled:
    """A grammar before its first token; never advanced itself. `waiting` is of lazy ones,
    `relaxed` as in `Guided`."""

    matcher: LLMatcher
    mask: Mask
    vocabulary: Vocabulary
    waiting: Waiting | None
    relaxed: tuple[str, ...]


class Constraint:
    """The constraint of one generation. Belongs to the thread that steps."""

    def __init__(self, compiled: Compiled, masks: Masks) -> None:
        self._matcher = compiled.matcher.deep_copy()  # stands behind `_ahead`
        self._vocabulary = compiled.vocabulary
        self._masks = masks
        self._mask = compiled.mask  # of the present place
        self._pending: system.Future[Mask] | None = None  # the same, while it is computed
        self._looks = True  # for what is forced behind a slow mask
        # Forced tokens, with the mask behind each, or why there is none.
        self._ahead: deque[tuple[int, Mask | ConstraintError]] = deque()

    def _current(self) -> Mask:
        if self._pending is not None:
            self._mask = self._pending.result()
            self._pending = None
        return self._mask

    @property
    def allowed(self) -> TokenArray:
        """The ids of the tokens that may come next, never empty; waits for them if they are
        still being computed. Raises ConstraintError if the grammar has become too complex."""
        return self._current().allowed

    @property
    def ended(self) -> bool:
        """True if nothing but the end of the text may come next. Waits and raises as `allowed`
        does."""
        return self._current().ended

    @property
    def awaited(self) -> system.Future[Any] | None:
        """What `allowed` and `ended` wait for; None if they don't."""
        pending = self._pending
        return None if pending is None or pending.done() else pending

    def forced(self, n: int) -> list[int]:
        """As `Guide.forced`. Masks that take long end it: they are left to another thread."""
        if n <= 0 or self.awaited is not None:
            return []
        try:
            last: Mask | ConstraintError = self._current()
        except ConstraintError:  # for whoever asks what is allowed
            return []
        if self._ahead:
            last = self._ahead[-1][1]
        while isinstance(last, Mask) and last.is_quick and len(self._ahead) + 1 < n:
            if (token := last.only) is None:
                break
            try:
                last = self._behind([token], last)
            except ConstraintError as error:
                last = error
            self._ahead.append((token, last))
        tokens = [token for token, _ in self._ahead]
        if isinstance(last, Mask) and last.only is not None:
            tokens.append(last.only)
        return tokens[:n]

    def likely(self, n: int) -> list[int]:
        """As `Guide.likely`: where the grammar lets a text be spelled in several ways, as the
        tokenizer spells it."""
        tokens = self.forced(n)
        if len(tokens) >= n or self.awaited is not None:
            return tokens
        try:
            return (tokens + self._spelling(self._behind_all(tokens), n - len(tokens)))[:n]
        except ConstraintError:
            return tokens

    def fork(self) -> "Constraint":
        """As `Guide.fork`."""
        other = copy(self)
        other._matcher, other._ahead = self._matcher.deep_copy(), self._ahead.copy()
        return other

    def advance(self, token: int) -> bool:
        """Go on behind `token`, which was one of the allowed ones and ends no text, and begin
        to compute what may follow it. True if it is certain already that nothing does.

        Raises ConstraintError.
        """
        if not self._ahead:
            return self._consume([token])
        forced, behind = self._ahead.popleft()
        if token != forced:
            raise ConstraintError("a token that the constraint doesn't allow")
        if isinstance(behind, ConstraintError):
            raise behind
        self._mask = behind
        return behind.stopped

    def spell(self, text: bytes) -> bool:
        """Go on behind `text`, as `advance` does behind a token. Raises ConstraintError."""
        assert not self._ahead
        return self._consume(self._vocabulary.spelled(text))

    def begin_behind(self, text: str, refusal: str) -> None:
        """Let `text` be the beginning, as `spell` does. Raises GrammarError, with `refusal`."""
        try:
            self.spell(text.encode())
        except ConstraintError:
            raise GrammarError(refusal) from None

    def _consume(self, tokens: list[int]) -> bool:
        last = self._current()
        if last.is_quick:
            self._mask = self._behind(tokens, last)
            return self._mask.stopped
        consume(self._matcher, tokens)
        if self._matcher.is_stopped():
            self._mask = replace(last, ended=True, stopped=True)
            return True
        if last.only is None and not last.slow_seconds and self._forces():
            self._mask = self._masks.next(self._matcher, last)
        else:
            self._pending = self._masks.soon(self._matcher, last)
        return False

    def _forces(self) -> bool:
        """True if something is forced here: where the choice before was slow, this is not. A long
        text that is forced takes long, and is not looked for again."""
        if not self._looks:
            return False
        begun = system.now()
        forces = bool(self._matcher.compute_ff_tokens())
        self._looks = system.now() - begun < LOOK_SECONDS
        return forces and self._looks

    def _behind(self, tokens: list[int], last: Mask) -> Mask:
        """Go on behind `tokens`: the mask there. Raises ConstraintError."""
        consume(self._matcher, tokens)
        if self._matcher.is_stopped():
            return replace(last, ended=True, stopped=True)
        return self._masks.next(self._matcher, last)

    def _behind_all(self, tokens: Sequence[int]) -> "Constraint":
        """What the constraint is behind `tokens`. Raises ConstraintError."""
        other = self.fork()
        for token in tokens:
            other.advance(token)
        return other

    def _spelling(self, ahead: "Constraint", n: int) -> list[int]:
        """A text that is forced where `ahead` stands, in up to `n` tokens of the tokenizer."""
        text, n_steps = b"", 0
        while n_steps < n and (token := ahead._longest()) is not None:
            text, n_steps = text + self._vocabulary.texts[token], n_steps + 1
            ahead.advance(token)
        if not text:
            return []
        return list(self._vocabulary.tokenizer.tokenize_bytes(text, parse_special=True))[:n]

    def _longest(self) -> int | None:
        """The longest token that spells a forced text, as far as this shows in the masks here and
        behind the second longest; None if there is a choice. Raises ConstraintError."""
        if self.awaited is not None or self._current().ended or not self._mask.is_quick:
            return None
        spellings = self._spellings()
        if len(spellings) < 2:
            return spellings[0] if spellings else None
        texts = self._vocabulary.texts
        *_, shorter, longest = spellings
        rest = texts[longest].removeprefix(texts[shorter])
        behind = self._behind_all([shorter])
        if behind.awaited is not None or behind.ended or len(behind.allowed) > FEW:
            return None
        others = [texts[token] for token in behind.allowed.tolist()]
        return longest if all(_agree(text, rest) for text in others) else None

    def _spellings(self) -> list[int]:
        """The allowed tokens, if each one begins the next: the shorter before the longer."""
        if len(self.allowed) > FEW:
            return []
        texts = self._vocabulary.texts
        tokens = sorted(self.allowed.tolist(), key=lambda token: len(texts[token]))
        longest = texts[tokens[-1]]
        return (
            tokens
            if all(t and longest.startswith(t) for t in map(texts.__getitem__, tokens))
            else []
        )


def _agree(text: bytes, other: bytes) -> bool:
    """True if one of the texts, which aren't empty, begins with the other one."""
    return bool(text) and (text.startswith(other) or other.startswith(text))
