"""Files that look like models, in directories and in a cache of the hub, and a damaged one."""

import shutil
from collections.abc import Mapping
from pathlib import Path

import gguf
import numpy as np
from gguf.scripts.gguf_new_metadata import MetadataDetails, copy_with_new_metadata

COMMIT = "0123456789abcdef0123456789abcdef01234567"
GGUF = b"GGUF"


def write(directory: Path, *names: str) -> None:
    for name in names:
        path = directory / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(GGUF)


def cache(hub: Path, repository: str, *names: str, ref: str = "main") -> Path:
    """Puts files into the cache as the hub's library does, and returns their folder."""
    folder = hub / ("models--" + repository.replace("/", "--"))
    snapshot = folder / "snapshots" / COMMIT
    for number, name in enumerate(names):
        blob = folder / "blobs" / str(number)
        write(blob.parent, blob.name)
        (snapshot / name).parent.mkdir(parents=True, exist_ok=True)
        (snapshot / name).symlink_to(blob)
    (folder / "refs").mkdir(parents=True)
    (folder / "refs" / ref).write_text(COMMIT)
    return snapshot


def with_metadata(source: Path, target: Path, values: Mapping[str, str | int | float]) -> Path:
    """Writes a copy of the model `source` with more `values` in its metadata."""
    kinds = {
        str: gguf.GGUFValueType.STRING,
        int: gguf.GGUFValueType.INT32,
        float: gguf.GGUFValueType.FLOAT32,
    }
    new = {key: MetadataDetails(kinds[type(value)], value) for key, value in values.items()}
    reader = gguf.GGUFReader(source)
    architecture = reader.fields[gguf.Keys.General.ARCHITECTURE].contents()
    copy_with_new_metadata(reader, gguf.GGUFWriter(target, architecture), new, ())
    return target


def damaged(source: Path, target: Path) -> Path:
    """Writes a copy of the model `source` whose last norm consists of NaN."""
    shutil.copyfile(source, target)
    for tensor in gguf.GGUFReader(target, "r+").tensors:
        if tensor.name == "output_norm.weight":
            assert tensor.tensor_type == gguf.GGMLQuantizationType.F32
            tensor.data[:] = np.nan
            tensor.data.flush()
            return target
    raise AssertionError("the model has no output_norm.weight")
