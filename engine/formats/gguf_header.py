"""Reads the header of a GGUF file: its metadata and the shapes of its tensors, not their data.

The gguf package's `GGUFReader` creates several objects for each element of each array, and accepts
files that end too early. For a vocabulary of 150,000 tokens it needs half a gigabyte and fifty
times as long as this module, which skips arrays and rejects invalid files. Types, sizes and names
are the package's.

The format: https://github.com/ggml-org/ggml/blob/master/docs/gguf.md
"""

import math
import os
import struct
from collections.abc import Container, Mapping
from typing import BinaryIO, Final

import msgspec
from gguf.constants import (
    GGML_QUANT_SIZES,
    GGUF_DEFAULT_ALIGNMENT,
    GGUF_VERSION,
    GGMLQuantizationType,
    GGUFValueType,
)

MAGIC: Final = b"GGUF"
VERSIONS: Final = (2, GGUF_VERSION)
MAX_KEY: Final = 65_535  # bytes of a key, the format's limit
MAX_TENSOR_NAME: Final = 63  # bytes, llama.cpp's limit
MAX_DIMENSIONS: Final = 4
MAX_STRING: Final = 4 << 20  # bytes of one string; chat templates are the longest
MAX_STRINGS: Final = 64 << 20  # bytes of all kept keys and strings
MAX_TENSOR: Final = 1 << 62  # elements and bytes
MIN_KEY: Final = 8 + 4 + 1  # bytes: an empty name, the type, the shortest value
MIN_TENSOR: Final = 8 + 4 + 4 + 8  # bytes: an empty name, no dimensions, the type, the offset

_SCALARS: Final = {
    GGUFValueType.UINT8: struct.Struct("<B"),
    GGUFValueType.INT8: struct.Struct("<b"),
    GGUFValueType.UINT16: struct.Struct("<H"),
    GGUFValueType.INT16: struct.Struct("<h"),
    GGUFValueType.UINT32: struct.Struct("<I"),
    GGUFValueType.INT32: struct.Struct("<i"),
    GGUFValueType.FLOAT32: struct.Struct("<f"),
    GGUFValueType.UINT64: struct.Struct("<Q"),
    GGUFValueType.INT64: struct.Struct("<q"),
    GGUFValueType.FLOAT64: struct.Struct("<d"),
    GGUFValueType.BOOL: struct.Struct("<?"),
}
_UINT32: Final = struct.Struct("<I")
_UINT64: Final = struct.Struct("<Q")


class HeaderError(Exception):
    """The file is not a GGUF file, or it is damaged. The message is one line without the file's
    name."""


class Array(msgspec.Struct, frozen=True):
    """An array's length, and the searched strings that it contains."""

    length: int
    found: frozenset[bytes] = frozenset()


Value = bool | int | float | str | Array


class Header(msgspec.Struct, frozen=True):
    """The metadata by key, and the sums over all tensors of this file."""

    values: dict[str, Value]
    n_tensors: int
    n_params: int  # elements of all tensors
    n_bytes: int  # of all tensors


def read_header(file: BinaryIO, texts: Mapping[str, Container[bytes]] | None = None) -> Header:
    """Returns the header of `file`, read from its beginning. `texts` are the strings to search in
    arrays, by the arrays' keys.

    Raises HeaderError, and OSError if reading fails.
    """
    return _Reader(file, texts or {}).header()


