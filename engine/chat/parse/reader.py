"""A reader of text that arrives in pieces, for parsers that are written like grammars.

A parser built on `Reader` is a set of generators that call each other with `yield from`. If the
available text doesn't decide how to continue, the innermost generator yields, and resumes at the
same place when more has arrived. So no text is examined twice, and a parser reads like the syntax
that it parses.
"""

import re
from abc import ABC, abstractmethod
from collections.abc import Callable, Generator, Iterator, Sequence
from functools import lru_cache
from itertools import groupby
from typing import Any, TypeVar

from specllama.engine.chat.output import CallArguments, CallStart, ChatDelta, Content, Reasoning
from specllama.engine.chat.request import THOUGHTS_IN_CONTENT, ReasoningFormat

T = TypeVar("T")
Step = Generator[None, None, T]
"""A part of a parser: yields to wait for more text, returns its result."""

_SPACE = re.compile(r"\s*")


class Reader:
    """The text that has arrived and was not yet taken.

    Taken text is discarded, except between `mark` and `rewind` or `release`.
    """

    def __init__(self) -> None:
        self._text = ""
        self._at = 0  # position of the next character in _text
        self._base = 0  # characters before _text
        self._kept: list[str] = []  # earlier characters, back to the outermost mark
        self._kept_from = 0
        self._marks = 0
        self._ended = False
        self.cut_off = False

    def push(self, text: str) -> None:
        if self._marks:
            self._kept.append(self._text[: self._at])
        self._base += self._at
        self._text = self._text[self._at :] + text
        self._at = 0

    def end(self, *, cut_off: bool = False) -> None:
        """Marks the end of the text. With `cut_off` the text is incomplete: a possible beginning of
        a marker is dropped then, instead of counting as text."""
        self._ended = True
        self.cut_off = cut_off

    @property
    def position(self) -> int:
        """The number of characters that were taken."""
        return self._base + self._at

    def rest(self) -> str:
        """Returns the text that has arrived and was not taken."""
        return self._text[self._at :]

    def drop(self) -> None:
        """Discards all text that has arrived."""
        self._at = len(self._text)

    def mark(self) -> int:
        """Returns a place for `rewind`. Either `rewind` or `release` must follow."""
        if not self._marks:
            self._kept_from = self._base
        self._marks += 1
        return self._base + self._at

    def release(self) -> None:
        self._marks -= 1
        if not self._marks:
            self._kept.clear()

    def rewind(self, place: int) -> None:
        if place < self._base:
            self._text = "".join(self._kept) + self._text
            self._base = self._kept_from
            self._kept.clear()
        self._at = place - self._base
        self.release()

    def more(self) -> Step[bool]:
        """Waits for more text; returns False at the end."""
        if not self._ended:
            yield
        return not self._ended

    def peek(self, count: int = 1) -> Step[str]:
        """Returns the next `count` characters without taking them; fewer only at the end."""
        while len(self._text) - self._at < count and (yield from self.more()):
            pass
        return self._text[self._at : self._at + count]

    def take(self, count: int) -> str:
        """Takes the next characters, which must have arrived."""
        text = self._text[self._at : self._at + count]
        self._at += count
        return text

    def take_while(self, pattern: re.Pattern[str]) -> str:
        """Takes the match of `pattern` from the text that has arrived."""
        match = pattern.match(self._text, self._at)
        return self.take(match.end() - match.start()) if match else ""

    def run(self, pattern: re.Pattern[str], limit: int | None = None) -> Step[str]:
        """Takes all text that matches `pattern`, a repeated class of characters; stops soon after
        `limit` characters."""
        pieces = [self.take_while(pattern)]
        length = len(pieces[0])
        while self._at == len(self._text) and (limit is None or length <= limit):
            if not (yield from self.more()):
                break
            pieces.append(self.take_while(pattern))
            length += len(pieces[-1])
        return "".join(pieces)

    def space(self) -> Step[str]:
        return (yield from self.run(_SPACE))

    def accept(self, text: str) -> Step[bool]:
        """Takes `text` if it is next. Waits only while that is undecided."""
        while True:
            if self._text.startswith(text, self._at):
                self._at += len(text)
                return True
            if not text.startswith(self._text[self._at :]):
                return False
            if not (yield from self.more()):
                if self.cut_off:
                    self.drop()
                return False

    def accept_spaced(self, text: str) -> Step[bool]:
        """Takes white space and `text`, or neither."""
        place = self.mark()
        yield from self.space()
        if (yield from self.accept(text)):
            self.release()
            return True
        self.rewind(place)
        return False

    def accept_all(self, texts: tuple[str, ...]) -> Step[bool]:
        """Takes all of the texts, each after optional white space, or none."""
        place = self.mark()
        for text in texts:
            if not (yield from self.accept_spaced(text)):
                self.rewind(place)
                return False
        self.release()
        return True

    def until(self, markers: tuple[str, ...], out: Callable[[str], None]) -> Step[tuple[str, str]]:
        """Copies text to `out` up to the first of `markers` or the end.

        A possible marker is held back, with the white space before it. Returns this white space,
        which is not copied, and the marker, "" at the end. Both have been taken.
        """
        whole_or_part, whole = _searches(markers)
        space: list[str] = []
        while True:
            pattern = whole if self._ended and not self.cut_off else whole_or_part
            found = pattern.search(self._text, self._at) if pattern else None
            text = self.take((found.start() if found else len(self._text)) - self._at)
            copied = text.rstrip()
            if copied:
                out("".join(space) + copied)
                space.clear()
            if len(copied) < len(text):
                space.append(text[len(copied) :])
            if found and found["whole"]:
                return "".join(space), self.take(len(found["whole"]))
            if self._ended:
                if found:
                    self.drop()
                    space.clear()
                return "".join(space), ""
            yield


