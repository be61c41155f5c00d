"""Texts in files: for more texts than fit into host memory, and for the next start.

A file's name is a digest of everything that its cells depend on: model, settings, LoRA adapters,
tokens and media. It has the format of a slot file (`engine.worker.cache.slot_file`), which contains
its origin and a digest. So several servers, also with different models, can use the same directory:
each ignores the files of others, and damaged ones. The total size is limited: files with the oldest
modification time, which each use renews, are removed first.
"""

import logging
import os
import re
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from functools import partial
from hashlib import blake2b
from pathlib import Path
from queue import Empty
from typing import NamedTuple

import msgspec
import numpy as np

from specllama.engine import system
from specllama.engine.errors import EngineError
from specllama.engine.worker.cache import media_table, slot_file
from specllama.engine.worker.cache.checkpoints import Cuts
from specllama.engine.worker.cache.host_cache import KeptText, TextIndex
from specllama.engine.worker.cache.origin import Identity
from specllama.engine.worker.cache.slot_file import Origin
from specllama.engine.worker.cache.texts import Key, Near, is_owned
from specllama.engine.worker.media.registry import MediaRegistry, ids_in
from specllama.engine.worker.tokens import TokenArray

log = logging.getLogger("specllama.engine.worker.cache.disk_cache")

MAX_QUEUED = 1 << 30
"""Maximum number of bytes that wait to be written; further texts are dropped."""
FIRST_GUESS = 3e-9
"""Assumed seconds to read and check a byte, before the first measurement."""
NEWEST_WEIGHT = 0.25
"""Weight of the newest file in the average speed."""
ABANDONED_SECONDS = 3600.0
"""Minimum age of an unfinished file to be removed: its server was probably killed."""

_NAME = re.compile(r"[0-9a-f]{64}\.kv")
_UNFINISHED = re.compile(r"\.slot-.*\.part")


class Stored(NamedTuple):
    """A file of `length` tokens whose first `n`, to which it can be cut, are a prefix of the
    requested text."""

    id: int
    n: int
    length: int
    n_bytes: int


class _File(NamedTuple):
    name: str
    length: int
    n_bytes: int
    media: list[int]  # the ids of its chunks


