"""Constraints that wait for a trigger, and what every kind of constraint is to the engine."""

from collections.abc import Callable, Sequence
from concurrent.futures import Future
from copy import copy
from typing import Any, Protocol, Self

import numpy as np
import numpy.typing as npt
from llguidance import LLMatcher

from specllama.engine.grammars.gbnf import GrammarError
from specllama.engine.params import GrammarTrigger
from specllama.engine.worker.constraints.triggers import Partial, TriggerSearch
from specllama.engine.worker.constraints.vocabulary import Vocabulary
from specllama.engine.worker.tokens import TokenArray


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
    def awaited(self) -> Future[Any] | None:
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


class Started(Guide, Protocol):
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
        start: Callable[[], Started],
        waiting: Waiting,
        texts: Sequence[bytes],
        search: TriggerSearch,
    ) -> None:
        self._start = start
        self._waiting = waiting
        self._texts = texts
        self._search = search
        self._started: Started | None = None
        self._allowed: TokenArray | None = None
        self._look()

    @property
    def allowed(self) -> TokenArray | None:
        return self._allowed if self._started is None else self._started.allowed

    @property
    def ended(self) -> bool:
        return self._started is not None and self._started.ended

    @property
    def awaited(self) -> Future[Any] | None:
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
