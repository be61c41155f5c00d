"""The files of saved slots.

llama.cpp doesn't validate a state that it restores. So this module checks that a file is undamaged,
and was made with the same model and the same kind of KV cache.

Layout: magic (8 bytes), version and length of the header (u32 each, little-endian), the header
(msgpack), the token ids (i32 each), llama.cpp's state of the sequence, the states of its
checkpoints, and the BLAKE2b digest of everything before. Version 1 has no checkpoints; texts
without checkpoints are still written in it, for older servers.
"""

import errno
import os
import re
import stat
import struct
import tempfile
from collections.abc import Mapping, Sequence
from contextlib import suppress
from hashlib import blake2b
from itertools import pairwise
from pathlib import Path

import msgspec
import numpy as np
import numpy.typing as npt

from specllama.engine.errors import EngineError, invalid_request, server_error
from specllama.engine.worker.cache.checkpoints import Checkpoint
from specllama.engine.worker.cache.media_table import SavedChunk
from specllama.engine.worker.cache.texts import ALL
from specllama.engine.worker.tokens import TokenArray

MAGIC = b"SPECSLOT"
WITHOUT_CHECKPOINTS, VERSION = 1, 2
_PREFIX = struct.Struct("<8sII")
_MAX_HEADER = 1 << 20  # bytes
MAX_CHECKPOINTS = 1 << 12
"""Maximum number of checkpoints in a file, the last ones of the text."""
_DIGEST_SIZE = 32

StateArray = npt.NDArray[np.uint8]


class Origin(msgspec.Struct, frozen=True):
    """The conditions of a state, apart from the tokens: it can be restored only where all are
    equal.

    `model` is a fingerprint, `settings` are options by name. `adapters` are (fingerprint, scale) of
    the applied LoRA adapters; `n_exact` is as in `texts.CachedText`. For a text with media,
    `media` is their table, and `projector` a fingerprint.
    """

    model: bytes
    settings: dict[str, str]
    adapters: list[tuple[bytes, float]] = []
    n_exact: int = ALL
    projector: bytes = b""
    media: list[SavedChunk] = []


class _Header(msgspec.Struct, frozen=True, omit_defaults=True):
    """The header of a file. `checkpoints` are (number of tokens, bytes) of each checkpoint."""

    origin: Origin
    n_tokens: int
    n_state: int
    checkpoints: list[tuple[int, int]] = []

    def is_of(self, n_bytes: int) -> bool:
        """True if tokens and states have `n_bytes` bytes in total, and the header is consistent."""
        places = [0, *(n for n, _ in self.checkpoints), self.n_tokens + 1]
        sizes = [4 * self.n_tokens, self.n_state, *(size for _, size in self.checkpoints)]
        return min(sizes) >= 0 and sum(sizes) == n_bytes and all(a < b for a, b in pairwise(places))


class SavedSlot(msgspec.Struct, frozen=True):
    """The content of a file; `n_bytes` is the file's size."""

    origin: Origin
    tokens: TokenArray
    state: StateArray
    checkpoints: list[Checkpoint]
    n_bytes: int


# ---- fingerprints ------------------------------------------------------------------------

_SPLIT = re.compile(r"-(\d{5})-of-(\d{5})\.gguf$")
_SAMPLES, _SAMPLE_SIZE, _HEAD_SIZE = 64, 4096, 1 << 20


