"""Media on their way from pixels and samples to embeddings, as plain data."""

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from specllama.engine.wire.media import Media, MediaKind

Rows = npt.NDArray[np.float32]
"""Embeddings, a row for each token."""


@dataclass(frozen=True, slots=True, eq=False)
class PreparedChunk:
    """A part of a medium before it is encoded. `index` counts the parts of the medium.

    It takes `n_tokens` tokens and `n_pos` positions, which are fewer with M-RoPE. `is_whole` says
    that its tokens attend to each other: they have to be in one micro-batch.

    With M-RoPE, `offsets` (n_tokens, 4) are the positions of its tokens at the beginning of a text,
    and `moving` is 1 where they move with the chunk, else 0.
    """

    media: Media
    index: int
    n_tokens: int
    n_pos: int
    is_whole: bool
    offsets: npt.NDArray[np.int32] | None = None
    moving: npt.NDArray[np.int32] | None = None

    @property
    def kind(self) -> MediaKind:
        return self.media.kind

    def positions(self, first: int) -> npt.NDArray[np.int32]:
        """The positions of its tokens if the first one is at `first`: one each (n_tokens,), or
        with M-RoPE four (n_tokens, 4), in llama.cpp's order."""
        if self.offsets is None or self.moving is None:
            return np.arange(first, first + self.n_tokens, dtype=np.int32)
        return self.offsets + self.moving * np.int32(first)
