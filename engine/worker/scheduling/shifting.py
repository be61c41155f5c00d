"""Context shift and chunk reuse: which KV cells to drop, so that those behind them are used at new
positions.

llama.cpp rotates the keys of moved cells to their new positions, but what the cells hold was
computed with the dropped tokens still there: a text that goes on from moved cells is an
approximation of what the model would say to the tokens alone.
"""

from typing import NamedTuple

from specllama.engine.worker.tokens import TokenArray, common_prefix

MIN_FREE = 4  # cells that a context shift may free at the least, less the token to come


class CachedSpan(NamedTuple):
    """`length` tokens that are cached at `source` and wanted at `target` <= `source`."""

    source: int
    target: int
    length: int


def context_shift(n_past: int, n_ctx: int, n_keep: int, n_discard: int) -> tuple[int, int]:
    """The number of tokens to keep at the beginning of a full context, and the number to drop
    behind them.

    `n_past` (n_ctx - 1) tokens are cached. `n_discard` 0 means half of those not kept. At least
    one is dropped, and at least one stays behind those that are kept.
    """
    n_keep = min(n_keep, n_ctx - MIN_FREE)
    n_left = n_past - n_keep
    return n_keep, min(n_discard or n_left // 2, n_left - 1)


def reusable_chunks(
    cached: TokenArray, prompt: TokenArray, start: int, n_min: int
) -> list[CachedSpan]:
    """Chunks of at least `n_min` tokens of `cached` that continue `prompt` from `start` on.

    Both are equal before `start`. As in llama-server: each chunk is the first one behind the
    last that fits, and the chunks follow each other in `prompt` without a gap.
    """
    chunks: list[CachedSpan] = []
    source = target = start
    haystack, width = cached.tobytes(), cached.itemsize
    while target + n_min <= len(prompt):
        needle = prompt[target : target + n_min].tobytes()
        source = _find(haystack, needle, source, width)
        if source < 0:
            break
        length = common_prefix(cached[source:], prompt[target:])
        chunks.append(CachedSpan(source, target, length))
        source += length
        target += length
    return chunks


def _find(haystack: bytes, needle: bytes, start: int, width: int) -> int:
    """The first place of `needle` from `start` on, counted in elements of `width` bytes; -1."""
    at = haystack.find(needle, start * width)
    while at % width and at >= 0:
        at = haystack.find(needle, at + width - at % width)
    return at // width if at >= 0 else -1
