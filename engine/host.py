"""The machine and the user of a process: the processor, and the directory of caches."""

import logging
import os
import sys
import tempfile
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple, TypeVar

import msgspec

Remembered = TypeVar("Remembered")

CPUINFO = Path("/proc/cpuinfo")
_FLAGS = ("flags", "Features")  # x86, ARM
_BLOCK = 1 << 16  # bytes; more than the system's text for one CPU


class Processor(NamedTuple):
    """The processor's name, and its instruction sets and features by their names in Linux. Both are
    empty on other systems."""

    name: str
    flags: frozenset[str]


def this_processor(cpuinfo: Path = CPUINFO) -> Processor:
    """Returns the system's description of the first CPU. Reading is slow on machines with hundreds
    of CPUs."""
    try:
        with open(cpuinfo, encoding="utf-8", errors="replace") as file:
            text = file.read(_BLOCK)
    except OSError:
        return Processor("", frozenset())
    fields = {}
    for line in text.partition("\n\n")[0].splitlines():
        key, _, value = line.partition(":")
        fields[key.strip()] = value.strip()
    flags = next((fields[key] for key in _FLAGS if key in fields), "")
    return Processor(fields.get("model name", ""), frozenset(flags.split()))


def user_cache(environ: Mapping[str, str]) -> Path:
    """Returns specllama's directory among the user's caches, which need not exist. Raises
    RuntimeError if the user has no home directory."""
    if sys.platform == "win32":
        base = Path(environ.get("LOCALAPPDATA") or Path.home() / "AppData" / "Local")
    elif sys.platform == "darwin":
        base = Path.home() / "Library" / "Caches"
    else:
        base = Path(environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    return base / "specllama"


def write_whole(path: Path, data: bytes) -> None:
    """Writes a file atomically: other processes see it complete or not at all. Raises OSError."""
    descriptor, part = tempfile.mkstemp(prefix=f".{path.stem}-", suffix=".part", dir=path.parent)
    try:
        with open(descriptor, "wb") as file:
            file.write(data)
        os.replace(part, path)
    except OSError:
        with suppress(OSError):
            os.unlink(part)
        raise


def remember(path: Path, value: object, most: int, log: logging.Logger) -> None:
    """Writes `value` to a file of a cache, as JSON, for `recall`. Removes the oldest files of the
    same folder if there are more than `most`. A failure is only logged to `log`."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        write_whole(path, msgspec.json.encode(value))
        files = sorted(path.parent.glob("*.json"), key=lambda path: path.stat().st_mtime)
        for old in files[:-most]:
            old.unlink(missing_ok=True)
    except OSError as error:
        log.info("%s can't be written: %s", path, error)


def recall(path: Path, kind: type[Remembered], log: logging.Logger) -> Remembered | None:
    """Returns the value of `kind` that a file contains as JSON. Returns None if the file is
    missing, or if it is invalid, which is logged to `log`."""
    try:
        return msgspec.json.decode(path.read_bytes(), type=kind)
    except FileNotFoundError:
        pass
    except (OSError, msgspec.MsgspecError, UnicodeDecodeError) as error:
        log.info("%s can't be used: %s", path, error)
    return None
