"""From a plan to the batch that is decoded."""

from collections.abc import Sequence

from engine.worker.backend.batch import Batch
from engine.worker.scheduling.sequences import Chunk


def fill(batch: Batch, chunks: Sequence[Chunk]) -> list[int]:
    """Write the chunks into the batch, in place of what it had; the index of each chunk's last
    token in it. Single tokens are in front."""
    batch.clear()
    # These in one go: writing them one by one takes longer than all else in a step's Python.
    singles = [chunk for chunk in chunks if chunk.stop - chunk.start == 1]
    indices = iter(
        batch.add_singles(
            [c.sequence.tokens.item(c.start) for c in singles],
            [c.start for c in singles],
            [c.sequence.seq_id for c in singles],
            [c.is_last for c in singles],
        )
    )
    return [next(indices) if c.stop - c.start == 1 else _add(batch, c) for c in chunks]


def _add(batch: Batch, chunk: Chunk) -> int:
    sequence, start = chunk.sequence, chunk.start
    tokens = sequence.tokens.view(start, chunk.stop)
    return batch.add(tokens, start, sequence.seq_id, output=chunk.is_last)
