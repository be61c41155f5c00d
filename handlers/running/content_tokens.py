"""Which generated tokens the content of a chat's answer is made of."""

import codecs
from collections import deque
from collections.abc import Iterator, Sequence

from engine.chat.output import ChatDelta, Content, Reasoning
from engine.protocol.messages import TokenProbs

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
        """The tokens of the content in `deltas`."""
        found: list[TokenProbs] = []
        for delta in deltas:
            match delta:
                case Content(text):
                    found += self._taken(text)
                case Reasoning(text):
                    self._taken(text)
                case _:
                    self._unsaid = ""
                    self._until(self._n_read)
        return found

    def _taken(self, text: str) -> list[TokenProbs]:
        """The tokens of `text`, which the parser has just told. What stands before it is markup."""
        place = self._unsaid.rfind(text)
        if place < 0:
            return []
        begin = self._n_read - len(self._unsaid) + place
        end = begin + len(text)
        self._unsaid = self._unsaid[place + len(text) :]
        return [token for token, _, stop in self._until(end) if stop > begin]

    def _until(self, end: int) -> list[_Place]:
        """Take the tokens that begin before `end`."""
        taken: list[_Place] = []
        while self._tokens and self._tokens[0][1] < end:
            taken.append(self._tokens.popleft())
        return taken
