"""Which generated tokens the content of a chat's answer is made of."""

import codecs
from collections import deque
from collections.abc import Iterator, Sequence

from specllama.engine.chat.output import ChatDelta, Content, Reasoning
from specllama.engine.wire.replies import TokenProbs

_Place = tuple[TokenProbs, int, int]
"""A token, and the characters that it has a part of: from, to."""


class ContentTokens:
    """Follows one answer. For each event of the engine call `generated` with its tokens; then read
    its text in the `parts` that tokens are, and call `said` with what each has brought.

    A token that has the end of a marker and the beginning of the content is one of the content.
    """

    def __init__(self) -> None:
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")
        self._tokens: deque[_Place] = deque()
        self._n_generated = 0  # characters of all tokens
        self._n_read = 0  # of the text that the parser has read
        self._unsaid = ""  # the end of that text: no delta has had it

    def generated(self, probs: Sequence[TokenProbs]) -> None:
        """The engine has made these tokens; their text may come later."""
        for each in probs:
            begin = self._n_generated
            self._n_generated += len(self._decoder.decode(each.piece))
            is_cut = bool(self._decoder.getstate()[0])  # it has the beginning of a character
            self._tokens.append((each, begin, self._n_generated + is_cut))

    def parts(self, text: str) -> Iterator[str]:
        """`text`, cut where tokens begin."""
        first, begin = self._n_read, 0
        cuts = {start - first for _, start, _ in self._tokens if 0 < start - first < len(text)}
        for end in (*sorted(cuts), len(text)):
            part = text[begin:end]
            self._n_read, begin = first + end, end
            self._unsaid += part
            yield part

    def said(self, deltas: Sequence[ChatDelta]) -> list[TokenProbs]:
        """The tokens of the content in `deltas`, each of them once."""
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
        """From where to where the text of each of `deltas` goes, which the parser has just told;
        for a part of a call, to the end of what it has read. What stands between is markup."""
        first = self._n_read - len(self._unsaid)
        places: list[tuple[int, int]] = []
        limit = len(self._unsaid)
        for delta in reversed(deltas):  # the last text is the nearest to the end
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
        """Drop the tokens that have no character from `end` on."""
        while self._tokens and self._tokens[0][2] <= end and self._tokens[0][1] < end:
            self._tokens.popleft()
