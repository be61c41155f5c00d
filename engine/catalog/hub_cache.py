"""The models in the cache of the Hugging Face Hub, which several programs share.

    CACHE/models--user--repo/refs/main                  the last known commit of "main"
    CACHE/models--user--repo/snapshots/<commit>/...     the repository's files, as links

huggingface_hub's own `scan_cache_dir` also scans data sets and old commits, and ignores a
repository completely if one link is broken, as after an interrupted download.
"""

import logging
import os
import re
import stat
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Final

import msgspec

from specllama.engine.catalog.directory import first_missing
from specllama.engine.formats.gguf_names import (
    DEFAULT_QUANTS,
    is_model,
    part,
    parts_of,
    pick_projector,
    quantization,
)
from specllama.engine.options import OptionError, text_values
from specllama.engine.options.files import open_regular
from specllama.engine.options.values import quote

log = logging.getLogger("specllama.engine.catalog.hub_cache")

MAX_FILES: Final = 100_000  # maximum number of names in one repository
MAX_DEPTH: Final = 8  # folders below the snapshot

_PREFIX: Final = "models--"
_COMMIT: Final = re.compile(r"[0-9a-f]{40}")


class CachedModel(msgspec.Struct, frozen=True, kw_only=True):
    """A complete model. `quant` is in capitals, "" if the file's name has none."""

    repository: str  # user/repo
    quant: str
    path: str  # path of the first part
    projector: str = ""  # path; "" if there is none
    size: int  # bytes of all parts

    @property
    def name(self) -> str:
        return f"{self.repository}:{self.quant}" if self.quant else self.repository


def cached_models(cache: Path) -> list[CachedModel]:
    """Returns all models in the cache, in order of their names. A missing cache contains none.
    Unreadable parts are ignored with a warning."""
    models = []
    for folder in folders_of(cache):
        repository = folder.name.removeprefix(_PREFIX).replace("--", "/")
        if _can_be_named(repository):
            try:
                models += _models(repository, folder)
            except OSError as e:
                log.warning("%s is ignored: %s", quote(str(folder)), e.strerror)
    return sorted(models, key=lambda model: model.name)


def named(models: Sequence[CachedModel], name: str) -> CachedModel | None:
    """Returns the model with a name: user/repo:QUANT, with QUANT in any letter case. For user/repo
    alone, it is the model with the first of `DEFAULT_QUANTS` that exists, else the first one."""
    repository, colon, quant = name.partition(":")
    here = [model for model in models if model.repository == repository]
    for wanted in [quant.upper()] if colon else DEFAULT_QUANTS:
        for model in here:
            if model.quant == wanted:
                return model
    return here[0] if here and not colon else None


def folders_of(cache: Path) -> list[Path]:
    """Returns one folder for each repository; empty, with a warning, if the cache can't be read."""
    try:
        with os.scandir(cache) as entries:
            return sorted(
                cache / entry.name
                for entry in entries
                if entry.name.startswith(_PREFIX) and entry.is_dir()
            )
    except FileNotFoundError:
        return []
    except OSError as e:
        log.warning("the cache %s is ignored: %s", quote(str(cache)), e.strerror)
        return []


def _can_be_named(name: str) -> bool:
    """Returns whether the name is valid for --hf-repo."""
    try:
        return bool(text_values.hf_repo(name))
    except OptionError:
        return False


def _models(repository: str, folder: Path) -> list[CachedModel]:
    """Raises OSError."""
    commit = _commit(folder / "refs")
    if commit is None:
        return []
    root = folder / "snapshots" / commit
    files = {path.relative_to(root).as_posix(): path for path in files_below(root)}
    models: dict[str, CachedModel] = {}
    for name, path in files.items():
        split = part(name)
        if not is_model(name) or (split and split.index != 1):
            continue
        if missing := first_missing(name, files):
            log.warning("%s is ignored: there is no %s", quote(str(path)), quote(missing))
            continue
        projector = pick_projector(list(files), name)
        model = CachedModel(
            repository=repository,
            quant=quantization(name),
            path=str(path),
            projector=str(files[projector]) if projector else "",
            size=sum(files[file].stat().st_size for file in parts_of(name)),
        )
        if _can_be_named(model.name):
            models.setdefault(model.name, model)
    return list(models.values())


def _commit(refs: Path) -> str | None:
    """Returns the commit of "main", or of any other reference; None if there is none."""
    try:
        names = sorted(entry.name for entry in os.scandir(refs))
    except (FileNotFoundError, NotADirectoryError):
        return None
    for name in sorted(names, key=lambda name: name != "main"):
        try:
            with open(open_regular(str(refs / name)), "rb") as file:
                text = file.read(64).decode("ascii", "replace").strip()
        except (OptionError, OSError):
            continue
        if _COMMIT.fullmatch(text):
            return text
    return None


def files_below(root: Path) -> Iterator[Path]:
    """Yields regular files below `root` in order of their paths, including links to files. Raises
    OSError if `root` itself can't be read."""
    n_left = MAX_FILES
    waiting = [(root, 0)]
    found = []
    while waiting:
        folder, depth = waiting.pop()
        try:
            entries = list(os.scandir(folder))
        except FileNotFoundError:
            continue  # a reference to a commit that was never downloaded
        n_left -= len(entries)
        if n_left < 0:
            log.warning("%s contains more than %d files", quote(str(root)), MAX_FILES)
            break
        for entry in entries:
            if entry.is_dir(follow_symlinks=False):
                if depth < MAX_DEPTH:
                    waiting.append((folder / entry.name, depth + 1))
            elif entry.name.isprintable() and _is_file(folder / entry.name):
                found.append(folder / entry.name)
    yield from sorted(found)


def _is_file(path: Path) -> bool:
    try:
        return stat.S_ISREG(path.stat().st_mode)
    except OSError:  # a broken link: the file was deleted, or isn't complete yet
        return False
