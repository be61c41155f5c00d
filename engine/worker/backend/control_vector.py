"""Control vectors: directions that are added to what layers write, read from GGUF files.

A file has a tensor `direction.N` of F32 numbers, as many as the model's embedding has, for each
layer N >= 1 that it steers (Zou et al., "Representation Engineering", arXiv:2310.01405).
"""

from collections.abc import Iterable
from pathlib import Path

import numpy as np
import numpy.typing as npt

from specllama.engine.errors import BackendError

Direction = npt.NDArray[np.float32]

_PREFIX = "direction."


def combine(
    files: Iterable[tuple[str, float]], n_embd: int, n_layer: int
) -> npt.NDArray[np.float32]:
    """The sum of the scaled vectors in `files`, (n_layer - 1, n_embd) from layer 1 on; layers
    that the model doesn't have are left out.

    Raises `BackendError` for a file that is no control vector, or one for another model.
    """
    total = np.zeros((max(0, n_layer - 1), n_embd), np.float32)
    for path, scale in files:
        for layer, direction in _read(path).items():
            if len(direction) != n_embd:
                raise BackendError(
                    f"the control vector {path!r} has {len(direction)} numbers for a layer, "
                    f"the model {n_embd}"
                )
            if layer < n_layer:
                total[layer - 1] += np.float32(scale) * direction
    return total


def _read(path: str) -> dict[int, Direction]:
    """The directions in a file, by layer."""
    from gguf import GGMLQuantizationType, GGUFReader  # slow to import, rarely needed

    try:
        tensors = GGUFReader(Path(path)).tensors
    except Exception as error:  # whatever a damaged file makes the reader stumble over
        reason = " ".join(str(error).split()) or type(error).__name__
        raise BackendError(f"cannot read the control vector {path!r}: {reason}") from None
    directions: dict[int, Direction] = {}
    for tensor in tensors:
        number = tensor.name.removeprefix(_PREFIX)
        if not tensor.name.startswith(_PREFIX) or not number.isdecimal() or not int(number):
            raise BackendError(f"{path!r} is no control vector: it has a tensor {tensor.name!r}")
        values = np.asarray(tensor.data)
        if tensor.tensor_type != GGMLQuantizationType.F32 or values.ndim != 1:
            raise BackendError(f"{path!r} is no control vector: {tensor.name!r} is no row of F32")
        if not np.isfinite(values).all():
            raise BackendError(f"the control vector {path!r} has infinite numbers")
        directions[int(number)] = values.astype(np.float32)
    if not directions:
        raise BackendError(f"{path!r} is no control vector: it has no tensor")
    return directions
