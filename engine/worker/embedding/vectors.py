"""Vectors of texts: merged from their parts, and normalized."""

import numpy as np
import numpy.typing as npt

from specllama.engine.worker.backend import Vectors as Rows

MAX_INT16 = 32760.0
"""The largest absolute value with `normalize` 0, as in llama.cpp."""


def normalized(rows: Rows, p: int) -> Rows:
    """Each row divided by its p-norm. `p` -1: unchanged; 0: divided by the largest absolute value
    and multiplied by `MAX_INT16`. A row of zeros stays unchanged."""
    if p == -1:
        return rows
    wide = np.abs(rows.astype(np.float64))
    peak = wide.max(axis=1, keepdims=True)
    safe = np.where(peak > 0, peak, 1.0)
    # Relative to the peak, no power overflows, whatever p is.
    norm = (
        safe / MAX_INT16 if p == 0 else safe * ((wide / safe) ** p).sum(1, keepdims=True) ** (1 / p)
    )
    return np.where(peak > 0, rows / np.where(peak > 0, norm, 1.0), 0.0).astype(np.float32)


def merged(pooling: str, parts: list[Rows], lengths: list[int]) -> Rows:
    """The rows of one input that was evaluated in parts of `lengths` tokens.

    Exact for a causal model, in which no token's vector depends on later tokens.
    """
    if len(parts) == 1:
        return parts[0]
    match pooling:
        case "none":
            return np.concatenate(parts)
        case "cls":
            return parts[0]
        case "mean":
            weights = np.array(lengths, np.float64) / sum(lengths)
            mean: npt.NDArray[np.float64] = np.tensordot(weights, np.stack(parts), 1)
            return mean.astype(np.float32)
        case _:
            return parts[-1]
