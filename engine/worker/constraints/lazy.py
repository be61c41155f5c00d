"""Constraints that wait for a trigger, and what every kind of constraint is to the engine."""

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
from specllama.engine.worker.tokens import TokenArray

# ---- Searches a generated text for the triggers with which a lazy constraint begins.
#
# Works on bytes, token by token, so that a trigger may begin and end in the middle of a token.


class Partial(NamedTuple):
    """The first `length` bytes of the trigger `text`, at the end of what has been generated."""

    text: bytes
    length: int


class TriggerSearch:
    """Follows one text until a trigger has come.

    `partial` are the triggers that the text may be in the middle of. No trigger counts inside
    of thoughts.
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
        self._starting = True  # nothing but white space and thoughts so far
        self._text = b""  # what may still become a part of something
        self.partial: tuple[Partial, ...] = ()

    @property
    def thinking(self) -> bool:
        return self._in_thoughts

    @property
    def answering(self) -> bool:
        """True if no thoughts can come any more."""
        return not (self._in_thoughts or self._starting)

    def is_trigger(self, token: int) -> bool:
        """True if `token` is one by itself."""
        return token in self._tokens and not self._in_thoughts

    def feed(self, piece: bytes) -> bytes | None:
        """Take the text of one more token. The text from the beginning of the trigger on, once
        there is a whole one. A `piece` of nothing is a token that can't be seen, over which no
        trigger reaches."""
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
    """The tokens that one generation may have next. Belongs to the thread that steps."""

    @property
    def allowed(self) -> TokenArray | None:
        """The ids of the tokens that may come next, never empty; None for all. May wait for
        them. Raises ConstraintError if they can't be found out."""

    @property
    def ended(self) -> bool:
        """True if nothing but the end of the text may come next. As `allowed`."""

    @property
    def awaited(self) -> system.Future[Any] | None:
        """What `allowed` and `ended` wait for; None if they don't."""

    def advance(self, token: int) -> bool:
        """Go on behind `token`, one of the allowed ones that ends no text. True if it is
        certain already that nothing follows. Raises ConstraintError."""

    def forced(self, n: int) -> list[int]:
        """Up to `n` tokens, each the only one that may come behind those before it, and none that
        ends the text: sampling under `allowed` gives these and no others. There may be more than
        are known yet. Nothing waits, and the text goes no further."""

    def likely(self, n: int) -> list[int]:
        """`forced`, and behind it how the tokenizer spells a text that is forced, but might be
        spelled otherwise: up to `n` tokens to be checked."""

    def fork(self) -> Self:
        """A guide of the same text that goes on by itself. Not while there is something that is
        `awaited`."""


class GuideStart(Guide, Protocol):
    def spell(self, text: bytes) -> bool:
        """Go on behind `text`, as `advance` does behind a token."""


class Waiting:
    """The tokens allowed before a lazy grammar is in force: all but those that begin or complete a
    trigger and go on in a way that the grammar doesn't allow.

    Such tokens depend on how much of a trigger there is already. Found out once for each
    grammar: they are few, and the common case, in which there are none, costs nothing.
    """

    def __init__(
        self, matcher: LLMatcher, vocabulary: Vocabulary, triggers: Sequence[GrammarTrigger]
    ) -> None:
        """`matcher` stands at the beginning of the grammar. Raises GrammarError if that allows
        no text which begins with a trigger."""
        self._n_tokens = len(vocabulary.texts)
        self._forbidden: dict[Partial, list[int]] = {}
        self._whole: list[int] = []
        self._cache: dict[tuple[Partial, ...], TokenArray | None] = {}
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

    def allowed(self, partial: tuple[Partial, ...]) -> TokenArray | None:
        if not self._whole and not any(each in self._forbidden for each in partial):
            return None
        if partial not in self._cache:
            flags: npt.NDArray[np.bool_] = np.ones(self._n_tokens, np.bool_)
            flags[self._whole] = False
            for each in partial:
                flags[self._forbidden.get(each, [])] = False
            self._cache[partial] = np.flatnonzero(flags).astype(np.int32)
        return self._cache[partial]


class LazyConstraint:
    """Lets everything pass until a trigger comes; then `start` gives the constraint, which
    takes the text from the beginning of the trigger on."""

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
        self._allowed: TokenArray | None = None
        self._look()

    @property
    def allowed(self) -> TokenArray | None:
        return self._allowed if self._started is None else self._started.allowed

    @property
    def ended(self) -> bool:
        return self._started is not None and self._started.ended

    @property
    def awaited(self) -> system.Future[Any] | None:
        return self._started.awaited if self._started is not None else None

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
        """As `Guide.forced`: without a trigger, nothing is."""
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
