"""The constraint of one text: its masks, and the tokens that it forces.

Where a mask contains a single token, nothing has to be chosen: the matcher advances past it at
once, up to the next place with a choice, and the masks on the way are kept. So finding forced
tokens costs no more than generating them.
"""

from collections import deque
from collections.abc import Sequence
from contextlib import suppress
from copy import copy
from dataclasses import dataclass, replace
from typing import Any

from llguidance import LLMatcher

from specllama.engine import system
from specllama.engine.grammars.compiling import TOO_COMPLEX, ConstraintError, consume, mask
from specllama.engine.grammars.gbnf import GrammarError
from specllama.engine.worker.backend import Model
from specllama.engine.worker.constraints.lazy import Waiting
from specllama.engine.worker.constraints.vocabulary import Vocabulary
from specllama.engine.worker.tokens import TokenSet

# ---- Masks: the tokens that a grammar allows next.


THREADS = 2
MAX_SECONDS = 0.25
"""Maximum CPU time of one mask. A text that exceeds it fails, since other requests wait for the
mask."""
FREE_SECONDS = 0.01
SLOW_SECONDS = 2.0
"""Maximum CPU time of all masks of a text, not counting the first `FREE_SECONDS` of each."""
INLINE_SECONDS = 2e-4
"""After a mask that took less than this, the next one is computed inline, while a device computes:
usually it takes a few microseconds, less than passing it to another thread. After a slow mask in
the same text, masks are never computed inline, so that other sequences of the step don't wait."""


@dataclass(frozen=True)
class Mask:
    """The allowed next tokens. `ended`: all of them end the text. `stopped`: no token is allowed,
    and `allowed` is that of the place before."""

    bits: bytes
    allowed: TokenSet
    ended: bool
    seconds: float  # to compute it
    slow_seconds: float = 0.0  # CPU time beyond `FREE_SECONDS`, of all masks so far
    stopped: bool = False

    @property
    def only(self) -> int | None:
        """The only allowed token, if there is exactly one and it doesn't end the text; else
        None."""
        return None if self.ended or len(self.allowed) != 1 else self.allowed.ids.item(0)

    @property
    def is_quick(self) -> bool:
        """True if the next mask is computed inline."""
        return self.seconds < INLINE_SECONDS and not self.slow_seconds


class Masks:
    """Computes masks over a model's vocabulary, in a small thread pool unless they are quick."""

    def __init__(self, model: Model) -> None:
        self._n_vocab = model.n_vocab
        self._eog = model.eog
        self._pool = system.pool(THREADS, "mask")

    def soon(self, matcher: LLMatcher, last: Mask) -> system.Future[Mask]:
        """Run `next` in another thread."""
        return self._pool.submit(self.next, matcher, last)

    def next(self, matcher: LLMatcher, last: Mask | None) -> Mask:
        """The mask of the tokens that `matcher` allows next. Shares the set of `last` if nothing
        has changed. Raises ConstraintError."""
        begun, used = system.now(), system.processor_seconds()
        bits = mask(matcher)
        used = system.processor_seconds() - used
        seconds = system.now() - begun
        slow = max(0.0, used - FREE_SECONDS) + (last.slow_seconds if last is not None else 0.0)
        if used > MAX_SECONDS or slow > SLOW_SECONDS:
            raise ConstraintError(TOO_COMPLEX)
        if last is not None and bits == last.bits:
            return replace(last, seconds=seconds, slow_seconds=slow)
        allowed = TokenSet(bits, self._n_vocab)
        if not len(allowed):
            raise ConstraintError("no token can come next")
        ended = len(allowed) <= len(self._eog) and self._eog.issuperset(allowed.ids.tolist())
        return Mask(bits, allowed, ended, seconds, slow)

    def close(self) -> None:
        """Wait for the threads, which use the model."""
        self._pool.shutdown(cancel_futures=True)


FEW = 32
"""Maximum number of allowed tokens among which spellings of a forced text are searched. The
spellings are prefixes of the text, so there are only a few."""

LOOK_SECONDS = 1e-3


@dataclass(frozen=True)
class Compiled:
    """A compiled grammar at its start; copied, never advanced itself. `waiting` is set for lazy
    grammars; `relaxed` is as in `Guided`."""

    matcher: LLMatcher
    mask: Mask
    vocabulary: Vocabulary
    waiting: Waiting | None
    relaxed: tuple[str, ...]


