"""Prompts for filling in the middle (FIM): what surrounds a gap, as a model was trained to see it.

Two patterns:

    plain        snippets  BOS PRE prefix middle SUF suffix MID
    repository   REP name  SEP file text ...  SEP file  BOS PRE prefix middle SUF suffix MID

The second (Hui et al., "Qwen2.5-Coder Technical Report", arXiv:2409.12186) is for vocabularies
with its two separators. Some models want the suffix first: BOS SUF suffix PRE prefix middle MID.
BOS is for vocabularies that want a beginning. Its place and that of `middle`, the names and the
separators of snippets are those of llama-server, as editor plugins know it.

Pure functions over token arrays. Special tokens get in by their ids alone: texts are encoded by
the caller's function, which must not parse special tokens.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from specllama.engine.worker.backend.model import FimTokens
from specllama.engine.worker.tokens import TokenArray

REPOSITORY = "myproject"
FILE = "filename"
SNIPPET = "\n\n--- snippet ---\n\n"

Encode = Callable[[str], TokenArray]


@dataclass(frozen=True, kw_only=True)
class Gap:
    """The text around a gap. `middle` is how the missing text begins, which a model sees as the end
    of the prefix, but which is never cut; `snippets` are (file name, text) pairs of other places,
    the nearest last."""

    prefix: TokenArray
    suffix: TokenArray
    middle: TokenArray
    snippets: Sequence[tuple[str, str]] = ()


@dataclass(frozen=True, kw_only=True)
class Room:
    """Tokens that there is room for: in the context, in one batch, and how many are to be
    generated (-1: unknown)."""

    n_ctx: int
    n_batch: int
    n_predict: int

    @property
    def n_prompt(self) -> int:
        """The greatest length of a prompt that leaves room for what was asked for, which is at most
        half of the context (a quarter, if it is unknown)."""
        reserved = min(self.n_predict, self.n_ctx // 2) if self.n_predict >= 0 else self.n_ctx // 4
        return self.n_ctx - 1 - reserved


def gap_tokens(
    gap: Gap, fim: FimTokens, encode: Encode, room: Room, *, bos: int | None, suffix_first: bool
) -> TokenArray:
    """The prompt for `gap`.

    Prefix and suffix together fit into one batch: what is farthest from the gap is cut first,
    and where both are long, the prefix gets three quarters. What is left of the room goes to the
    snippets, the nearest ones. The frame and `middle` are never cut, so that the prompt is longer
    than `room` if these alone are.
    """
    opening, snippets, closing = _context(gap, fim, encode)
    n_frame = 3 + (bos is not None) + len(opening) + len(closing) + len(gap.middle)
    n_around = max(0, min(room.n_batch, room.n_prompt) - n_frame)
    n_prefix, n_suffix = share(n_around, len(gap.prefix), len(gap.suffix))
    n_snippets = max(0, room.n_prompt - n_frame - n_prefix - n_suffix)
    prefix = _join([fim.prefix], _last(gap.prefix, n_prefix), gap.middle)
    suffix = _join([fim.suffix], gap.suffix[:n_suffix])
    return _join(
        opening,
        _last(snippets, n_snippets),
        closing,
        [] if bos is None else [bos],
        *((suffix, prefix) if suffix_first else (prefix, suffix)),
        [fim.middle],
    )


def share(n_room: int, n_prefix: int, n_suffix: int) -> tuple[int, int]:
    """The numbers of tokens of a prefix and of a suffix to take: all if there is room, else a
    quarter for the suffix, and more of the one where the other needs less."""
    suffix = min(n_suffix, max(n_room // 4, n_room - n_prefix))
    return min(n_prefix, n_room - suffix), suffix


def _context(gap: Gap, fim: FimTokens, encode: Encode) -> tuple[TokenArray, TokenArray, TokenArray]:
    """The tokens before the gap's own file: the opening, the snippets, the closing."""
    parts: list[Sequence[int] | TokenArray] = []
    if fim.repository is None or fim.file is None:
        for _, text in gap.snippets:
            parts += [encode(SNIPPET), encode(text)]
        return _join(), _join(*parts), _join()
    for name, text in gap.snippets:
        parts += [[fim.file], encode(name + "\n"), encode(text)]
    opening = _join([fim.repository], encode(REPOSITORY + "\n"))
    closing = _join([fim.file], encode(FILE + "\n"))
    return opening, _join(*parts), closing


def _last(tokens: TokenArray, n: int) -> TokenArray:
    return tokens[max(0, len(tokens) - n) :]


def _join(*parts: Sequence[int] | TokenArray) -> TokenArray:
    return np.concatenate([np.asarray(part, np.int32) for part in ((), *parts)])
