"""The prompts of requests, in files (`--log-prompts-dir`).

A thread writes the files, so neither a slow nor a full disk delays or harms a request. Each prompt
gets a new file, which only its owner can read; no part of its name comes from a request.
"""

import json
import logging
import os
import time
from contextlib import suppress
from pathlib import Path
from typing import Final, NamedTuple

from specllama.engine import system
from specllama.engine.options import OptionError
from specllama.engine.wire.requests import Infill
from specllama.handlers.http.streams import in_thread_within

log = logging.getLogger(__name__)

MAX_WAITING: Final = 64 << 20
"""The limit for all prompts that wait to be written, in characters and tokens. Further ones are
left out."""
REMARK_SECONDS: Final = 60.0
"""The minimum time between two warnings."""
STOP_SECONDS: Final = 2.0
"""The time limit for writing the last prompts when the server stops."""
TRIES: Final = 100
"""The number of names to try for a file; several servers may use one directory."""


PlainPrompt = list[int | str] | Infill
"""A prompt without media."""


class _Waiting(NamedTuple):
    prompt: PlainPrompt
    size: int  # characters and tokens


class PromptLog:
    """Writes prompts to files in `directory`, which it creates for this user alone if it doesn't
    exist. Raises OptionError if that is impossible.

    A file is named `MILLISECONDS-NUMBER.txt`, by the time since 1970 and a counter.
    """

    def __init__(self, directory: str) -> None:
        self._directory = Path(directory)
        try:
            self._directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        except (OSError, ValueError) as error:
            reason = error.strerror if isinstance(error, OSError) else error
            raise OptionError(f"--log-prompts-dir: cannot create the directory: {reason}") from None
        self._waiting: system.SimpleQueue[_Waiting | None] = system.SimpleQueue()
        self._changed = system.Lock()
        self._n_waiting = 0  # characters and tokens
        self._number = 0
        self._next_remark = 0.0
        self._written = system.Event()
        system.start_thread(self._run, "prompt-log")

    def add(self, prompt: PlainPrompt) -> None:
        """Writes `prompt` soon. Returns at once."""
        size = sum(len(part) if isinstance(part, str) else 1 for part in _parts(prompt))
        with self._changed:
            has_room = self._n_waiting + size <= MAX_WAITING
            self._n_waiting += size if has_room else 0
        if has_room:
            self._waiting.put(_Waiting(prompt, size))
        else:
            self._remark("a prompt is not written: too many wait for the disk")

    async def stop(self) -> None:
        """Writes the last prompts, for at most `STOP_SECONDS`; then they are lost."""
        self._waiting.put(None)
        await in_thread_within(STOP_SECONDS, self._written.wait, "prompt-log-stop")

    # ---- the thread ----------------------------------------------------------------------

    def _run(self) -> None:
        while (each := self._waiting.get()) is not None:
            try:
                self._write(content_of(each.prompt))
            except OSError as error:
                self._remark(f"a prompt is not written: {error.strerror or error}")
            with self._changed:
                self._n_waiting -= each.size
        self._written.set()

    def _write(self, text: str) -> None:
        """Writes a new file. Raises OSError; then there is no file."""
        path, descriptor = self._created()
        try:
            with open(descriptor, "wb") as file:
                file.write(text.encode("utf-8", "backslashreplace"))
        except OSError:
            with suppress(OSError):
                path.unlink()
            raise

    def _created(self) -> tuple[Path, int]:
        """Returns the path and the descriptor of a new, empty file. Raises OSError."""
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | getattr(os, "O_BINARY", 0)
        for _ in range(TRIES):
            self._number += 1
            path = self._directory / f"{time.time_ns() // 1_000_000:013d}-{self._number:06d}.txt"
            with suppress(FileExistsError):
                return path, os.open(path, flags, 0o600)
        raise FileExistsError(f"{TRIES} files with the next names exist")

    def _remark(self, text: str) -> None:
        with self._changed:
            now = system.now()
            if now < self._next_remark:
                return
            self._next_remark = now + REMARK_SECONDS
        log.warning("--log-prompts-dir: %s", text)


def content_of(prompt: PlainPrompt) -> str:
    """Returns the content of a prompt's file: the text of a prompt without token ids, otherwise a
    JSON array; for the gap between two texts, a JSON object with the names of `POST /infill`."""
    if isinstance(prompt, Infill):
        named = {
            "input_prefix": prompt.prefix,
            "input_suffix": prompt.suffix,
            "prompt": prompt.middle,
            "input_extra": [{"filename": name, "text": text} for name, text in prompt.extra],
        }
        return json.dumps(named, indent=2)
    if all(isinstance(part, str) for part in prompt):
        return "".join(str(part) for part in prompt)
    return json.dumps(prompt, indent=2)


def _parts(prompt: PlainPrompt) -> list[int | str]:
    if not isinstance(prompt, Infill):
        return prompt
    pairs = [text for pair in prompt.extra for text in pair]
    return [*prompt.prefix, *prompt.suffix, prompt.middle, *pairs]
