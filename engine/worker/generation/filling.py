"""From a plan to the batch that is decoded."""

from collections.abc import Sequence

import numpy as np

from specllama.engine.worker.backend.batch import Batch
from specllama.engine.worker.scheduling.sequences import Chunk
from specllama.engine.worker.tokens import TokenArray


def fill(batch: Batch, chunks: Sequence[Chunk]) -> list[int]:
    """Write the chunks, but for what comes early, into the batch, in place of what it had; the
    index there of the last token of each chunk's text, or where it would be. What is proposed
    follows this one. Single tokens are in front."""
    batch.clear()
    # These in one go: writing them one by one takes longer than all else in a step's Python.
    singles = [chunk for chunk in chunks if chunk.n_late == 1]
    indices = iter(
        batch.add_singles(
            [c.proposed[-1] if c.proposed else c.sequence.tokens.item(c.start) for c in singles],
            [c.start + c.n_early for c in singles],
            [c.sequence.seq_id for c in singles],
            [c.n_outputs > 0 for c in singles],
        )
    )
    lasts = [next(indices) if c.n_late == 1 else _add(batch, c) for c in chunks]
    return [last - len(c.proposed) for last, c in zip(lasts, chunks, strict=True)]


def fill_early(batch: Batch, chunks: Sequence[Chunk]) -> None:
    """Write what comes early into the batch, in place of what it had. No logits are wanted."""
    batch.clear()
    for chunk in chunks:
        if chunk.n_early:
            tokens = _tokens(chunk)[: chunk.n_early]
            batch.add(tokens, chunk.start, chunk.sequence.seq_id, output=0)


def _add(batch: Batch, chunk: Chunk) -> int:
    tokens, start = _tokens(chunk)[chunk.n_early :], chunk.start + chunk.n_early
    return batch.add(tokens, start, chunk.sequence.seq_id, output=chunk.n_outputs)


def _tokens(chunk: Chunk) -> TokenArray:
    tokens = chunk.sequence.tokens.view(chunk.start, chunk.stop)
    if chunk.proposed:
        tokens = np.concatenate((tokens, np.array(chunk.proposed, np.int32)))
    return tokens
