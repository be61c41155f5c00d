"""Compares vocabularies: a draft model's tokens mean something to the model only if both agree."""

from collections.abc import Sequence, Set
from dataclasses import dataclass
from typing import Final

import numpy as np

from specllama.engine.worker.backend import Model
from specllama.engine.worker.speculation.source import Ask, ProposalSource, Reading
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


@dataclass(eq=False)
class _Translated:
    """A text in both vocabularies: the first `n_settled` tokens of `target` are all but the rest
    of `draft`, from `n_draft` on."""

    target: TokenBuffer
    draft: TokenBuffer
    n_settled: int = 0
    n_draft: int = 0


class TokenTranslation:
    """Translates for `inner`, the source of a model with the vocabulary of `draft`. In texts, each
    first of a pair of `replacements` becomes the second for the draft model, and the other way
    round for what it proposes."""

    def __init__(
        self,
        inner: ProposalSource,
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
        self._texts: dict[int, _Translated] = {}

    def propose(self, asks: Sequence[Ask]) -> list[list[int]]:
        translated = [
            Ask(ask.id, self._translated(ask), ask.n_prompt, ask.key, ask.n, ask.p_min)
            for ask in asks
        ]
        proposals = self._inner.propose(translated)
        return [
            self._proposal(ask, proposal) for ask, proposal in zip(asks, proposals, strict=True)
        ]

    @property
    def unread(self) -> Set[int]:
        return self._inner.unread if isinstance(self._inner, Reading) else frozenset()

    def verified(self, id: int, n_proposed: int, n_accepted: int) -> None:
        self._inner.verified(id, n_proposed, n_accepted)

    def forget(self, id: int) -> None:
        self._texts.pop(id, None)
        self._inner.forget(id)

    def close(self) -> None:
        self._inner.close()

    def _translated(self, ask: Ask) -> TokenBuffer:
        """The text of `ask` in the draft model's tokens; only its end is translated anew."""
        tokens = ask.tokens.view()
        known = self._texts.get(ask.id)
        if known is None or common_prefix(known.target.view(), tokens) < known.n_settled:
            known = self._texts[ask.id] = _Translated(_buffer(), _buffer())
        known.draft.remove(known.n_draft, len(known.draft))
        known.target.remove(known.n_settled, len(known.target))
        settled = max(known.n_settled, len(tokens) - len(tokens) % SETTLED - SETTLED)
        self._append(known, ask, settled)
        known.n_settled, known.n_draft = len(known.target), len(known.draft)
        self._append(known, ask, len(tokens))
        return known.draft

    def _append(self, known: _Translated, ask: Ask, stop: int) -> None:
        """Translate on, up to token `stop`."""
        start = len(known.target)
        piece = ask.tokens.view(start, stop)
        if not len(piece):
            return
        known.target.extend(piece)
        is_first = start == 0
        if is_first and self._target.add_bos and piece[0] == self._target.bos:
            piece = piece[1:]  # the draft model's takes its place
        text = _whole(_replaced(self._target.detokenize(piece.tolist()), self._there))
        own = self._draft.tokenize(text, add_special=is_first, parse_special=True)
        if is_first and self._draft.add_eos and len(own) and own[-1] == self._draft.eos:
            own = own[:-1]
        known.draft.extend(own)

    def _proposal(self, ask: Ask, tokens: Sequence[int]) -> list[int]:
        """What the draft model proposes, in the model's tokens."""
        if not tokens:
            return []
        text = _replaced(self._draft.detokenize(tokens), self._back)
        before = self._target.detokenize(ask.tokens.view(max(0, len(ask.tokens) - JOIN)).tolist())
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
