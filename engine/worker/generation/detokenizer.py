"""From token pieces to text that can be shown: whole characters, nothing of a stop string."""

import codecs
from collections.abc import Sequence

from specllama.engine.params import StopScope
from specllama.engine.worker.generation.asides import AnswerParts, Texts

_utf8_decoder = codecs.getincrementaldecoder("utf-8")


class TextStream:
    """Decodes pieces as they come, and holds back what may become a stop string.

    The concatenation of all that `feed` and `finish` return is the decoded text (invalid
    bytes become U+FFFD), cut before the first stop string that it contains: the one that is
    complete first and, of several that are complete with the same character, the longest. A stop
    string counts where `scope` lets it, everywhere without one: it never reaches over an aside.
    """

    def __init__(self, stops: Sequence[str] = (), scope: StopScope | None = None) -> None:
        self.stopping_word = ""
        self._decoder = _utf8_decoder("replace")
        self._decode = self._decoder.decode
        self._held = ""
        self._stops = Texts(stops)
        self._parts = AnswerParts(scope) if stops and scope is not None else None

    @property
    def n_held(self) -> int:
        """Decoded characters that are held back."""
        return len(self._held) + (self._parts.n_held if self._parts is not None else 0)

    @property
    def is_whole(self) -> bool:
        """Whether the last piece ended with a character."""
        return not self._decoder.getstate()[0]

    def feed(self, piece: bytes) -> str:
        """The text that can be shown now that `piece` has come."""
        text = self._decode(piece)
        return self._show(text) if self._stops.all and text else text

    def finish(self) -> str:
        """The rest, when no more will come and no stop string was found."""
        text = self._decode(b"", True)
        if not self._stops.all:
            return text
        text = self._show(text, last=True)
        return text if self.stopping_word else text + self._take_held()

    def _show(self, text: str, *, last: bool = False) -> str:
        if self._parts is None:
            return self._scan(text)
        shown: list[str] = []
        for kind, part in self._parts.split(text, last=last):
            if kind == "aside":
                shown += [self._take_held(), part]
            else:
                shown.append(self._scan(part, counts=kind == "text"))
            if self.stopping_word:
                self._parts = None
                break
        return "".join(shown)

    def _take_held(self) -> str:
        held, self._held = self._held, ""
        return held

    def _scan(self, new: str, *, counts: bool = True) -> str:
        """The text that can be shown with `new`, where no stop string ends unless it `counts`."""
        n_old = len(self._held)
        text = self._held + new
        for end in range(n_old + 1, len(text) + 1) if counts else ():
            for length in self._stops.lengths:
                if length <= end and text[end - length : end] in self._stops.all:
                    self.stopping_word = text[end - length : end]
                    self._held = ""
                    return text[: end - length]
        start = self._hold_from(text)
        self._held = text[start:]
        return text[:start]

    def _hold_from(self, text: str) -> int:
        """The index of the longest end of `text` with which a stop string begins."""
        first = max(0, len(text) - self._stops.lengths[0] + 1)
        for start in range(first, len(text)):
            if self._stops.may_begin(text, start):
                return start
        return len(text)


class IndentLimit:
    """Cuts a text where a line after the first begins with less than `n_blanks` blanks.

    Spaces and tabs count as one each. The line's blanks stay, the rest goes. A line without
    any other character is one with too few blanks, unless it has enough of them.
    """

    def __init__(self, n_blanks: int) -> None:
        self.reached = False
        self._wanted = n_blanks
        self._found: int | None = None  # in the line's beginning; None: beyond it

    def feed(self, text: str) -> str:
        """The part of `text` before the cut; all of it while `reached` is false."""
        at = 0
        while not self.reached:
            if self._found is None:
                at = text.find("\n", at) + 1
                if not at:
                    return text
                self._found = 0
            while at < len(text) and text[at] in " \t":
                self._found += 1
                at += 1
            if at == len(text):
                return text
            self.reached = self._found < self._wanted
            self._found = None
        return text[:at]
