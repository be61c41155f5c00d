"""Lazy constraints, which start at a trigger, and the interface of all constraints."""

from collections.abc import Callable, Iterable, Sequence
from copy import copy
from typing import Any, NamedTuple, Protocol, Self

import numpy as np
import numpy.typing as npt
from llguidance import LLMatcher

from specllama.engine import system
from specllama.engine.grammars.gbnf import GrammarError
from specllama.engine.params import GrammarTrigger, Thoughts
from specllama.engine.worker.constraints.vocabulary import Vocabulary
from specllama.engine.worker.tokens import TokenSet

# ---- The search of a generated text for the triggers that start a lazy constraint.
#
# It works on bytes, token by token: a trigger may begin and end in the middle of a token.


class Partial(NamedTuple):
    """An incomplete trigger: the generated text ends with the first `length` bytes of `text`."""

    text: bytes
    length: int


class TriggerSearch:
    """Searches one text for a trigger, token by token.

    `partial` are the triggers that the text may be in the middle of. Triggers inside of thoughts
    don't count.
    """

    def __init__(self, triggers: Sequence[GrammarTrigger], thoughts: Thoughts | None) -> None:
        self._anywhere = [t.text.encode() for t in triggers if t.text and not t.at_start]
        self._at_start = [t.text.encode() for t in triggers if t.text and t.at_start]
        self._tokens = frozenset(t.token for t in triggers if not t.text)
        self._begin = thoughts.begin.strip().encode() if thoughts else b""
        self._end = thoughts.end.strip().encode() if thoughts else b""
        self._prefixes = tuple({t[:n] for t in self._anywhere for n in range(1, len(t))})
        self._longest = max(map(len, self._anywhere), default=0)
        self._in_thoughts = bool(thoughts and thoughts.open and self._end)
        self._starting = True  # only white space and thoughts so far
        self._text = b""  # may still become a part of a marker or trigger
        self.partial: tuple[Partial, ...] = ()

    @property
    def thinking(self) -> bool:
        return self._in_thoughts

    @property
    def answering(self) -> bool:
        """True if no more thoughts can follow."""
        return not (self._in_thoughts or self._starting)

    def is_trigger(self, token: int) -> bool:
        """True if `token` alone is a trigger."""
        return token in self._tokens and not self._in_thoughts

    def feed(self, piece: bytes) -> bytes | None:
        """Add the text of one more token. Returns the text from the beginning of the trigger on,
        once a trigger is complete; else None. An empty `piece` is an invisible token, which no
        trigger spans."""
        if not piece:
            if not self._starting or self._in_thoughts:
                self._text, self.partial = b"", ()
            return None
        self._text += piece
        self.partial = ()
        while self._in_thoughts or self._starting:
            if self._in_thoughts:
                at = self._text.find(self._end)
                if at < 0:
                    self._text = _last(self._text, len(self._end) - 1)
                    return None
                self._text = self._text[at + len(self._end) :]
                self._in_thoughts, self._starting = False, True
            if self._begin and self._text.lstrip().startswith(self._begin):
                self._text = self._text.lstrip()[len(self._begin) :]
                self._in_thoughts = True
            else:
                return self._find_at_start()
        return self._find()

    def _find_at_start(self) -> bytes | None:
        begun = self._text.lstrip()
        for text in self._at_start:
            if begun.startswith(text):
                return begun
        self.partial = tuple(
            Partial(text, len(begun)) for text in self._at_start if begun and text.startswith(begun)
        )
        self._starting = not begun or bool(self.partial) or self._begin.startswith(begun)
        return self._find()

    def _find(self) -> bytes | None:
        text = self._text
        found = [at for trigger in self._anywhere if (at := text.find(trigger)) >= 0]
        if found:
            return text[min(found) :]
        if self._prefixes and text.endswith(self._prefixes):
            self.partial += tuple(self._unfinished(text))
        if not self._starting:
            self._text = _last(text, self._longest - 1)
        return None

    def _unfinished(self, text: bytes) -> Iterable[Partial]:
        for trigger in self._anywhere:
            for length in range(1, len(trigger)):
                if text.endswith(trigger[:length]):
                    yield Partial(trigger, length)


def _last(text: bytes, n: int) -> bytes:
    return text[-n:] if n > 0 else b""


class Guide(Protocol):
    """Determines the allowed next tokens of one generation. Belongs to the thread that steps."""

    @property
    def allowed(self) -> TokenSet | None:
        """The allowed next tokens, never empty; None if all are allowed. May wait for them. Raises
        ConstraintError if they can't be determined."""

    @property
    def ended(self) -> bool:
        """True if only the end of the text is allowed next. Waits and raises as `allowed` does."""

    @property
    def awaited(self) -> system.Future[Any] | None:
        """The pending mask that `allowed` and `ended` wait for; None if they don't wait."""

    def look(self) -> None:
        """Determine `allowed`, unless another thread does that. Called while a device computes. Its
        next use raises the error, if there is one."""

    def advance(self, token: int) -> bool:
        """Advance past `token`, which must be an allowed one that doesn't end the text. Returns
        True if it is already certain that nothing may follow. Raises ConstraintError."""

    def forced(self, n: int) -> list[int]:
        """Up to `n` forced tokens: each is the only one that is allowed after those before it, and
        doesn't end the text. Sampling under `allowed` gives exactly these tokens. There may be
        further ones that aren't known yet. Never waits, and doesn't advance."""

    def likely(self, n: int) -> list[int]:
        """Up to `n` tokens: the forced ones, then the tokenizer's spelling of a forced text that
        has other spellings, too. The latter have to be verified."""

    def fork(self) -> Self:
        """An independent copy at the same position. Must not be called while a mask is
        `awaited`."""


