"""Separates the text of an answer from its asides (thoughts, calls, markers) while it is
generated."""

from bisect import bisect_left
from collections.abc import Iterable
from typing import Literal

from specllama.engine.params import Aside, StopScope

Kind = Literal["text", "space", "aside"]
"""`space` is white space after an aside: it belongs to the text only if more text follows."""


class Texts:
    """Fixed, non-empty strings to find in a text."""

    def __init__(self, texts: Iterable[str]) -> None:
        self.all = frozenset(texts)
        self.lengths = sorted({len(text) for text in self.all}, reverse=True)
        self._sorted = sorted(self.all)
        self._first = frozenset(text[0] for text in self.all)

    def at(self, text: str, start: int) -> str:
        """The longest of the strings that begins at `start` of `text`; "" if there is no match."""
        for length in self.lengths:
            if (found := text[start : start + length]) in self.all and len(found) == length:
                return found
        return ""

    def may_begin(self, text: str, start: int) -> bool:
        """True if `text` from `start` to its end is a proper beginning of one of the strings."""
        length = len(text) - start
        if not self.lengths or length >= self.lengths[0] or text[start] not in self._first:
            return False
        rest = text[start:]
        i = bisect_left(self._sorted, rest)
        i += rest in self.all
        return i < len(self._sorted) and self._sorted[i].startswith(rest)

    def find(self, text: str, start: int, *, last: bool) -> tuple[int, str]:
        """The index of the first match and the string. If a possible beginning comes first, and
        this isn't the `last` text: its index and "". Without either: the end of `text` and ""."""
        for at in range(start, len(text)):
            if text[at] in self._first:
                if not last and self.may_begin(text, at):
                    return at, ""
                if found := self.at(text, at):
                    return at, found
        return len(text), ""


class AnswerParts:
    """Splits one answer into its parts, by the markers of `scope`. Holds back text that may become
    a marker."""

    def __init__(self, scope: StopScope) -> None:
        self._asides = {aside.begin: aside for aside in scope.asides}
        self._at_start = Texts(self._asides)
        self._anywhere = Texts(each.begin for each in scope.asides if not each.at_start)
        self._ends = None if scope.begun is None else Texts(scope.begun.ends)  # set inside an aside
        self._starting = not scope.continued
        self._skips_space = scope.skips_space
        self._said = False  # some text has been seen
        self._held = ""

    @property
    def n_held(self) -> int:
        return len(self._held)

    def split(self, text: str, *, last: bool = False) -> list[tuple[Kind, str]]:
        """Returns the parts of the answer that are certain with this further `text`, in order;
        `last`: no more text follows."""
        text, self._held = self._held + text, ""
        parts: list[tuple[Kind, str]] = []
        at = 0
        while at < len(text):
            if self._ends is not None:
                end, found = self._ends.find(text, at, last=last)
                kind: Kind = "aside"
            elif self._starting and text[at].isspace():
                parts.append((self._kind_of_space(), text[at]))
                at += 1
                continue
            elif self._starting and self._at_start.may_begin(text, at) and not last:
                end, found = at, ""
                kind = "text"
            elif self._starting and not (found := self._at_start.at(text, at)):
                self._starting = False
                continue
            elif self._starting:
                end, kind = at, "text"
            else:
                end, found = self._anywhere.find(text, at, last=last)
                kind = "text"
            if end > at:
                parts.append((kind, text[at:end]))
                self._said |= kind == "text"
            if not found:
                self._held = text[end:]
                break
            parts.append(("aside", found))
            at = end + len(found)
            self._pass(found)
        return parts

    def _kind_of_space(self) -> Kind:
        if not self._skips_space:
            return "text"
        return "space" if self._said else "aside"

    def _pass(self, marker: str) -> None:
        """Continue after the marker that begins or ends an aside."""
        aside = self._asides[marker] if self._ends is None else Aside(marker, alone=True)
        self._ends = None if aside.alone else Texts(aside.ends)
        self._starting = self._skips_space = True
