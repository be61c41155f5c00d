"""Finds the generated tokens of the content of a chat's answer."""

import codecs
from collections import deque
from collections.abc import Iterator, Sequence

from specllama.engine.chat.output import ChatDelta, Content, Reasoning
from specllama.engine.wire.replies import TokenProbs

_Place = tuple[TokenProbs, int, int]
"""A token, and the range of the characters that it contains, wholly or in part: (begin, end)."""


class ContentTokens:
    """The tokens of one answer. For each engine event, call `generated` with its tokens, then give
    each of the `parts` of its text to the parser, and call `said` with the parser's deltas.

    A token with both the end of a marker and the beginning of the content belongs to the content.
    """

    def __init__(self) -> None:
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")
        self._tokens: deque[_Place] = deque()
        self._n_generated = 0  # characters of all tokens
        self._n_read = 0  # characters that the parser has read
        self._unsaid = ""  # the end of the text read, which is in no delta yet

    def generated(self, probs: Sequence[TokenProbs]) -> None:
        """Adds generated tokens; their text may be in a later event."""
        for each in probs:
            begin = self._n_generated
            self._n_generated += len(self._decoder.decode(each.piece))
            is_cut = bool(self._decoder.getstate()[0])  # it ends inside a character
            self._tokens.append((each, begin, self._n_generated + is_cut))

    def parts(self, text: str) -> Iterator[str]:
        """Yields `text`, split where tokens begin."""
        first, begin = self._n_read, 0
        cuts = {start - first for _, start, _ in self._tokens if 0 < start - first < len(text)}
        for end in (*sorted(cuts), len(text)):
            part = text[begin:end]
            self._n_read, begin = first + end, end
            self._unsaid += part
            yield part

    def said(self, deltas: Sequence[ChatDelta]) -> list[TokenProbs]:
        """Returns the tokens of the content in `deltas`; every token is returned once."""
        found: list[TokenProbs] = []
        for delta, (begin, end) in zip(deltas, self._places(deltas), strict=True):
            if isinstance(delta, Content):
                self._leave(begin)
                while self._tokens and self._tokens[0][1] < end:
                    found.append(self._tokens.popleft()[0])
            else:
                self._leave(end)
        return found

    def _places(self, deltas: Sequence[ChatDelta]) -> list[tuple[int, int]]:
        """Returns the range (begin, end) of each delta's text in the answer's text. The deltas are
        the parser's last ones; text between them is markup. A part of a call gets an empty range
        before the next delta, or at the end of the text read."""
        first = self._n_read - len(self._unsaid)
        places: list[tuple[int, int]] = []
        limit = len(self._unsaid)
        for delta in reversed(deltas):  # the last delta is nearest to the end
            if isinstance(delta, Content | Reasoning):
                at = max(self._unsaid.rfind(delta.text, 0, limit), 0)
                limit = min(at + len(delta.text), limit)
                places.append((first + at, first + limit))
                limit = at
            else:
                places.append((first + limit, first + limit))
        if places:
            self._unsaid = self._unsaid[places[0][1] - first :]
        return places[::-1]

    def _leave(self, end: int) -> None:
        """Drops the tokens whose characters are all before `end`."""
        while self._tokens and self._tokens[0][2] <= end and self._tokens[0][1] < end:
            self._tokens.popleft()
