"""Tokenizes prompts, and turns tokens back into text."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Final

import numpy as np

from specllama.engine.errors import EngineError, ErrorInfo, invalid_request, not_supported
from specllama.engine.wire.media import Media
from specllama.engine.wire.requests import Infill
from specllama.engine.worker.backend import Model
from specllama.engine.worker.backend.model import FimTokens
from specllama.engine.worker.media.prompts import MARKER, no_input, parts
from specllama.engine.worker.media.registry import MediaRegistry
from specllama.engine.worker.tokens import TokenArray

# ---- Prompts for filling in the middle (FIM): the text around a gap, in the form that a
# model was trained on.
#
# Two patterns:
#
#     plain        snippets  BOS PRE prefix middle SUF suffix MID
#     repository   REP name  SEP file text ...  SEP file  BOS PRE prefix middle SUF suffix MID
#
# The second (Hui et al., "Qwen2.5-Coder Technical Report", arXiv:2409.12186) is for vocabularies
# with its two separators. Some models want the suffix first: BOS SUF suffix PRE prefix middle MID.
# BOS is added for vocabularies with `add_bos`. Its place and that of `middle`, the names and the
# separators of snippets are the same as in llama-server, which editor plugins expect.
#
# Pure functions over token arrays. Special tokens are added by id only: the caller's function
# encodes texts, and must not parse special tokens in them.


REPOSITORY = "myproject"
FILE = "filename"
SNIPPET = "\n\n--- snippet ---\n\n"

Encode = Callable[[str], TokenArray]


@dataclass(frozen=True, kw_only=True)
class Gap:
    """The text around a gap. `middle` is the known beginning of the missing text: for the model it
    is the end of the prefix, but it is never cut. `snippets` are (file name, text) pairs from other
    places, the nearest one last."""

    prefix: TokenArray
    suffix: TokenArray
    middle: TokenArray
    snippets: Sequence[tuple[str, str]] = ()


@dataclass(frozen=True, kw_only=True)
class Room:
    """Limits in tokens: the context, one batch, and the tokens to generate (-1: unknown)."""

    n_ctx: int
    n_batch: int
    n_predict: int

    @property
    def n_prompt(self) -> int:
        """The longest prompt that leaves room for the answer: `n_predict` tokens, at most half of
        the context; a quarter of the context if `n_predict` is unknown."""
        reserved = min(self.n_predict, self.n_ctx // 2) if self.n_predict >= 0 else self.n_ctx // 4
        return self.n_ctx - 1 - reserved


def gap_tokens(
    gap: Gap, fim: FimTokens, encode: Encode, room: Room, *, bos: int | None, suffix_first: bool
) -> TokenArray:
    """The prompt for `gap`.

    Prefix and suffix together fit into one batch: the tokens farthest from the gap are cut first,
    and where both are long, the prefix gets three quarters. The remaining room goes to the nearest
    snippets. The frame and `middle` are never cut: if they alone exceed `room`, so does the prompt.
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
    """The numbers of tokens to keep of a prefix and of a suffix: all if there is room. Otherwise
    the suffix gets a quarter and the prefix the rest, and each gets the room that the other doesn't
    need."""
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


WHITE_SPACE: Final = b" \t\n\v\f\r"
COUNTED: Final = 16 << 20
"""Bytes of text up to which tokens are counted even if they can't fit: the limit of `POST
/tokenize`."""


def _refuse(media: Media) -> TokenArray:
    raise no_input(media.kind)


def tokenize_prompt(
    model: Model,
    prompt: Sequence[int | str | Media],
    *,
    add_special: bool = True,
    parse_special: bool = True,
    media_tokens: Callable[[Media], TokenArray] = _refuse,
) -> TokenArray:
    """The tokens of a sequence of token ids, texts and media, as described at
    `engine.wire.requests.Submit`.

    Without `add_special`, no special tokens are added at the start of a leading text. Without
    `parse_special`, special tokens in texts are treated as plain text.

    Raises `EngineError` if a token id is not in the vocabulary, or a medium isn't supported.
    """
    if any(isinstance(element, Media) for element in prompt):
        return _with_media(model, prompt, add_special, parse_special, media_tokens)
    parts: list[TokenArray] = []
    ids: list[int] = []
    for i, element in enumerate(prompt):
        if isinstance(element, str):
            if ids:
                parts.append(check_tokens(model, ids))
                ids = []
            parts.append(
                model.tokenize(
                    element.encode(),
                    add_special=add_special and i == 0,
                    parse_special=parse_special,
                )
            )
        elif isinstance(element, int):
            ids.append(element)
    if ids:
        parts.append(check_tokens(model, ids))
    if not parts:
        return np.empty(0, np.int32)
    return parts[0] if len(parts) == 1 else np.concatenate(parts)


