"""Searches a generated text for the triggers with which a lazy constraint begins.

Works on bytes, token by token, so that a trigger may begin and end in the middle of a token.
"""

from collections.abc import Iterable, Sequence
from typing import NamedTuple

from specllama.engine.params import GrammarTrigger, Thoughts


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
