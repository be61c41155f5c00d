"""Files that claim to be models but aren't, for tests of the errors that a server reports."""

import struct
from collections.abc import Callable, Sequence
from pathlib import Path

from gguf import GGUFWriter
from gguf.constants import GGUF_DEFAULT_ALIGNMENT as ALIGNMENT

MAGIC = b"GGUF"
VERSION = 3
HEADER = struct.Struct("<4sIQQ")  # magic, version, number of tensors, number of keys
STRING, ARRAY, UINT64 = 8, 9, 10
"""GGUF's type codes of values."""
F32 = 0
"""The type code of a tensor."""


def write_hostile_files(directory: Path, model: Path) -> dict[str, Path]:
    """Writes one file of each kind into `directory`; `model` is a valid model to damage.

    Returns the paths by kind. No file can be loaded; a loader has to report an error.
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
        "too-long-array": lambda: _file([_key("x", ARRAY) + struct.pack("<IQ", STRING, 2**60)]),
        "nested-arrays": lambda: _file([_key("x", ARRAY) + struct.pack("<IQ", ARRAY, 1) * 1000]),
        "key-twice": lambda: _file([_ARCHITECTURE, _ARCHITECTURE]),
        "unknown-type": lambda: _file([_key("x", 99) + bytes(64)]),
        "number-for-text": lambda: _file([_key(_NAME, UINT64) + bytes(8)], [_tensor("a", [32])]),
        "tensor-outside": lambda: _file([_ARCHITECTURE], [_tensor("a", [32], offset=2**40)]),
        "tensor-twice": lambda: _file([_ARCHITECTURE], [_tensor("a", [32]), _tensor("a", [32])]),
        "unaligned-tensor": lambda: _file([_ARCHITECTURE], [_tensor("a", [32], offset=1)]),
        "negative-size": lambda: _file([_ARCHITECTURE], [_tensor("a", [2**64 - 32])]),
        "overflowing-size": lambda: _file([_ARCHITECTURE], [_tensor("a", [2**31] * 4)]),
        "too-many-dimensions": lambda: _file([_ARCHITECTURE], [_tensor("a", [1] * 5)]),
        "unknown-tensor-type": lambda: _file([_ARCHITECTURE], [_tensor("a", [32], kind=9999)]),
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
    """Returns a key whose value is a string that would end far after the end of the file."""
    return _file([_key(_NAME, STRING) + struct.pack("<Q", 2**62)])


def _file(keys: Sequence[bytes], tensors: Sequence[bytes] = ()) -> bytes:
    """Returns a file with room for one small tensor."""
    header = HEADER.pack(MAGIC, VERSION, len(tensors), len(keys)) + b"".join((*keys, *tensors))
    return header + bytes(-len(header) % ALIGNMENT + 256)


def _key(name: str, kind: int) -> bytes:
    """Returns a key up to its value."""
    return _text(name) + struct.pack("<I", kind)


def _tensor(name: str, shape: Sequence[int], *, kind: int = F32, offset: int = 0) -> bytes:
    dimensions = struct.pack(f"<I{len(shape)}Q", len(shape), *shape)
    return _text(name) + dimensions + struct.pack("<IQ", kind, offset)


def _text(text: str) -> bytes:
    return struct.pack("<Q", len(text)) + text.encode()


_NAME = "general.architecture"
_ARCHITECTURE = _key(_NAME, STRING) + _text("llama")


def _write_without_tensors(path: Path, architecture: str) -> None:
    writer = GGUFWriter(path, architecture)
    writer.add_block_count(1)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.close()