def fingerprint(path: str) -> bytes:
    """The fingerprint of a model or adapter file: a digest of its size, its beginning, and samples
    spread over the whole file, including its end; for a split model, of every part. Raises
    OSError."""
    digest = blake2b(digest_size=16)
    for part in _parts(path):
        with open(part, "rb") as file:
            size = os.fstat(file.fileno()).st_size
            digest.update(struct.pack("<Q", size))
            digest.update(file.read(_HEAD_SIZE))
            for i in range(_SAMPLES):
                file.seek(max(0, size - _SAMPLE_SIZE) * i // (_SAMPLES - 1))
                digest.update(file.read(_SAMPLE_SIZE))
    return digest.digest()


def _parts(path: str) -> list[str]:
    match = _SPLIT.search(path)
    if match is None:
        return [path]
    start = path[: match.start()]
    return [f"{start}-{i:05}-of-{match[2]}.gguf" for i in range(1, int(match[2]) + 1)]


# ---- writing and reading -----------------------------------------------------------------


def write(
    directory: str,
    name: str,
    origin: Origin,
    tokens: TokenArray,
    state: StateArray,
    checkpoints: Sequence[Checkpoint] = (),
) -> int:
    """Save to the file `name` in `directory`, atomically. Returns the number of bytes.

    Replaces a regular file of that name. Raises EngineError: invalid_request_error if the name
    exists and isn't a regular file, server_error if the file can't be written.
    """
    path = Path(directory, name)
    checkpoints = checkpoints[-MAX_CHECKPOINTS:]
    sizes = [(each.n, each.state.nbytes) for each in checkpoints]
    header = msgspec.msgpack.encode(_Header(origin, len(tokens), len(state), sizes))
    version = VERSION if sizes else WITHOUT_CHECKPOINTS
    digest = blake2b(digest_size=_DIGEST_SIZE)
    size = 0
    part = ""
    try:
        with suppress(FileNotFoundError):
            if not stat.S_ISREG(os.lstat(path).st_mode):
                raise invalid_request(f"filename: {name!r} exists, and is not a regular file")
        descriptor, part = tempfile.mkstemp(prefix=".slot-", suffix=".part", dir=directory)
        with open(descriptor, "wb") as file:
            ids = np.ascontiguousarray(tokens, "<i4")
            prefix = _PREFIX.pack(MAGIC, version, len(header))
            pieces: list[bytes | memoryview] = [prefix, header, ids.data, state.data]
            pieces += [each.state.data for each in checkpoints]
            for piece in pieces:
                digest.update(piece)
                size += file.write(piece)
            size += file.write(digest.digest())
        os.replace(part, path)
    except OSError as error:
        if part:
            with suppress(OSError):
                os.unlink(part)
        raise server_error(f"cannot write {name!r}: {error.strerror}") from error
    return size


def read_head(directory: str, name: str) -> tuple[Origin, TokenArray, tuple[int, ...]]:
    """Origin, tokens, and the positions of the checkpoints of the file `name` in `directory`. Fast
    enough for many files, as it neither checks the digest nor reads the states. Raises EngineError
    (invalid_request_error), as `read` does."""
    damaged = invalid_request(f"the slot file {name!r} is damaged")
    try:
        with open(_open(directory, name), "rb") as file:
            size = os.fstat(file.fileno()).st_size
            prefix = file.read(_PREFIX.size)
            if len(prefix) < _PREFIX.size:
                raise invalid_request(f"{name!r} is not a slot file of this server")
            magic, version, n_header = _PREFIX.unpack(prefix)
            if magic != MAGIC or version not in (WITHOUT_CHECKPOINTS, VERSION):
                raise invalid_request(f"{name!r} is not a slot file of this server")
            if n_header > _MAX_HEADER:
                raise damaged
            header = msgspec.msgpack.decode(file.read(n_header), type=_Header)
            rest = size - _PREFIX.size - n_header - _DIGEST_SIZE
            if not header.is_of(rest):
                raise damaged
            tokens = np.frombuffer(file.read(4 * header.n_tokens), "<i4").astype(np.int32)
    except (msgspec.MsgspecError, ValueError):
        raise damaged from None
    except OSError as error:
        raise _unreadable(name, error) from None
    if len(tokens) != header.n_tokens:
        raise damaged
    return header.origin, tokens, tuple(n for n, _ in header.checkpoints)


def read(directory: str, name: str) -> SavedSlot:
    """The content of the file `name` in `directory`.

    Raises EngineError (invalid_request_error) if there is no such regular file, if it isn't a slot
    file, or if any bit of it has changed since it was written.
    """
    data = _read_file(directory, name)
    damaged = invalid_request(f"the slot file {name!r} is damaged")
    if len(data) < _PREFIX.size or not data[:8].tobytes() == MAGIC:
        raise invalid_request(f"{name!r} is not a slot file of this server")
    _, version, n_header = _PREFIX.unpack(data[: _PREFIX.size].tobytes())
    if version not in (WITHOUT_CHECKPOINTS, VERSION):
        raise invalid_request(
            f"the slot file {name!r} has version {version}, not {WITHOUT_CHECKPOINTS} or {VERSION}"
        )
    end = len(data) - _DIGEST_SIZE
    at = _PREFIX.size + n_header
    if n_header > _MAX_HEADER or at > end:
        raise damaged
    if blake2b(data[:end].data, digest_size=_DIGEST_SIZE).digest() != data[end:].tobytes():
        raise damaged
    try:
        header = msgspec.msgpack.decode(data[_PREFIX.size : at].data, type=_Header)
    except msgspec.MsgspecError:
        raise damaged from None
    if not header.is_of(end - at):
        raise damaged
    middle = at + 4 * header.n_tokens
    tokens = np.frombuffer(data[at:middle].tobytes(), "<i4").astype(np.int32)
    at = middle + header.n_state
    state, checkpoints = data[middle:at], []
    for n, size in header.checkpoints:
        # A copy: a view would keep the whole file in memory.
        checkpoints.append(Checkpoint(n, data[at : at + size].copy()))
        at += size
    return SavedSlot(header.origin, tokens, state, checkpoints, len(data))


def _open(directory: str, name: str) -> int:
    """A descriptor of a regular file. Raises OSError, and EngineError for other kinds of files."""
    flags = os.O_RDONLY | getattr(os, "O_BINARY", 0) | getattr(os, "O_CLOEXEC", 0)
    # Links are not followed, and pipes don't block.
    flags |= getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_NONBLOCK", 0)
    descriptor = os.open(Path(directory, name), flags)
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise invalid_request(f"filename: {name!r} is not a regular file")
    return descriptor


def _unreadable(name: str, error: OSError) -> EngineError:
    what = "it is a link" if error.errno == errno.ELOOP else error.strerror
    return invalid_request(f"cannot read the slot file {name!r}: {what}")


def _read_file(directory: str, name: str) -> StateArray:
    try:
        with open(_open(directory, name), "rb") as file:
            data = np.empty(os.fstat(file.fileno()).st_size, np.uint8)
            if file.readinto(data.data) != len(data):
                raise invalid_request(f"the slot file {name!r} is changing")
            return data
    except OSError as error:
        raise _unreadable(name, error) from None
    except MemoryError:
        raise invalid_request(f"the slot file {name!r} is larger than the memory") from None


def check_origin(name: str, saved: Origin, model: bytes, settings: Mapping[str, str]) -> None:
    """Checks that a state saved under `saved` can be restored under `model` and `settings`. Raises
    EngineError (invalid_request_error)."""
    if saved.model != model:
        raise invalid_request(f"the slot file {name!r} was saved with another model")
    for key in sorted(saved.settings.keys() | settings.keys()):
        there, here = saved.settings.get(key), settings.get(key)
        if there != here:
            raise invalid_request(
                f"the slot file {name!r} was saved with {key} {there!r}, but here it is {here!r}"
            )
