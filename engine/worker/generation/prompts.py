"""From what a request says to tokens, and back."""

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

# ---- Prompts for filling in the middle (FIM): what surrounds a gap, as a model was trained to see
# it.
#
# Two patterns:
#
#     plain        snippets  BOS PRE prefix middle SUF suffix MID
#     repository   REP name  SEP file text ...  SEP file  BOS PRE prefix middle SUF suffix MID
#
# The second (Hui et al., "Qwen2.5-Coder Technical Report", arXiv:2409.12186) is for vocabularies
# with its two separators. Some models want the suffix first: BOS SUF suffix PRE prefix middle MID.
# BOS is for vocabularies that want a beginning. Its place and that of `middle`, the names and the
# separators of snippets are those of llama-server, as editor plugins know it.
#
# Pure functions over token arrays. Special tokens get in by their ids alone: texts are encoded by
# the caller's function, which must not parse special tokens.


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


WHITE_SPACE: Final = b" \t\n\v\f\r"
COUNTED: Final = 16 << 20
"""Bytes of text that are counted even where they can't fit: as many as `POST /tokenize` takes."""


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
    """The tokens of a sequence of token ids, texts and media, in the way of `protocol.Submit`.

    Without `add_special` nothing is added to the text that it begins with; without
    `parse_special` no text can bring special tokens in.

    Raises `EngineError` if a token id is not in the vocabulary, or a medium can't be taken.
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
    """As libmtmd does it: the start token is in front of all, and the end token behind all."""
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
    """Raises `EngineError` if `prompt` is too long to be counted, and for the context as well."""
    size = sum(len(element.encode()) for element in prompt if isinstance(element, str))
    if size > COUNTED and (fewest := fewest_tokens(model, prompt)) > n_ctx:
        raise exceeds_context(fewest, n_ctx, is_lower_bound=True)


def fewest_tokens(model: Model, prompt: Sequence[int | str | Media]) -> int:
    """A number of tokens that `prompt` has at least, found much faster than its tokens; 0 for a
    vocabulary of which none can be said."""
    if not model.longest_piece:
        return 0
    texts = [element.encode() for element in prompt if isinstance(element, str)]
    # White space beside a special token may be no part of any token.
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
    """The prompt for a gap, cut to what there is room for.

    Raises `EngineError` if the model has no tokens for that, or a token id is unknown.
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


def exceeds_context(n_tokens: int, n_ctx: int, *, is_lower_bound: bool = False) -> EngineError:
    """The error of a prompt of `n_tokens`, or of at least so many, in a context of `n_ctx`."""
    message = (  # agents shorten a conversation by one of these: llama-server's words, and OpenAI's
        f"request ({n_tokens} tokens) exceeds the available context size "
        f"({n_ctx} tokens), try increasing it; the prompt is too long"
    )
    if is_lower_bound:
        message += " to be counted, and has at least so many tokens"
    return EngineError(
        ErrorInfo(
            type="exceed_context_size_error",
            message=message,
            n_prompt_tokens=n_tokens,
            n_prompt_tokens_is_lower_bound=is_lower_bound,
            n_ctx=n_ctx,
        )
    )
