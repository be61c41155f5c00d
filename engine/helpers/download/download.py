"""Downloads a file over HTTP: resumes partial downloads, retries after network failures, and
verifies the result.

The cache, its locks, names and tokens are those of huggingface_hub. Its download function isn't
used: when it is started again after an interruption, it downloads the whole file again, and it
doesn't verify checksums.
"""

import hashlib
import logging
import os
import re
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from io import FileIO
from pathlib import Path
from typing import TypeVar

import httpx2
from filelock import Timeout
from huggingface_hub.utils import WeakFileLock

from specllama.engine.helpers.download.http_errors import (
    NETWORK_FAILURES,
    DownloadError,
    TransientError,
    check_status,
    network_failure,
)
from specllama.engine.helpers.download.hub_layout import RepositoryCache

T = TypeVar("T")

log = logging.getLogger("specllama.engine.catalog")

MAGIC = b"GGUF"
BACKOFF = (0.5, 1.0, 2.0, 4.0)  # s before another attempt; starts over after progress
PIECE = 8 << 30  # bytes of one request: content delivery networks reject more than 50 GB
POLL = 0.5  # s between two checks of another process's download
READ_SIZE = 1 << 20  # bytes

_RANGE = re.compile(r"bytes (\d+)-(\d+)/(\d+|\*)", re.ASCII)

Report = Callable[[int], None]
"""Called with the number of bytes of the file that are on this machine."""


@dataclass(frozen=True)
class Item:
    """A file to download."""

    name: str  # name for the user
    url: str
    target: Path  # path of the complete file
    partial: Path  # path of the partial file; another content has another one
    lock: Path
    is_done: Callable[[], bool]  # the file and the results of on_arrival exist
    is_complete: Callable[[], bool]  # the file exists
    on_arrival: Callable[[], None]  # called while the lock is held
    size: int | None = None  # bytes; None = unknown
    resumable: bool = True  # else a partial file may belong to other content
    digest: str = ""  # SHA-256, or git's SHA-1 of a blob; "" = can't be verified
    magic: bytes = MAGIC  # the beginning of a valid file
    headers: dict[str, str] = field(default_factory=dict)
    check: Callable[[httpx2.Response, str], None] = check_status  # raises DownloadError

    def n_there(self) -> int:
        """Returns the number of bytes of the file that needn't be downloaded."""
        if self.is_done() or self.is_complete():
            return self.size or 0
        with suppress(OSError):
            return self.partial.stat().st_size
        return 0


def obtain(client: httpx2.Client, item: Item, report: Report) -> None:
    """Downloads the file to its target, or waits while another process downloads it.

    Raises DownloadError, and OSError of the file system.
    """
    if item.is_done():
        return  # without writing, as the cache may be read-only
    item.target.parent.mkdir(parents=True, exist_ok=True)
    item.lock.parent.mkdir(parents=True, exist_ok=True)
    while True:
        try:
            with WeakFileLock(item.lock, timeout=POLL):
                if not item.is_done():
                    if not item.is_complete():
                        _download(client, item, report)
                    item.on_arrival()
                return
        except Timeout:
            report(item.n_there())


def patiently(action: Callable[[], T], n_done: Callable[[], int] = lambda: 0) -> T:
    """Repeats `action` while it raises TransientError, with increasing delays. Gives up after some
    attempts, unless `n_done()` increases from one to the next. Raises DownloadError."""
    n_failures, before = 0, n_done()
    while True:
        try:
            return action()
        except TransientError as error:
            if (now := n_done()) > before:
                n_failures = 0
            before = now
            if n_failures == len(BACKOFF):
                raise
            log.debug("%s; trying again", error)
            time.sleep(BACKOFF[n_failures])
            n_failures += 1


def _download(client: httpx2.Client, item: Item, report: Report) -> None:
    for _ in range(2):  # the damaged part may come from an earlier download
        patiently(lambda: _receive(client, item, report), item.n_there)
        if _is_intact(item):
            _sync(item.partial)
            os.replace(item.partial, item.target)
            return
        item.partial.unlink()
        log.debug("%s: wrong checksum", item.name)
    raise DownloadError(
        f"{item.name} arrived damaged twice: its checksum differs from the server's; try again "
        "later"
    )


def _sync(path: Path) -> None:
    """Writes the file to the disk, so that it is complete under its final name even after a power
    failure."""
    with open(path, "r+b") as file:
        os.fsync(file.fileno())