def _with_media(
    model: Model,
    prompt: Sequence[int | str | Media],
    add_special: bool,
    parse_special: bool,
    media_tokens: Callable[[Media], TokenArray],
) -> TokenArray:
    """As in libmtmd: the start token precedes, and the end token follows all other tokens."""
    found: list[TokenArray] = []
    for element in prompt:
        if isinstance(element, Media):
            found.append(media_tokens(element))
        else:
            found.append(
                tokenize_prompt(model, [element], add_special=False, parse_special=parse_special)
            )
    if add_special and not isinstance(prompt[0], int):
        if model.add_bos:
            found.insert(0, np.array([model.bos], np.int32))
        if model.add_eos:
            found.append(np.array([model.eos], np.int32))
    return np.concatenate(found)


def check_countable(model: Model, prompt: Sequence[int | str | Media], n_ctx: int) -> None:
    """Raises `EngineError` if `prompt` certainly exceeds the context, and is too long to be
    counted."""
    size = sum(len(element.encode()) for element in prompt if isinstance(element, str))
    if size > COUNTED and (fewest := fewest_tokens(model, prompt)) > n_ctx:
        raise exceeds_context(fewest, n_ctx, is_lower_bound=True)


def fewest_tokens(model: Model, prompt: Sequence[int | str | Media]) -> int:
    """A lower bound for the number of tokens of `prompt`, much faster than tokenizing; 0 for a
    vocabulary without a known bound."""
    if not model.longest_piece:
        return 0
    texts = [element.encode() for element in prompt if isinstance(element, str)]
    # White space next to a special token may belong to no token.
    sizes = (len(text.translate(None, WHITE_SPACE)) for text in texts)
    return len(prompt) - len(texts) + sum(-(-size // model.longest_piece) for size in sizes)


def detokenize_media(model: Model, tokens: TokenArray, registry: MediaRegistry) -> str:
    """The text of `tokens`, with a marker for each medium."""
    if not (tokens < 0).any():
        return detokenize(model, tokens)
    return "".join(
        MARKER if part is None else detokenize(model, part) for part in parts(tokens, registry)
    )


def detokenize(model: Model, tokens: TokenArray) -> str:
    """The text of `tokens`; invalid bytes become U+FFFD."""
    return model.detokenize(tokens.tolist()).decode("utf-8", "replace")


def tokenize_gap(model: Model, infill: Infill, room: Room, *, suffix_first: bool) -> TokenArray:
    """The prompt for a gap, cut to fit into `room`.

    Raises `EngineError` if the model has no FIM tokens, or a token id is unknown.
    """
    if model.fim is None:
        raise not_supported("Infill is not supported by this model: it has no tokens for it")
    tokens = partial(tokenize_prompt, model, add_special=False, parse_special=False)
    gap = Gap(
        prefix=tokens(infill.prefix),
        suffix=tokens(infill.suffix),
        middle=tokens([infill.middle]),
        snippets=infill.extra,
    )
    return gap_tokens(
        gap,
        model.fim,
        lambda text: tokens([text]),
        room,
        bos=model.bos if model.add_bos else None,
        suffix_first=suffix_first,
    )


def check_tokens(model: Model, ids: Sequence[int]) -> TokenArray:
    """`ids` as an array. Raises `EngineError` if one is not in the vocabulary."""
    wide = np.array(ids, np.int64)
    wrong = np.flatnonzero((wide < 0) | (wide >= model.n_vocab))
    if len(wrong):
        raise invalid_request(
            f"token {wide[wrong[0]]} is not in the vocabulary of {model.n_vocab} tokens"
        )
    return wide.astype(np.int32)


def too_large(n_tokens: int) -> str:
    """llama-server's words for an input without an answer, which clients search for."""
    return f"input ({n_tokens} tokens) is too large to process"


def exceeds_context(
    n_tokens: int, n_ctx: int, *, is_lower_bound: bool = False, is_input: bool = False
) -> EngineError:
    """The error for a prompt of `n_tokens` (`is_lower_bound`: at least) in a context of `n_ctx`;
    `is_input`: it gets a vector or a score, no answer."""
    message = (  # agents shorten a conversation on llama-server's or OpenAI's words
        f"request ({n_tokens} tokens) exceeds the available context size "
        f"({n_ctx} tokens), try increasing it; the prompt is too long"
    )
    if is_lower_bound:
        message += " to be counted, and has at least that many tokens"
    if is_input:
        message = f"{too_large(n_tokens)}: {message}"
    return EngineError(
        ErrorInfo(
            type="exceed_context_size_error",
            message=message,
            n_prompt_tokens=n_tokens,
            n_prompt_tokens_is_lower_bound=is_lower_bound,
            n_ctx=n_ctx,
        )
    )
