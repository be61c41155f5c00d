"""Calls of tools that take a plain text, which models write as a function's only argument.

The JSON around the text is taken away while it comes, so that a client sees the text grow.
"""

import json
import re
from collections.abc import Collection

from specllama.engine.chat.output import CallArguments, CallStart, ChatDelta
from specllama.engine.chat.parse.parser import AnswerParser
from specllama.engine.chat.request import FREE_TEXT

_BEGIN = re.compile(rf'\s*\{{\s*"{FREE_TEXT}"\s*:\s*"')
_PIECE = re.compile(
    r'(?:[^"\\]|\\u(?!d[89ab])[0-9a-f]{4}|\\ud[89ab][0-9a-f]{2}'
    r"(?!\\?\Z|\\u[0-9a-f]{0,3}\Z)|\\[^u])*",
    re.IGNORECASE | re.DOTALL,
)


class FreeTextCalls:
    """An `AnswerParser` around another one: calls of the tools in `names` have the text alone as
    their arguments."""

    def __init__(self, parser: AnswerParser, names: Collection[str]) -> None:
        self._parser = parser
        self._names = names
        self._texts: dict[int, _Text] = {}

    @property
    def calling(self) -> bool:
        return self._parser.calling

    def feed(self, text: str) -> list[ChatDelta]:
        return self._plain(self._parser.feed(text))

    def finish(self, *, cut_off: bool = False) -> list[ChatDelta]:
        return self._plain(self._parser.finish(cut_off=cut_off))

    def _plain(self, deltas: list[ChatDelta]) -> list[ChatDelta]:
        made: list[ChatDelta] = []
        for delta in deltas:
            match delta:
                case CallStart(index, id, name) if name in self._names:
                    self._texts[index] = _Text()
                    made.append(CallStart(index, id, name, free_text=True))
                case CallArguments(index, text) if index in self._texts:
                    if plain := self._texts[index].feed(text):
                        made.append(CallArguments(index, plain))
                case _:
                    made.append(delta)
        return made


class _Text:
    """The text in `{"input": "..."}`, which comes in pieces."""

    def __init__(self) -> None:
        self._held = ""  # the beginning of the JSON, later an escape sequence that is incomplete
        self._begun = self._ended = False

    def feed(self, text: str) -> str:
        """What is new of the text."""
        if self._ended:
            return ""
        self._held += text
        if not self._begun:
            begin = _BEGIN.match(self._held)
            if begin is None:
                return ""
            self._held = self._held[begin.end() :]
            self._begun = True
        piece = _PIECE.match(self._held)
        assert piece is not None, "the pattern matches the empty text"
        self._held = self._held[piece.end() :]
        self._ended = self._held.startswith('"')
        found = json.loads(f'"{piece[0]}"', strict=False)
        # Half of a pair of surrogates is no character, and no text of an answer.
        return str(found.encode("utf-16", "surrogatepass").decode("utf-16", "replace"))