class Constraint:
    """The constraint of one generation. Belongs to the thread that steps."""

    def __init__(self, compiled: Compiled, masks: Masks) -> None:
        self._matcher = compiled.matcher.deep_copy()  # positioned after `_ahead`
        self._vocabulary = compiled.vocabulary
        self._masks = masks
        self._mask = compiled.mask  # at the current position
        self._pending: system.Future[Mask] | None = None  # the next `_mask`, while it is computed
        self._is_old = False  # `_mask` is that of the position before, and the next one is quick
        self._looks = True  # for forced tokens after a slow mask
        # Forced tokens, each with the mask after it, or the error instead of one.
        self._ahead: deque[tuple[int, Mask | ConstraintError]] = deque()

    def _current(self) -> Mask:
        if self._pending is not None:
            self._mask = self._pending.result()
            self._pending = None
        if self._is_old:
            self._mask = self._masks.next(self._matcher, self._mask)
            self._is_old = False
        return self._mask

    @property
    def allowed(self) -> TokenSet:
        """The allowed next tokens, never empty; waits while they are being computed. Raises
        ConstraintError if the grammar has become too complex."""
        return self._current().allowed

    @property
    def ended(self) -> bool:
        """True if only the end of the text is allowed next. Waits and raises as `allowed` does."""
        return self._current().ended

    @property
    def awaited(self) -> system.Future[Any] | None:
        """The pending mask that `allowed` and `ended` wait for; None if they don't wait."""
        pending = self._pending
        return None if pending is None or pending.done() else pending

    def forced(self, n: int) -> list[int]:
        """As `Guide.forced`. Stops at slow masks, which another thread computes."""
        if n <= 0 or self._is_old or self.awaited is not None:
            return []
        try:
            last: Mask | ConstraintError = self._current()
        except ConstraintError:  # the next use of `allowed` raises it
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
        """As `Guide.likely`: if the grammar allows several spellings of a forced text, returns the
        tokenizer's."""
        tokens = self.forced(n)
        if len(tokens) >= n or self._is_old or self.awaited is not None:
            return tokens
        try:
            if not tokens and self._longest() is None:
                return []  # the usual case, without a fork
            return (tokens + self._spelling(self._behind_all(tokens), n - len(tokens)))[:n]
        except ConstraintError:
            return tokens

    def fork(self) -> "Constraint":
        """As `Guide.fork`."""
        other = copy(self)
        other._matcher, other._ahead = self._matcher.deep_copy(), self._ahead.copy()
        return other

    def advance(self, token: int) -> bool:
        """Advance past `token`, which must be an allowed one that doesn't end the text, and begin
        to compute the next mask. Returns True if it is already certain that nothing may follow.

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
        """Advance past `text`, as `advance` does past a token. Raises ConstraintError."""
        assert not self._ahead
        return self._consume(self._vocabulary.spelled(text))

    def begin_behind(self, text: str, refusal: str) -> None:
        """Advance past `text`, the given beginning. Raises GrammarError with the message
        `refusal`."""
        try:
            self.spell(text.encode())
        except ConstraintError:
            raise GrammarError(refusal) from None

    def look(self) -> None:
        """As `Guide.look`."""
        if self.awaited is None:
            with suppress(ConstraintError):
                self._current()

    def _consume(self, tokens: list[int]) -> bool:
        last = self._current()
        consume(self._matcher, tokens)
        if self._matcher.is_stopped():
            self._mask = replace(last, ended=True, stopped=True)
            return True
        if last.is_quick:
            self._is_old = True
            # Forced tokens should be known before the next step is launched. They rarely follow a
            # free choice, and usually as forced text, which is found sooner than a mask.
            if not last.allowed.has_many or self._matcher.compute_ff_tokens():
                self._current()
            return False
        if last.only is None and not last.slow_seconds and self._forces():
            self._mask = self._masks.next(self._matcher, last)
        else:
            self._pending = self._masks.soon(self._matcher, last)
        return False

    def _forces(self) -> bool:
        """True if tokens are forced here; then the mask is quick, even if the one before was slow.
        Once this check itself was slow, as for a long forced text, it isn't made again."""
        if not self._looks:
            return False
        begun = system.now()
        forces = bool(self._matcher.compute_ff_tokens())
        self._looks = system.now() - begun < LOOK_SECONDS
        return forces and self._looks

    def _behind(self, tokens: list[int], last: Mask) -> Mask:
        """Advance the matcher past `tokens`. Returns the mask there. Raises ConstraintError."""
        consume(self._matcher, tokens)
        if self._matcher.is_stopped():
            return replace(last, ended=True, stopped=True)
        return self._masks.next(self._matcher, last)

    def _behind_all(self, tokens: Sequence[int]) -> "Constraint":
        """A fork of the constraint, advanced past `tokens`. Raises ConstraintError."""
        other = self.fork()
        for token in tokens:
            other.advance(token)
        return other

    def _spelling(self, ahead: "Constraint", n: int) -> list[int]:
        """The forced text at the position of `ahead`, in up to `n` tokens of the tokenizer."""
        text, n_steps = b"", 0
        while n_steps < n and (token := ahead._longest()) is not None:
            text, n_steps = text + self._vocabulary.texts[token], n_steps + 1
            ahead.advance(token)
        if not text:
            return []
        return list(self._vocabulary.tokenizer.tokenize_bytes(text, parse_special=True))[:n]

    def _longest(self) -> int | None:
        """The longest token that spells a forced text; None if there is a choice. Considers only
        the mask here and the one after the second longest token. Raises ConstraintError."""
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
        others = [texts[token] for token in behind.allowed.ids.tolist()]
        return longest if all(_agree(text, rest) for text in others) else None

    def _spellings(self) -> list[int]:
        """The allowed tokens from the shortest on, if each is a prefix of the next; else empty."""
        if len(self.allowed) > FEW:
            return []
        texts = self._vocabulary.texts
        tokens = sorted(self.allowed.ids.tolist(), key=lambda token: len(texts[token]))
        longest = texts[tokens[-1]]
        return (
            tokens
            if all(t and longest.startswith(t) for t in map(texts.__getitem__, tokens))
            else []
        )


def _agree(text: bytes, other: bytes) -> bool:
    """True if one of the texts, which mustn't be empty, begins with the other one."""
    return bool(text) and (text.startswith(other) or other.startswith(text))