@lru_cache(maxsize=256)
def _searches(
    markers: tuple[str, ...],
) -> tuple[re.Pattern[str], re.Pattern[str]] | tuple[None, None]:
    """Returns patterns of the first marker, with and without incomplete ones: the beginning of a
    marker at the very end of the text, which has priority over a shorter complete one."""
    if not markers:
        return None, None
    beginnings = {marker[:length] for marker in markers for length in range(1, len(marker))}
    whole = f"(?P<whole>{_any_of(set(markers))})"
    part = f"(?:{_any_of(beginnings)})\\Z|" if beginnings else ""
    return re.compile(part + whole), re.compile(whole)


def _any_of(texts: set[str]) -> str:
    return "|".join(map(re.escape, sorted(texts, key=len, reverse=True)))


# ---- The base of the parsers of answers: text in, deltas out.


class IncrementalParser(ABC):
    """Runs `answer`, a parser that reads from `reader`, as text arrives."""

    def __init__(self, reasoning: ReasoningFormat) -> None:
        self.reader = Reader()
        self._separates_reasoning = reasoning != "none"
        self.thoughts_in_content = reasoning in THOUGHTS_IN_CONTENT
        self._deltas: list[ChatDelta] = []
        self._running = self.answer()

    @property
    @abstractmethod
    def calling(self) -> bool:
        """As in `engine.chat.parse.parser.AnswerParser`."""

    @abstractmethod
    def answer(self) -> Step[None]:
        """Reads the whole answer."""

    def feed(self, text: str) -> list[ChatDelta]:
        if text:
            self.reader.push(text)
            next(self._running, None)
        return self._new()

    def finish(self, *, cut_off: bool = False) -> list[ChatDelta]:
        self.reader.end(cut_off=cut_off)
        for _ in self._running:
            pass
        return self._new()

    def emit(self, delta: ChatDelta) -> None:
        self._deltas.append(delta)

    def think(self, text: str) -> None:
        """Emits reasoning."""
        self.think_markup(text)
        if text and self._separates_reasoning:
            self.emit(Reasoning(text))

    def think_markup(self, text: str) -> None:
        """Emits a marker or white space around reasoning."""
        if text and self.thoughts_in_content:
            self.emit(Content(text))

    def _new(self) -> list[ChatDelta]:
        found = joined(self._deltas)
        self._deltas.clear()
        return found


def joined(deltas: Sequence[ChatDelta]) -> list[ChatDelta]:
    """Returns `deltas`, with consecutive deltas of one kind joined."""
    if len(deltas) < 2:  # the most frequent case
        return [*deltas]
    return [delta for _, same in groupby(deltas, _kind) for delta in _joined([*same])]


def _kind(delta: ChatDelta) -> Any:
    return type(delta), getattr(delta, "index", 0)


def _joined(deltas: list[ChatDelta]) -> Iterator[ChatDelta]:
    """Yields deltas of one kind as one delta."""
    match deltas[0]:
        case CallStart():
            yield from deltas
        case CallArguments(index, _):
            yield CallArguments(index, "".join(_text(delta) for delta in deltas))
        case Content():
            yield Content("".join(map(_text, deltas)))
        case Reasoning():
            yield Reasoning("".join(map(_text, deltas)))


def _text(delta: ChatDelta) -> str:
    return "" if isinstance(delta, CallStart) else delta.text
