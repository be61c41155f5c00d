"""Compares the vocabularies of a draft and a target model, and translates if they differ."""

from collections.abc import Sequence
from typing import Final, Generic

import numpy as np

from specllama.engine.worker.backend import Model
from specllama.engine.worker.cache.texts import Key
from specllama.engine.worker.speculation.source import Ask, ProposalSource, S, SourceState
from specllama.engine.worker.tokens import TokenBuffer, common_prefix

MAX_MORE: Final = 128
"""Allowed difference in vocabulary size: the padding of models of different sizes."""
FIRST_COMPARED: Final = 5
"""The first token id to compare: models of one family differ in the texts of the first, special
ones."""

_KINDS: Final = {1: "SPM", 2: "BPE", 3: "WPM", 4: "UGM", 5: "RWKV", 6: "PLaMo-2"}


def difference(target: Model, draft: Model) -> str:
    """Why tokens of `draft` can't be used as tokens of `target`, as the end of a sentence; "" if
    they can. Follows llama-server's rules."""
    if target.vocab_type != draft.vocab_type:
        return f"it is of the kind {_kind(draft)}, not {_kind(target)}"
    for name, add, ids in (
        ("begin", (target.add_bos, draft.add_bos), (target.bos, draft.bos)),
        ("end", (target.add_eos, draft.add_eos), (target.eos, draft.eos)),
    ):
        if add[0] != add[1] or (add[0] and ids[0] != ids[1]):
            return f"texts {name} with another token"
    if abs(target.n_vocab - draft.n_vocab) > MAX_MORE:
        return f"it has {draft.n_vocab} tokens, not {target.n_vocab}"
    for token in range(FIRST_COMPARED, min(target.n_vocab, draft.n_vocab)):
        own, other = target.raw_text(token), draft.raw_text(token)
        if own != other:
            return f"its token {token} is {_shown(other)}, not {_shown(own)}"
    return ""


def _kind(model: Model) -> str:
    return _KINDS.get(model.vocab_type, str(model.vocab_type))


def _shown(text: bytes) -> str:
    return ascii(text.decode("utf-8", "replace")[:40])


# ---- Drafting with another vocabulary: texts instead of tokens are passed to the draft model and
# back.


SETTLED: Final = 64
"""Number of later tokens after which the translation of a token is final: distant tokens don't
affect how a text is tokenized."""
JOIN: Final = 8
"""Number of tokens before a proposal that are tokenized with it, as it may continue a word."""


class TranslatedState(SourceState, Generic[S]):
    """A text in both vocabularies. The first `n_settled` tokens of `target`, and the first
    `n_draft` tokens of `inner.tokens` (their translation), are final. `inner` is the state of the
    draft model's source."""

    def __init__(self, tokens: TokenBuffer, key: Key, inner: S) -> None:
        super().__init__(tokens, key)
        self.target = _buffer()
        self.inner = inner
        self.n_settled = self.n_draft = 0

    def verified(self, n_proposed: int, n_accepted: int) -> None:
        self.inner.verified(n_proposed, n_accepted)

    def detach(self) -> None:
        self.inner.detach()


class TokenTranslation(Generic[S]):
    """Translates for `inner`, the source of a model with the vocabulary of `draft`. For each pair
    of `replacements`, the first string is replaced by the second in texts for the draft model, and
    the second by the first in its proposals."""

    def __init__(
        self,
        inner: ProposalSource[S],
        target: Model,
        draft: Model,
        replacements: Sequence[tuple[str, str]],
    ) -> None:
        self.name = inner.name
        self._inner = inner
        self._target = target
        self._draft = draft
        self._to_draft = [(a.encode(), b.encode()) for a, b in replacements]
        self._from_draft = [(b, a) for a, b in self._to_draft if b]

    def begin(self, tokens: TokenBuffer, key: Key) -> TranslatedState[S]:
        return TranslatedState(tokens, key, self._inner.begin(_buffer(), key))

    def propose(self, asks: Sequence[Ask[TranslatedState[S]]]) -> list[list[int]]:
        for ask in asks:
            self._translate(ask.state)
        found = self._inner.propose([Ask(ask.state.inner, ask.n, ask.p_min) for ask in asks])
        for ask in asks:
            ask.state.is_unread = ask.state.inner.is_unread
        return [self._proposal(ask, tokens) for ask, tokens in zip(asks, found, strict=True)]

    def close(self) -> None:
        self._inner.close()

    def _translate(self, state: TranslatedState[S]) -> None:
        """Update the text in the draft model's tokens; only its end is translated again."""
        target, draft, n_tokens = state.target, state.inner.tokens, len(state.tokens)
        if common_prefix(target.view(), state.tokens.view()) < state.n_settled:
            state.n_settled = state.n_draft = 0
        draft.remove(state.n_draft, len(draft))
        target.remove(state.n_settled, len(target))
        self._append(state, max(state.n_settled, n_tokens - n_tokens % SETTLED - SETTLED))
        state.n_settled, state.n_draft = len(target), len(draft)
        self._append(state, n_tokens)

    def _append(self, state: TranslatedState[S], stop: int) -> None:
        """Continue the translation up to token `stop`."""
        start = len(state.target)
        piece = state.tokens.view(start, stop)
        if not len(piece):
            return
        state.target.extend(piece)
        is_first = start == 0
        if is_first and self._target.add_bos and piece[0] == self._target.bos:
            piece = piece[1:]  # replaced by the draft model's own
        text = _whole(_replaced(self._target.detokenize(piece.tolist()), self._to_draft))
        own = self._draft.tokenize(text, add_special=is_first, parse_special=True)
        if is_first and self._draft.add_eos and len(own) and own[-1] == self._draft.eos:
            own = own[:-1]
        state.inner.tokens.extend(own)

    def _proposal(self, ask: Ask[TranslatedState[S]], tokens: Sequence[int]) -> list[int]:
        """The draft model's proposal in tokens of the target model."""
        if not tokens:
            return []
        text = _replaced(self._draft.detokenize(tokens), self._from_draft)
        before = self._target.detokenize(ask.state.tokens.view()[-JOIN:].tolist())
        without = self._tokens(before)
        together = self._tokens(before + text)
        if together[: len(without)] != without:
            return []
        return together[len(without) :][: ask.n]

    def _tokens(self, text: bytes) -> list[int]:
        own = self._target.tokenize(_whole(text), add_special=False, parse_special=True)
        return [int(token) for token in own]


def _buffer() -> TokenBuffer:
    return TokenBuffer(np.empty(0, np.int32))


def _replaced(text: bytes, pairs: Sequence[tuple[bytes, bytes]]) -> bytes:
    for old, new in pairs:
        text = text.replace(old, new)
    return text


def _whole(text: bytes) -> bytes:
    """`text` without incomplete characters."""
    return text.decode("utf-8", "ignore").encode()
