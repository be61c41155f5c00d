"""The API keys of a running server, and their replacement when the keys file changes.

The file is read again after SIGHUP, and when a look at it, every few seconds, finds a change. Then
all keys are replaced at once. If the file is invalid or missing, the old keys stay.
"""

import asyncio
import contextlib
import logging
import os
import signal
import stat
from collections.abc import Callable, Iterator

from specllama.engine.options import OptionError
from specllama.handlers.http.api_keys import ApiKey, KeyRing, administrators
from specllama.handlers.options.tables.http import HttpOptions

log = logging.getLogger(__name__)

POLL = 2.0
"""Seconds between two looks at the file."""

_Mark = tuple[int, ...]


class ServerKeys:
    """The keys of `--api-key` and `--api-key-file`, which never change, and those of
    `--keys-file`. Raises OptionError if a file can't be used."""

    def __init__(self, options: HttpOptions) -> None:
        self._options = options
        self._fixed = administrators(options.api_keys())
        self._mark = self._look()
        self.ring = KeyRing(self._all(), is_needed=bool(options.keys_file))
        self._asked = asyncio.Event()

    def _all(self) -> list[ApiKey]:
        """Reads the file, and returns all keys. Raises OptionError."""
        tables, path = self._options.named_keys(), self._options.keys_file
        if path and not (tables or self._fixed):
            log.warning("%s has no key: every operation that needs one is refused", path)
        if path and _is_open(path):
            log.warning("%s can be read or changed by all users; chmod 600 protects it", path)
        return [*self._fixed, *(ApiKey.of_table(name, each) for name, each in tables.items())]

    def _look(self) -> _Mark:
        """Returns what changes with the file; () if there is none."""
        try:
            found = os.stat(self._options.keys_file)
        except (OSError, ValueError):
            return ()
        return (found.st_mtime_ns, found.st_ctime_ns, found.st_ino, found.st_size)

    async def watch(self, poll: float = POLL) -> None:
        """Replaces the keys when the file changes or after SIGHUP, until it is cancelled. Returns
        at once without `--keys-file`."""
        if not self._options.keys_file:
            return
        with _on_hangup(self._asked.set):
            while True:
                with contextlib.suppress(TimeoutError):
                    await asyncio.wait_for(self._asked.wait(), poll)
                is_asked = self._asked.is_set()
                self._asked.clear()
                await asyncio.to_thread(self.look_again, is_asked=is_asked)

    def look_again(self, *, is_asked: bool = False) -> None:
        """Reads the file if it has changed, or if `is_asked`, and replaces the keys unless it is
        invalid."""
        mark = self._look()
        if mark == self._mark and not is_asked:
            return
        self._mark = mark  # of the state before the reading: a later change is read as well
        try:
            keys = self._all()
        except OptionError as error:
            log.error("the old API keys stay, because the keys file can't be used: %s", error)
            return
        before, after = ({key.name: key for key in each} for each in (self.ring.keys, keys))
        self.ring.replace(keys)
        log.info(
            "read the API keys again: %s",
            _changes(
                added=[*(after.keys() - before.keys())],
                changed=[n for n in after.keys() & before.keys() if after[n] != before[n]],
                removed=[*(before.keys() - after.keys())],
            ),
        )


MAX_SHOWN = 20


def _changes(**names: list[str]) -> str:
    """Returns the numbers of keys that were added, changed and removed, with their names."""
    return ", ".join(f"{len(each)} {what}{_listed(each)}" for what, each in names.items())


def _listed(names: list[str]) -> str:
    if not names:
        return ""
    more = ["..."] if len(names) > MAX_SHOWN else []
    return f" ({', '.join([*sorted(names)[:MAX_SHOWN], *more])})"


def _is_open(path: str) -> bool:
    """True if every user of this machine can read or change the file; False on Windows, whose modes
    don't show it."""
    try:
        return os.name == "posix" and bool(os.stat(path).st_mode & (stat.S_IROTH | stat.S_IWOTH))
    except OSError:
        return False


@contextlib.contextmanager
def _on_hangup(call: Callable[[], None]) -> Iterator[None]:
    """Calls `call` after each SIGHUP, except when the terminal of the server is closed, which ends
    the server. Without effect on Windows, and outside of the main thread."""
    if not hasattr(signal, "SIGHUP"):
        yield
        return
    had_terminal = _has_terminal()

    def handle() -> None:
        if had_terminal and not _has_terminal():
            signal.raise_signal(signal.SIGTERM)
        else:
            call()

    loop = asyncio.get_running_loop()
    try:
        loop.add_signal_handler(signal.SIGHUP, handle)
    except (RuntimeError, ValueError, NotImplementedError):
        yield
        return
    try:
        yield
    finally:
        loop.remove_signal_handler(signal.SIGHUP)


def _has_terminal() -> bool:
    try:
        os.close(os.open("/dev/tty", os.O_RDWR | os.O_NOCTTY))
    except OSError:
        return False
    return True
