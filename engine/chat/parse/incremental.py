"""The base of the parsers of answers: text in, deltas out."""

from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from itertools import groupby
from typing import Any

from specllama.engine.chat.output import CallArguments, CallStart, ChatDelta, Content, Reasoning
from specllama.engine.chat.parse.reader import Reader, Step
from specllama.engine.chat.request import THOUGHTS_IN_CONTENT, ReasoningFormat


class IncrementalParser(ABC):
    """Runs `answer`, a parser written over `reader`, as text arrives."""

    def __init__(self, reasoning: ReasoningFormat) -> None:
        self.reader = Reader()
        self._told_apart = reasoning != "none"
        self.thoughts_in_content = reasoning in THOUGHTS_IN_CONTENT
        self._deltas: list[ChatDelta] = []
        self._running = self.answer()

    @property
    @abstractmethod
    def calling(self) -> bool:
        """As in `engine.chat.parse.parser.AnswerParser`."""

    @abstractmethod
    def answer(self) -> Step[None]:
        """Read the whole answer."""

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
        """More of the thoughts."""
        self.think_markup(text)
        if text and self._told_apart:
            self.emit(Reasoning(text))

    def think_markup(self, text: str) -> None:
        """A marker or white space around thoughts."""
        if text and self.thoughts_in_content:
            self.emit(Content(text))

    def _new(self) -> list[ChatDelta]:
        found = joined(self._deltas)
        self._deltas.clear()
        return found


def joined(deltas: Sequence[ChatDelta]) -> list[ChatDelta]:
    """`deltas`, those of one kind in a row as one."""
    return [delta for _, same in groupby(deltas, _kind) for delta in _joined([*same])]


def _kind(delta: ChatDelta) -> Any:
    return type(delta), getattr(delta, "index", 0)


def _joined(deltas: list[ChatDelta]) -> Iterator[ChatDelta]:
    """Deltas of one kind as one."""
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