class _Reader:
    def __init__(self, file: BinaryIO, texts: Mapping[str, Container[bytes]]) -> None:
        self._file = file
        self._texts = texts
        self._left = os.fstat(file.fileno()).st_size
        self._size = self._left
        self._kept = 0  # bytes of strings

    def header(self) -> Header:
        if self._take(len(MAGIC)) != MAGIC:
            raise HeaderError("it is not a GGUF file")
        version = self._number(_UINT32)
        if version not in VERSIONS:
            # The version is small, so its bytes show the byte order.
            swapped = int.from_bytes(version.to_bytes(4, "little"), "big")
            if swapped in VERSIONS:
                raise HeaderError("its byte order is big-endian")
            raise HeaderError(f"version {version} of the GGUF format is unknown")
        n_tensors, n_keys = self._number(_UINT64), self._number(_UINT64)
        if n_keys > self._left // MIN_KEY or n_tensors > self._left // MIN_TENSOR:
            raise HeaderError("its header declares more than its size allows")
        values = self._values(n_keys)
        return self._with_tensors(values, n_tensors)

    def _values(self, count: int) -> dict[str, Value]:
        values: dict[str, Value] = {}
        for _ in range(count):
            key = self._name("a key", MAX_KEY)
            if key in values:
                raise HeaderError(f"the key {_quote(key)} occurs twice")
            values[key] = self._value(key)
        return values

    def _value(self, key: str) -> Value:
        kind = self._kind(key)
        if kind is GGUFValueType.STRING:
            return self._string(key)
        if kind is GGUFValueType.ARRAY:
            return self._array(key)
        return self._scalar(kind)

    def _kind(self, key: str) -> GGUFValueType:
        number = self._number(_UINT32)
        try:
            return GGUFValueType(number)
        except ValueError:
            raise HeaderError(f"{_quote(key)} has the unknown type {number}") from None

    def _scalar(self, kind: GGUFValueType) -> bool | int | float:
        form = _SCALARS[kind]
        value: bool | int | float = form.unpack(self._take(form.size))[0]
        return value

    def _string(self, key: str) -> str:
        data = self._kept_bytes(f"the text of {_quote(key)}", MAX_STRING)
        return data.decode("utf-8", "replace")

    def _array(self, key: str) -> Array:
        kind, length = self._kind(key), self._number(_UINT64)
        if kind is GGUFValueType.ARRAY:
            raise HeaderError(f"{_quote(key)} is an array of arrays")
        if kind is GGUFValueType.STRING:
            return Array(length, self._strings(length, self._texts.get(key, ())))
        self._skip(length * _SCALARS[kind].size)
        return Array(length)

    def _strings(self, count: int, texts: Container[bytes]) -> frozenset[bytes]:
        """Returns the members of `texts` among the next `count` strings."""
        if count > self._left // _UINT64.size:
            raise HeaderError("an array is longer than the file")
        found = set()
        for _ in range(count):
            length = self._number(_UINT64)
            if length > MAX_STRING:
                raise HeaderError("a text in an array is too long")
            text = self._take(length)
            if text in texts:
                found.add(text)
        return frozenset(found)

    def _with_tensors(self, values: dict[str, Value], count: int) -> Header:
        alignment = _alignment(values)
        names = set()
        n_params = n_bytes = end = 0
        for _ in range(count):
            name = self._name("a tensor's name", MAX_TENSOR_NAME)
            if name in names:
                raise HeaderError(f"the tensor {_quote(name)} occurs twice")
            names.add(name)
            elements, size = self._tensor(name)
            offset = self._number(_UINT64)
            if offset % alignment:
                raise HeaderError(f"the tensor {_quote(name)} is not aligned")
            n_params, n_bytes, end = n_params + elements, n_bytes + size, max(end, offset + size)
        position = self._size - self._left
        if count and position + -position % alignment + end > self._size:
            raise HeaderError("it is incomplete: tensors extend beyond its end")
        return Header(values, count, n_params, n_bytes)

    def _tensor(self, name: str) -> tuple[int, int]:
        """Returns the elements and bytes of a tensor, from its dimensions and its type."""
        n_dimensions = self._number(_UINT32)
        if n_dimensions > MAX_DIMENSIONS:
            raise HeaderError(f"the tensor {_quote(name)} has {n_dimensions} dimensions")
        shape = [self._number(_UINT64) for _ in range(n_dimensions)]
        number = self._number(_UINT32)
        try:
            block, block_bytes = GGML_QUANT_SIZES[GGMLQuantizationType(number)]
        except ValueError:
            raise HeaderError(f"the tensor {_quote(name)} has the unknown type {number}") from None
        elements = math.prod(shape)
        size = elements // block * block_bytes
        if max(elements, size) > MAX_TENSOR or (shape and shape[0] % block):
            raise HeaderError(f"the tensor {_quote(name)} has an impossible shape")
        return elements, size

    def _name(self, what: str, most: int) -> str:
        try:
            return self._kept_bytes(what, most).decode()
        except UnicodeDecodeError:
            raise HeaderError(f"{what} is not valid UTF-8") from None

    def _kept_bytes(self, what: str, most: int) -> bytes:
        length = self._number(_UINT64)
        self._kept += length
        if length > most or self._kept > MAX_STRINGS:
            raise HeaderError(f"{what} is too long")
        return self._take(length)

    def _number(self, form: struct.Struct) -> int:
        number: int = form.unpack(self._take(form.size))[0]
        return number

    def _take(self, n_bytes: int) -> bytes:
        if n_bytes > self._left:
            raise HeaderError("it ends in the middle of its header")
        data = self._file.read(n_bytes)
        if len(data) < n_bytes:  # the file is being truncated
            raise HeaderError("it ends in the middle of its header")
        self._left -= n_bytes
        return data

    def _skip(self, n_bytes: int) -> None:
        if n_bytes > self._left:
            raise HeaderError("it ends in the middle of its header")
        self._file.seek(n_bytes, os.SEEK_CUR)
        self._left -= n_bytes


def _alignment(values: Mapping[str, Value]) -> int:
    value = values.get("general.alignment", GGUF_DEFAULT_ALIGNMENT)
    if isinstance(value, bool) or not isinstance(value, int) or value < 1 or value & (value - 1):
        raise HeaderError("its alignment is not a power of two")
    return value


def _quote(text: str) -> str:
    """Returns `text` on one line, cut if it is long."""
    short = text if len(text) <= 80 else text[:77] + "..."
    return '"' + short.encode("unicode_escape").decode("ascii") + '"'
