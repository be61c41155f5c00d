"""Compares vocabularies: a draft model's tokens mean something to the model only if both agree."""

from collections.abc import Sequence
from typing import Final, Generic

import numpy as np

from specllama.engine.worker.backend import Model
from specllama.engine.worker.cache.prefix_cache import Key
from specllama.engine.worker.speculation.source import Ask, ProposalSource, S, SourceState
from specllama.engine.worker.tokens import TokenBuffer, common_prefix

MAX_MORE: Final = 128
"""Tokens that one of the vocabularies may have more: the padding of models of different sizes."""
FIRST_COMPARED: Final = 5
"""Models of one family have other texts for the very first tokens, which are special."""

_KINDS: Final = {1: "SPM", 2: "BPE", 3: "WPM", 4: "UGM", 5: "RWKV", 6: "PLaMo-2"}


def difference(target: Model, draft: Model) -> str:
    """Why tokens of `draft` can't be taken for tokens of `target`, as the end of a sentence; "" if
    they can. By llama-server's rules."""
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


# ---- Drafting with another vocabulary: texts, rather than tokens, go to the draft model and back.


SETTLED: Final = 64
"""Tokens after which the translation of a text's end is settled: tokens far behind don't change how
it is cut into tokens."""
JOIN: Final = 8
"""Tokens before a proposal that are tokenized with it, as a word may go on."""


class TranslatedState(SourceState, Generic[S]):
    """A text in both vocabularies: the first `n_settled` tokens of `target` are all but the rest
    of those of `inner`, from `n_draft` on. `inner` is what the source of the draft model knows."""

    def __init__(self, tokens: TokenBuffer, key: Key, inner: S) -> None:
        super().__init__(tokens, key)
        self.target = _buffer()
        self.inner = inner
        self.n_settled = self.n_draft = 0

    def verified(self, n_proposed: int, n_accepted: int) -> None:
        self.inner.verified(n_proposed, n_accepted)

    def leave(self) -> None:
        self.inner.leave()


class TokenTranslation(Generic[S]):
    """Translates for `inner`, the source of a model with the vocabulary of `draft`. In texts, each
    first of a pair of `replacements` becomes the second for the draft model, and the other way
    round for what it proposes."""

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
        self._there = [(a.encode(), b.encode()) for a, b in replacements]
        self._back = [(b, a) for a, b in self._there if b]

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
        """Put the text into the draft model's tokens; only its end is translated anew."""
        target, draft, n_tokens = state.target, state.inner.tokens, len(state.tokens)
        if common_prefix(target.view(), state.tokens.view()) < state.n_settled:
            state.n_settled = state.n_draft = 0
        draft.remove(state.n_draft, len(draft))
        target.remove(state.n_settled, len(target))
        self._append(state, max(state.n_settled, n_tokens - n_tokens % SETTLED - SETTLED))
        state.n_settled, state.n_draft = len(target), len(draft)
        self._append(state, n_tokens)

    def _append(self, state: TranslatedState[S], stop: int) -> None:
        """Translate on, up to token `stop`."""
        start = len(state.target)
        piece = state.tokens.view(start, stop)
        if not len(piece):
            return
        state.target.extend(piece)
        is_first = start == 0
        if is_first and self._target.add_bos and piece[0] == self._target.bos:
            piece = piece[1:]  # the draft model's takes its place
        text = _whole(_replaced(self._target.detokenize(piece.tolist()), self._there))
        own = self._draft.tokenize(text, add_special=is_first, parse_special=True)
        if is_first and self._draft.add_eos and len(own) and own[-1] == self._draft.eos:
            own = own[:-1]
        state.inner.tokens.extend(own)

    def _proposal(self, ask: Ask[TranslatedState[S]], tokens: Sequence[int]) -> list[int]:
        """What the draft model proposes, in the model's tokens."""
        if not tokens:
            return []
        text = _replaced(self._draft.detokenize(tokens), self._back)
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
    """`text` without the parts of characters that other tokens complete."""
    return text.decode("utf-8", "ignore").encode()
