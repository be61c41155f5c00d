"""From a plan to the batch that is decoded."""

from collections.abc import Sequence

import numpy as np

from engine.worker.backend.batch import Batch
from engine.worker.scheduling.sequences import Chunk


def fill(batch: Batch, chunks: Sequence[Chunk]) -> list[int]:
    """Write the chunks into the batch, in place of what it had; the index there of the last token
    of each chunk's text. What is proposed follows this one. Single tokens are in front."""
    batch.clear()
    # These in one go: writing them one by one takes longer than all else in a step's Python.
    singles = [chunk for chunk in chunks if chunk.n_tokens == 1]
    indices = iter(
        batch.add_singles(
            [c.sequence.tokens.item(c.start) for c in singles],
            [c.start for c in singles],
            [c.sequence.seq_id for c in singles],
            [c.is_last for c in singles],
        )
    )
    return [next(indices) if c.n_tokens == 1 else _add(batch, c) for c in chunks]


def _add(batch: Batch, chunk: Chunk) -> int:
    sequence, start = chunk.sequence, chunk.start
    tokens = sequence.tokens.view(start, chunk.stop)
    n_proposed = len(chunk.proposed)
    if n_proposed:
        tokens = np.concatenate((tokens, np.array(chunk.proposed, np.int32)))
    return batch.add(tokens, start, sequence.seq_id, output=chunk.n_outputs) - n_proposed
