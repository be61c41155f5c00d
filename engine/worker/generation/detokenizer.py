"""From token pieces to text that can be shown: whole characters, nothing of a stop string."""

import codecs
from bisect import bisect_left
from collections.abc import Sequence

_utf8_decoder = codecs.getincrementaldecoder("utf-8")


class TextStream:
    """Decodes pieces as they come, and holds back what may become a stop string.

    The concatenation of all that `feed` and `finish` return is the decoded text (invalid
    bytes become U+FFFD), cut before the first stop string that it contains: the one that is
    complete first and, of several that are complete with the same character, the longest.
    """

    def __init__(self, stops: Sequence[str] = ()) -> None:
        self.stopping_word = ""
        self._decoder = _utf8_decoder("replace")
        self._decode = self._decoder.decode
        self._held = ""
        self._stops = frozenset(stops)
        self._sorted = sorted(self._stops)
        self._lengths = sorted({len(stop) for stop in stops}, reverse=True)
        self._first = frozenset(stop[0] for stop in stops)

    @property
    def n_held(self) -> int:
        """Decoded characters that are held back."""
        return len(self._held)

    @property
    def is_whole(self) -> bool:
        """Whether the last piece ended with a character."""
        return not self._decoder.getstate()[0]

    def feed(self, piece: bytes) -> str:
        """The text that can be shown now that `piece` has come."""
        text = self._decode(piece)
        return self._scan(text) if self._stops and text else text

    def finish(self) -> str:
        """The rest, when no more will come and no stop string was found."""
        text = self._decode(b"", True)
        if not self._stops:
            return text
        text = self._scan(text)
        if self.stopping_word:
            return text
        held, self._held = self._held, ""
        return text + held

    def _scan(self, new: str) -> str:
        n_old = len(self._held)
        text = self._held + new
        for end in range(n_old + 1, len(text) + 1):
            for length in self._lengths:
                if length <= end and text[end - length : end] in self._stops:
                    self.stopping_word = text[end - length : end]
                    self._held = ""
                    return text[: end - length]
        start = self._hold_from(text)
        self._held = text[start:]
        return text[:start]

    def _hold_from(self, text: str) -> int:
        """The index of the longest end of `text` with which a stop string begins."""
        longest = self._lengths[0]
        for start in range(max(0, len(text) - longest + 1), len(text)):
            if text[start] in self._first:
                end = text[start:]
                i = bisect_left(self._sorted, end)
                if i < len(self._sorted) and self._sorted[i].startswith(end):
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