def _is_intact(item: Item) -> bool:
    if not item.digest:
        return True
    with open(item.partial, "rb") as file:
        hasher = hashlib.sha256()
        if len(item.digest) == 40:  # git's hash, of a header and the content
            header = b"blob %d\0" % os.fstat(file.fileno()).st_size
            hasher = hashlib.sha1(header, usedforsecurity=False)
        while data := file.read(READ_SIZE):
            hasher.update(data)
    return hasher.hexdigest() == item.digest


def _receive(client: httpx2.Client, item: Item, report: Report) -> None:
    """Appends the missing bytes to the partial file. Raises DownloadError, OSError."""
    with open(item.partial, "a+b", buffering=0) as file:
        partial = _Partial(file, item, report)
        if item.size is None or not item.resumable or partial.n > item.size:
            partial.clear()
        while item.size is None or partial.n < item.size:
            try:
                _receive_piece(client, item, partial)
            except NETWORK_FAILURES as error:
                raise network_failure(error, item.url, item.name) from error
            if item.size is None:
                break


def _receive_piece(client: httpx2.Client, item: Item, partial: "_Partial") -> None:
    start = partial.n
    headers = {**item.headers, "Accept-Encoding": "identity"}
    if item.size is not None and (start or item.size > PIECE):
        headers["Range"] = f"bytes={start}-{min(start + PIECE, item.size) - 1}"
    with client.stream("GET", item.url, headers=headers) as response:
        host = response.url.host
        item.check(response, item.name)
        if response.headers.get("Content-Encoding", "identity") != "identity":
            raise DownloadError(f"{host} sends {item.name} in an unsupported encoding")
        if response.status_code == 200:
            if start:  # the whole file, even if a part was requested
                partial.clear()
        elif not _is_range(response, start, item.size):
            partial.clear()
            raise TransientError(f"{host} sends another part of {item.name} than requested")
        for chunk in response.iter_raw():
            partial.append(chunk)
    if partial.n == start:
        raise TransientError(f"{host} sends no data of {item.name}")


def _is_range(response: httpx2.Response, start: int, size: int | None) -> bool:
    match = _RANGE.fullmatch(response.headers.get("Content-Range", ""))
    if response.status_code != 206 or match is None:
        return False
    return int(match[1]) == start and match[3] in ("*", str(size))


class _Partial:
    """The partial file. It rejects content at once if the beginning is wrong, or if the content is
    longer than announced."""

    def __init__(self, file: FileIO, item: Item, report: Report) -> None:
        self._file = file
        self._item = item
        self._report = report
        self.n = os.fstat(self._file.fileno()).st_size
        self._file.seek(0)
        self._head = self._file.read(len(item.magic)) or b""
        report(self.n)

    def clear(self) -> None:
        self._file.truncate(0)
        self.n, self._head = 0, b""

    def append(self, chunk: bytes) -> None:
        """Raises DownloadError, OSError."""
        self._head += chunk[: len(self._item.magic) - len(self._head)]
        if not self._item.magic.startswith(self._head):
            self.clear()
            raise DownloadError(f"{self._item.name} is not a GGUF file: check the name")
        if self._item.size is not None and self.n + len(chunk) > self._item.size:
            self.clear()
            raise TransientError(f"the server sends more of {self._item.name} than announced")
        rest = memoryview(chunk)
        while rest:
            written = self._file.write(rest)
            rest = rest[written:]
            self.n += written
        self._report(self.n)


# ---- Files that the cache of a repository stores by their digests.


def blob_item(
    cache: RepositoryCache,
    commit: str,
    name: str,
    *,
    url: str,
    size: int,
    digest: str,
    headers: dict[str, str],
    magic: bytes = MAGIC,
    check: Callable[[httpx2.Response, str], None] = check_status,
) -> Item:
    """Returns the file `name` of `commit`, which becomes a link to a blob."""
    path, blob = cache.file(commit, name), cache.blob(digest)

    def link() -> None:
        cache.link(digest, commit, name)

    return Item(
        name=name,
        url=url,
        target=blob,
        partial=cache.partial(digest),
        lock=cache.lock(digest),
        is_done=lambda: has_size(path, size),
        is_complete=lambda: has_size(blob, size),
        on_arrival=link,
        size=size,
        digest=digest,
        magic=magic,
        headers=headers,
        check=check,
    )


def has_size(path: Path, size: int) -> bool:
    try:
        return path.stat().st_size == size
    except OSError:
        return False
