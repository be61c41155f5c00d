"""Remembers the bundled description between starts.

Reading some forty YAML files, and checking them, takes longer than all else that the server does
with its description before it serves. What comes out is kept in the user's cache, under the hash
of all that it is made of. A copy that is missing or damaged is made anew; where none can be
written, that happens at every start.
"""

import hashlib
import logging
import os
import tempfile
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path

import msgspec

from specllama.engine.host import user_cache
from specllama.handlers.http.bundle import Node, bundle

log = logging.getLogger(__name__)

KEPT = 8
"""Copies, the newest: several versions may be in use, and the older ones are of no use."""

_BUNDLER = Path(__file__).with_name("bundle.py")


def bundled(
    root: Path,
    environ: Mapping[str, str] = os.environ,
    check: Callable[[Node], None] = lambda document: None,
) -> Node:
    """`bundle(root)`, remembered; each caller has its own objects. `check` sees a description
    that is not known yet, and raises what it likes if that is not valid."""
    place = _place(root, environ)
    document = place and _read(place)
    if document:
        return document
    document = bundle(root)
    check(document)
    if place is not None:
        _write(place, document)
    return document


def _place(root: Path, environ: Mapping[str, str]) -> Path | None:
    """The file of the copy: its name is a digest of its sources and of the bundler."""
    key = hashlib.sha256()
    for file in (_BUNDLER, *sorted(root.parent.rglob("*.yaml"))):
        content = file.read_bytes()
        key.update(f"{file.name} {len(content)} ".encode())
        key.update(content)
    key.update(str(root.name).encode())
    try:
        return user_cache(environ) / "descriptions" / f"{key.hexdigest()}.json"
    except RuntimeError:  # the user has no home
        return None


def _read(place: Path) -> Node | None:
    """The bundle at `place`, if it is whole."""
    try:
        checksum, _, content = place.read_bytes().partition(b"\n")
        if checksum == _checksum(content):
            document: Node = msgspec.json.decode(content)
            return document
        log.warning("%s is damaged, and is made anew", place)
    except FileNotFoundError:
        pass
    except (OSError, msgspec.DecodeError) as error:
        log.debug("%s can't be read: %s", place, error)
    return None


def _write(place: Path, document: Node) -> None:
    """All at once, so that who reads it meanwhile sees the old file or the new one."""
    content = msgspec.json.encode(document)
    try:
        place.parent.mkdir(parents=True, exist_ok=True)
        descriptor, name = tempfile.mkstemp(dir=place.parent, suffix=".tmp")
        try:
            with open(descriptor, "wb") as file:
                file.write(_checksum(content) + b"\n" + content)
            os.replace(name, place)
        except OSError:
            os.unlink(name)
            raise
        _forget_old(place.parent)
    except OSError as error:
        log.debug("the description can't be remembered: %s", error)


def _checksum(content: bytes) -> bytes:
    return hashlib.sha256(content).hexdigest().encode()


def _forget_old(directory: Path) -> None:
    files = sorted(directory.glob("*.json"), key=lambda file: file.stat().st_mtime, reverse=True)
    for file in files[KEPT:]:
        with suppress(FileNotFoundError):  # another process was quicker
            file.unlink()