class GuideStart(Guide, Protocol):
    def spell(self, text: bytes) -> bool:
        """Advance past `text`, as `advance` does past a token."""


class Waiting:
    """The tokens allowed before the trigger of a lazy grammar: all tokens, except tokens that
    contain the end of a trigger and continue in a way that the grammar doesn't allow.

    The forbidden tokens depend on how much of a trigger is already generated. They are computed
    once for each grammar. Usually there are none, which costs nothing.
    """

    def __init__(
        self, matcher: LLMatcher, vocabulary: Vocabulary, triggers: Sequence[GrammarTrigger]
    ) -> None:
        """`matcher` is at the start of the grammar. Raises GrammarError if the grammar allows no
        text that begins with a trigger."""
        self._n_tokens = len(vocabulary.texts)
        self._forbidden: dict[Partial, list[int]] = {}
        self._whole: list[int] = []
        self._cache: dict[tuple[Partial, ...], TokenSet] = {}
        for text in {t.text for t in triggers if t.text}:
            self._find(matcher, vocabulary, text.encode())

    def _find(self, matcher: LLMatcher, vocabulary: Vocabulary, trigger: bytes) -> None:
        behind = matcher.deep_copy()
        if not behind.consume_tokens(vocabulary.spelled(trigger)):
            raise GrammarError(f"no text begins with the trigger {trigger.decode()!r}")

        def goes_wrong(rest: bytes) -> bool:
            return behind.validate_tokens(vocabulary.spelled(rest)) < len(rest)

        ends = tuple(trigger[n:] for n in range(1, len(trigger)))
        for token, text in enumerate(vocabulary.texts):
            if text.startswith(ends):
                for end in ends:
                    rest = text.removeprefix(end)
                    if 0 < len(rest) < len(text) and goes_wrong(rest):
                        partial = Partial(trigger, len(trigger) - len(end))
                        self._forbidden.setdefault(partial, []).append(token)
            if trigger in text and (rest := text.partition(trigger)[2]) and goes_wrong(rest):
                self._whole.append(token)

    def allowed(self, partial: tuple[Partial, ...]) -> TokenSet | None:
        if not self._whole and not any(each in self._forbidden for each in partial):
            return None
        if partial not in self._cache:
            flags: npt.NDArray[np.bool_] = np.ones(self._n_tokens, np.bool_)
            flags[self._whole] = False
            for each in partial:
                flags[self._forbidden.get(each, [])] = False
            self._cache[partial] = TokenSet.where(flags)
        return self._cache[partial]


class LazyConstraint:
    """Allows any text up to a trigger. Then `start` makes the constraint, which applies to the text
    from the beginning of the trigger on."""

    def __init__(
        self,
        start: Callable[[], GuideStart],
        waiting: Waiting,
        texts: Sequence[bytes],
        search: TriggerSearch,
    ) -> None:
        self._start = start
        self._waiting = waiting
        self._texts = texts
        self._search = search
        self._started: GuideStart | None = None
        self._allowed: TokenSet | None = None
        self._look()

    @property
    def allowed(self) -> TokenSet | None:
        return self._allowed if self._started is None else self._started.allowed

    @property
    def ended(self) -> bool:
        return self._started is not None and self._started.ended

    @property
    def awaited(self) -> system.Future[Any] | None:
        return self._started.awaited if self._started is not None else None

    def look(self) -> None:
        if self._started is not None:
            self._started.look()

    def advance(self, token: int) -> bool:
        if self._started is not None:
            return self._started.advance(token)
        is_trigger = self._search.is_trigger(token)
        found = self._search.feed(self._texts[token])
        if found is not None:
            self._started = self._start()
            return self._started.spell(found)
        if is_trigger:
            self._started = self._start()
            return self._started.advance(token)
        self._look()
        return False

    def forced(self, n: int) -> list[int]:
        """As `Guide.forced`: before the trigger, nothing is forced."""
        return self._started.forced(n) if self._started is not None else []

    def likely(self, n: int) -> list[int]:
        return self._started.likely(n) if self._started is not None else []

    def fork(self) -> "LazyConstraint":
        other = copy(self)
        other._search = copy(self._search)
        if self._started is not None:
            other._started = self._started.fork()
        return other

    def _look(self) -> None:
        search = self._search
        self._allowed = self._waiting.allowed(search.partial) if not search.thinking else None
