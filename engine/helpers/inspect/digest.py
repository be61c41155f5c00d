"""Digests that identify model files, without reading gigabytes."""

import hashlib
import os
import re
from collections.abc import Iterable
from typing import Final

WHOLE: Final = 8 << 20  # bytes; files up to this size are read completely
SAMPLES: Final = 64  # pieces of a larger file, evenly spread from its beginning to its end
SAMPLE_SIZE: Final = 64 << 10  # bytes

_SHA256: Final = re.compile(r"[0-9a-f]{64}")


def model_digest(paths: Iterable[str]) -> str:
    """Returns the digest of a model, 64 hexadecimal digits; `paths` are its files in order.

    It depends on their contents, not on their names. A file of more than `WHOLE` bytes has another
    digest in the Hub's cache than a copy elsewhere. Raises OSError.
    """
    digests = [file_digest(path) for path in paths]
    if len(digests) == 1:
        return digests[0]
    return hashlib.sha256("\n".join(digests).encode()).hexdigest()


def file_digest(path: str) -> str:
    """Returns the SHA-256 of a file if it is the file's name in the Hub's cache, or if the file has
    at most `WHOLE` bytes; else the SHA-256 of its size and of `SAMPLES` pieces of it. Raises
    OSError."""
    if named := digest_in_cache(path):
        return named
    with open(path, "rb", buffering=0) as file:
        size = os.fstat(file.fileno()).st_size
        if size <= WHOLE:
            return hashlib.file_digest(file, "sha256").hexdigest()
        hasher = hashlib.sha256(b"%d\n" % size)
        for index in range(SAMPLES):
            file.seek((size - SAMPLE_SIZE) * index // (SAMPLES - 1))
            hasher.update(file.read(SAMPLE_SIZE))
        return hasher.hexdigest()


def digest_in_cache(path: str) -> str:
    """Returns the SHA-256 that is the name of the file in the Hub's cache, if `path` is a link into
    the cache; else ""."""
    if not os.path.islink(path):
        return ""
    name = os.path.basename(os.path.realpath(path))
    return name if _SHA256.fullmatch(name) else ""
