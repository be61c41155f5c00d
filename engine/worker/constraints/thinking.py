"""Ends thoughts before the model does: by a budget, or by a client's request.

The limit is a `Guide`, which wraps the request's own constraint, if there is one.
"""

from codecs import getincrementaldecoder
from collections import deque
from collections.abc import Sequence
from contextlib import suppress
from copy import copy
from typing import Any, Protocol

from specllama.engine import system
from specllama.engine.grammars.compiling import ConstraintError
from specllama.engine.params import ThinkingRules, Thoughts
from specllama.engine.worker.backend import Model
from specllama.engine.worker.constraints.lazy import Guide, TriggerSearch
from specllama.engine.worker.tokens import TokenSet

_Decoder = getincrementaldecoder("utf-8")


def hidden_markers(model: Model, thoughts: Thoughts) -> frozenset[int]:
    """The control tokens in the markers of `thoughts`, whose texts the search needs."""
    texts = [thoughts.begin, thoughts.end, *thoughts.other_ends]
    tokens = {token for text in texts for token in _tokens(model, text)}
    return frozenset(token for token in tokens - model.eog if model.is_hidden(token))


def thinking_limit(
    inner: Guide | None, rules: ThinkingRules, model: Model, texts: Sequence[bytes]
) -> "ThinkingLimit":
    """The limit for one text. `texts` are the texts of all tokens, including hidden markers."""
    message = _tokens(model, rules.message, parse_special=False)
    return ThinkingLimit(inner, rules, message, _tokens(model, rules.thoughts.end), texts)


def _tokens(model: Model, text: str, *, parse_special: bool = True) -> list[int]:
    ids = model.tokenize(text.encode(), add_special=False, parse_special=parse_special)
    return [int(id) for id in ids]


class _Search(Protocol):
    """Follows the thoughts of one text."""

    @property
    def thinking(self) -> bool: ...

    @property
    def answering(self) -> bool:
        """True if no more thoughts can follow."""

    def feed(self, piece: bytes) -> object: ...


class ThoughtsAnywhere:
    """Finds any number of thoughts, anywhere in the text."""

    answering = False

    def __init__(self, thoughts: Thoughts) -> None:
        ends = [thoughts.end, *thoughts.other_ends]
        self._begins = _markers([thoughts.begin])
        self._ends = _markers(ends)
        self.thinking = thoughts.open and bool(self._ends)
        self._text = b""  # may still become a part of a marker

    def feed(self, piece: bytes) -> None:
        self._text += piece
        while True:
            markers = self._ends if self.thinking else self._begins
            found = [(at, marker) for marker in markers if (at := self._text.find(marker)) >= 0]
            if not found:
                longest = max(map(len, markers), default=1)
                self._text = self._text[-(longest - 1) :] if longest > 1 else b""
                return
            at, marker = min(found, key=lambda each: (each[0], -len(each[1])))
            self._text = self._text[at + len(marker) :]
            self.thinking = not self.thinking


def _markers(texts: Sequence[str]) -> list[bytes]:
    return [marker for text in texts if (marker := text.strip().encode())]


class ThinkingLimit:
    """Ends thoughts by forcing the tokens of `message`, then those of `closing`; otherwise `inner`
    applies. The message is used at most once."""

    def __init__(
        self,
        inner: Guide | None,
        rules: ThinkingRules,
        message: Sequence[int],
        closing: Sequence[int],
        texts: Sequence[bytes],
    ) -> None:
        self._inner = inner
        thoughts = rules.thoughts
        self._search: _Search = (
            ThoughtsAnywhere(thoughts) if rules.anywhere else TriggerSearch((), thoughts)
        )
        self._budget = rules.budget
        self._message = [*message]
        self._closing = [*closing]
        self._texts = texts
        self._n_thought = 0
        self._ending = False
        self._decoder = _Decoder("replace")
        self._forced: deque[int] = deque()
        self._force_if_due()

    @property
    def allowed(self) -> TokenSet | None:
        allowed = None if self._inner is None else self._inner.allowed
        if self._forced and allowed is not None and self._forced[0] not in allowed:
            self._forced.clear()  # thoughts can't end here; tried again after the next token
        return TokenSet.of([self._forced[0]], len(self._texts)) if self._forced else allowed

    @property
    def ended(self) -> bool:
        return self._inner is not None and self._inner.ended

    @property
    def awaited(self) -> system.Future[Any] | None:
        return None if self._inner is None else self._inner.awaited

    def look(self) -> None:
        if self._inner is not None:
            self._inner.look()

    def forced(self, n: int) -> list[int]:
        """As `Guide.forced`. The limit doesn't change tokens that `inner` forces."""
        if not self._forced:
            return [] if self._inner is None else self._inner.forced(n)
        tokens: list[int] = []
        with suppress(ConstraintError):  # the next use of `allowed` raises it
            ahead = self.fork() if n > 0 and self.awaited is None else None
            while ahead is not None and (token := ahead._only()) is not None:
                tokens.append(token)
                if len(tokens) == n or ahead.advance(token):
                    break
        return tokens

    def likely(self, n: int) -> list[int]:
        """As `Guide.likely`."""
        if self._forced or self._inner is None:
            return self.forced(n)
        return self._inner.likely(n)

    def fork(self) -> "ThinkingLimit":
        """As `Guide.fork`."""
        other = copy(self)
        other._inner = None if self._inner is None else self._inner.fork()
        other._search, other._forced = copy(self._search), self._forced.copy()
        other._decoder = _Decoder("replace")
        other._decoder.setstate(self._decoder.getstate())
        return other

    def _only(self) -> int | None:
        """The only allowed token; None if there is a choice, if it isn't known yet, or if the token
        has no text, such as one that ends the text. Raises ConstraintError."""
        if self.awaited is not None or self.ended or (allowed := self.allowed) is None:
            return None
        only = allowed.ids.item(0) if len(allowed) == 1 else None
        return only if only is not None and self._texts[only] else None

    def end(self) -> None:
        """If the text is inside thoughts, end them at the next token."""
        if self._search.thinking and not self._forced:
            self._ending = True
            self._force_if_due()

    def advance(self, token: int) -> bool:
        ends = self._inner is not None and self._inner.advance(token)
        if not self._search.answering:
            self._follow(token)
        return ends

    def _follow(self, token: int) -> None:
        text = self._texts[token]
        was_thinking = self._search.thinking
        self._search.feed(text)
        self._decoder.decode(text)
        thinking = self._search.thinking
        if self._forced:
            self._forced.popleft()
            if not thinking and len(self._forced) >= len(self._closing):
                self._forced.clear()  # the message itself has ended the thoughts
        elif thinking:
            self._n_thought = self._n_thought + 1 if was_thinking else 0
            self._force_if_due()
        if not thinking:
            self._ending = False

    def _force_if_due(self) -> None:
        # Not inside a character, since text follows.
        in_character = bool(self._decoder.getstate()[0])
        is_due = self._ending or 0 <= self._budget <= self._n_thought
        if self._search.thinking and is_due and not in_character:
            self._forced.extend([*self._message, *self._closing])
            self._message = []
