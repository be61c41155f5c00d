"""Files of control vectors."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy.typing as npt
from gguf import GGUFWriter


def write_vector(path: Path, tensors: Mapping[str, npt.NDArray[Any]]) -> str:
    """Writes `tensors`, such as `direction.1` for the second layer, to `path`, and returns
    `path`."""
    writer = GGUFWriter(path, "controlvector")
    for name, values in tensors.items():
        writer.add_tensor(name, values)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return str(path)