class DiskCache:
    """Files in `directory` of at most `limit` bytes in total. `registry` has the media of texts;
    `first_cut` returns the first position where a text of the given length can be cut without a
    checkpoint.

    Files are written and read in a separate thread; everything else belongs to one thread, which
    receives the results by `poll`.
    """

    def __init__(
        self,
        directory: str,
        limit: int,
        identity: Identity,
        registry: MediaRegistry,
        first_cut: Callable[[int], int],
    ) -> None:
        self._directory = directory
        self._limit = limit
        self._identity = identity
        self._registry = registry
        self._first_cut = first_cut
        self._index = TextIndex()
        self._files: dict[int, _File] = {}
        self._ids: dict[str, int] = {}
        self._last_id = 0
        self._fetching: int | None = None
        self._fetched: tuple[int, KeptText] | None = None
        self._n_queued = 0  # bytes
        self._closes_at = float("inf")
        self.seconds_per_byte = FIRST_GUESS
        self._seen: set[str] = set()  # of the file thread: names whose head was read
        self._done: system.SimpleQueue[Callable[[], None]] = system.SimpleQueue()
        self._thread = system.pool(1, "disk cache")
        self._scan()
        self.poll()
        log.info("%d texts in %s", len(self._files), directory)

    def __len__(self) -> int:
        return len(self._files)

    def media(self) -> Iterator[int]:
        """The ids of the media in all texts."""
        for file in self._files.values():
            yield from file.media

    # ---- looking -------------------------------------------------------------------------

    def covers(self, tokens: TokenArray, key: Key, n_checkpoints: int = 0) -> bool:
        """True if a file makes `tokens` with that many checkpoints redundant. Marks it as used."""
        covering = self._index.covering(tokens, key, n_checkpoints)
        for id in covering:
            self._touch(id)
        return bool(covering)

    def find(self, tokens: TokenArray, key: Key) -> Stored | None:
        """The file with the longest common prefix with `tokens`."""
        id, n = self._index.longest(tokens, key)
        if not n:
            return None
        file = self._files[id]
        return Stored(id, n, file.length, file.n_bytes)

    def common_prefix(self, tokens: TokenArray, key: Key) -> int:
        """As in `TextIndex`."""
        return self._index.common_prefix(tokens, key)

    def near(self, tokens: TokenArray, key: Key, n_rest: int) -> Near:
        """As in `TextIndex`."""
        return self._index.near(tokens, key, n_rest)

    def keys(self) -> Iterator[Key]:
        """As in `TextIndex`."""
        return self._index.keys()

    # ---- reading -------------------------------------------------------------------------

    def fetch(self, stored: Stored) -> KeptText | None:
        """The text in the file, if it is already fetched. Otherwise None: its fetch begins, unless
        another one is running. A file that turns out to be unusable is not found again."""
        if self._fetched is not None and self._fetched[0] == stored.id:
            return self._fetched[1]
        if self._fetching is None:
            self._fetching, self._fetched = stored.id, None
            self._thread.submit(self._read, stored.id, self._files[stored.id])
        return None

    def use(self, text: KeptText) -> None:
        """Record that a fetched text was restored to the KV cache."""
        if self._fetched is not None and self._fetched[1] is text:
            self._touch(self._fetched[0])
            self._fetched = None

    def forget(self, text: KeptText) -> None:
        """Remove the file of an unusable fetched text from the index."""
        if self._fetched is not None and self._fetched[1] is text:
            self._remove(self._fetched[0])

    def poll(self) -> None:
        """Handle the results of finished reads and writes."""
        with suppress(Empty):
            while True:
                self._done.get_nowait()()

    def wait(self, seconds: float) -> None:
        """Wait until a fetch is done, at most `seconds`; not at all if there is none."""
        if self._fetching is not None:
            with suppress(Empty):
                self._done.get(timeout=seconds)()

    def _read(self, id: int, file: _File) -> None:
        started = system.now()
        text: KeptText | None = None
        try:
            saved = slot_file.read(self._directory, file.name)
            key = self._identity.key(saved.origin)
            tokens = media_table.from_file(saved.tokens, saved.origin.media, self._registry)
            if key is not None and self._name(tokens, key) == file.name:
                first_cut = self._first_cut(len(tokens))
                text = KeptText(tokens, key, saved.state, first_cut, tuple(saved.checkpoints))
            else:
                log.warning("%s is ignored: its name is that of another text", file.name)
        except (EngineError, ValueError) as error:
            log.warning("%s is ignored: %s", file.name, error)
        seconds = system.now() - started

        def done() -> None:
            self._fetching = None
            if text is None:
                self._remove(id)
                return
            self.seconds_per_byte += NEWEST_WEIGHT * (
                seconds / file.n_bytes - self.seconds_per_byte
            )
            if id in self._files:
                self._fetched = id, text

        self._done.put(done)

    # ---- writing -------------------------------------------------------------------------

    def write(self, text: KeptText) -> None:
        """Keep `text` in a file, unless another file makes it redundant, with as many checkpoints
        as the limit allows. Texts with an owner are not written, as files don't contain the
        owner."""
        if is_owned(text.key):
            return
        text = text.within(self._limit)
        name, n_bytes = self._name(text.tokens, text.key), text.n_bytes
        if n_bytes > self._limit or self.covers(text.tokens, text.key, len(text.checkpoints)):
            return
        if self._n_queued + n_bytes > MAX_QUEUED:
            log.debug(
                "a text of %d tokens is dropped: files are not written fast enough",
                len(text.tokens),
            )
            return
        covered = self._index.covered(text.tokens, text.key, text.cuts)
        others = [self._files[id].name for id in covered if self._files[id].name != name]
        self._remove_name(name)  # of the same text, with fewer checkpoints
        self._add(name, text.tokens, text.key, text.cuts, n_bytes)
        self._n_queued += n_bytes
        self._thread.submit(self._write, name, text, others)

    def close(self, deadline: float) -> None:
        """Write the waiting texts, but begin no further file after `deadline`, a time of
        `system.now`."""
        self._closes_at = deadline
        self._thread.shutdown(wait=True)

    def _write(self, name: str, text: KeptText, covered: list[str]) -> None:
        written = False
        try:
            if system.now() < self._closes_at:
                self._make_room(text.n_bytes)
                origin, tokens = self._saved(text.tokens, text.key)
                slot_file.write(self._directory, name, origin, tokens, text.state, text.checkpoints)
                self._seen.add(name)
                for other in covered:
                    self._unlink(other)
                written = True
        except (EngineError, OSError) as error:
            log.warning("a text of %d tokens can't be kept: %s", len(text.tokens), error)

        def done() -> None:
            self._n_queued -= text.n_bytes
            if not written and (id := self._ids.get(name)) is not None:
                self._remove(id)

        self._done.put(done)

    def _make_room(self, n_bytes: int) -> None:
        files = self._scan()
        n_used = sum(size for _, size, _ in files)
        for _, size, name in sorted(files):
            if n_used + n_bytes <= self._limit:
                break
            self._unlink(name)
            n_used -= size

    def _unlink(self, name: str) -> None:
        with suppress(FileNotFoundError):
            os.unlink(Path(self._directory, name))
        self._seen.discard(name)
        self._done.put(partial(self._remove_name, name))

    # ---- the directory -------------------------------------------------------------------

    def _scan(self) -> list[tuple[float, int, str]]:
        """Modification time, size and name of all files, of all servers. Reads the heads of new
        files, and removes vanished ones from the index. Raises OSError."""
        found = []
        with os.scandir(self._directory) as entries:
            for entry in entries:
                # Another server may remove a file at any moment.
                with suppress(FileNotFoundError):
                    if _NAME.fullmatch(entry.name) and entry.is_file(follow_symlinks=False):
                        status = entry.stat(follow_symlinks=False)
                        found.append((status.st_mtime, status.st_size, entry.name))
                    elif _UNFINISHED.fullmatch(entry.name):
                        self._clear_up(entry)
        names = {name for _, _, name in found}
        for name in self._seen - names:
            self._done.put(partial(self._remove_name, name))
        for _, size, name in found:
            if name not in self._seen:
                self._look_into(name, size)
        self._seen = names
        return found

    def _clear_up(self, entry: "os.DirEntry[str]") -> None:
        if time.time() - entry.stat(follow_symlinks=False).st_mtime > ABANDONED_SECONDS:
            os.unlink(entry.path)

    def _look_into(self, name: str, size: int) -> None:
        try:
            origin, tokens, places = slot_file.read_head(self._directory, name)
        except EngineError as error:
            log.warning("%s is ignored: %s", name, error)
            return
        key = self._identity.key(origin)
        if not self._identity.fits(origin) or key is None:
            return  # of another model, or with other settings
        try:
            tokens = media_table.from_file(tokens, origin.media, self._registry)
        except ValueError as error:
            log.warning("%s is ignored: %s", name, error)
            return
        if not len(tokens) or self._name(tokens, key) != name:
            log.warning("%s is ignored: its name is that of another text", name)
            return
        cuts = Cuts(self._first_cut(len(tokens)), places)
        self._done.put(partial(self._add, name, tokens, key, cuts, size))

    # ---- the index -----------------------------------------------------------------------

    def _saved(self, tokens: TokenArray, key: Key) -> tuple[Origin, TokenArray]:
        """The origin, and the tokens with a file's media ids."""
        written, table = media_table.to_file(tokens, self._registry)
        return self._identity.origin(key, media=table), written

    def _name(self, tokens: TokenArray, key: Key) -> str:
        origin, tokens = self._saved(tokens, key)
        fields = msgspec.structs.asdict(origin)
        if not origin.media:
            del fields["media"], fields["projector"]
        digest = blake2b(digest_size=32)
        digest.update(msgspec.msgpack.encode(fields, order="sorted"))
        digest.update(np.ascontiguousarray(tokens, "<i4").data)
        return f"{digest.hexdigest()}.kv"

    def _add(self, name: str, tokens: TokenArray, key: Key, cuts: Cuts, n_bytes: int) -> None:
        if name in self._ids:
            return
        self._last_id += 1
        self._ids[name] = self._last_id
        self._files[self._last_id] = _File(name, len(tokens), n_bytes, ids_in(tokens))
        self._index.add(self._last_id, tokens, key, cuts)

    def _remove_name(self, name: str) -> None:
        if (id := self._ids.get(name)) is not None:
            self._remove(id)

    def _remove(self, id: int) -> None:
        if (file := self._files.pop(id, None)) is not None:
            del self._ids[file.name]
            self._index.remove(id)
        if self._fetched is not None and self._fetched[0] == id:
            self._fetched = None

    def _touch(self, id: int) -> None:
        with suppress(OSError):
            os.utime(Path(self._directory, self._files[id].name))
