"""Files that claim to be models and are not, for tests of how a server refuses them."""

import struct
from collections.abc import Callable
from pathlib import Path

from gguf import GGUFWriter

MAGIC = b"GGUF"
VERSION = 3
HEADER = struct.Struct("<4sIQQ")  # magic, version, number of tensors, number of keys
STRING = 8
"""GGUF's type code of a string value."""


def write_hostile_files(directory: Path, model: Path) -> dict[str, Path]:
    """Write one file of each kind into `directory`; `model` is a good one to spoil.

    Returns the paths by kind. None of the files can be loaded; a loader has to say so.
    """
    good = model.read_bytes()
    contents: dict[str, Callable[[], bytes]] = {
        "empty": lambda: b"",
        "text": lambda: b"This is not a model.\n" * 100,
        "wrong-magic": lambda: b"GGML" + good[4:],
        "wrong-version": lambda: MAGIC + struct.pack("<I", 999) + good[8:],
        "truncated-header": lambda: good[: HEADER.size - 5],
        "truncated-metadata": lambda: good[:2000],
        "truncated-tensors": lambda: good[: len(good) * 3 // 4],
        "too-many-keys": lambda: HEADER.pack(MAGIC, VERSION, 0, 2**62),
        "too-many-tensors": lambda: HEADER.pack(MAGIC, VERSION, 2**62, 0),
        "too-long-string": _too_long_string,
    }
    paths = {kind: directory / f"{kind}.gguf" for kind in contents}
    for kind, content in contents.items():
        paths[kind].write_bytes(content())
    paths["unknown-architecture"] = directory / "unknown-architecture.gguf"
    _write_without_tensors(paths["unknown-architecture"], "abacus")
    paths["no-tensors"] = directory / "no-tensors.gguf"
    _write_without_tensors(paths["no-tensors"], "llama")
    return paths


def _too_long_string() -> bytes:
    """A key whose value is a string that would end far behind the end of the file."""
    key = b"general.architecture"
    header = HEADER.pack(MAGIC, VERSION, 0, 1)
    return header + struct.pack("<Q", len(key)) + key + struct.pack("<IQ", STRING, 2**62)


def _write_without_tensors(path: Path, architecture: str) -> None:
    writer = GGUFWriter(path, architecture)
    writer.add_block_count(1)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.close()
