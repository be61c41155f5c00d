"""The models in the directory of --models-dir.

    DIR/name.gguf                        the model "name"
    DIR/name-00001-of-00003.gguf ...     the model "name", in parts
    DIR/name/anything.gguf               the model "name", in one file or in parts,
    DIR/name/mmproj-anything.gguf        and its multimodal projector
    DIR/name/a.gguf, DIR/name/b.gguf     the models "name/a" and "name/b"

Deeper folders are ignored. Only names and types of files are read. Files aren't opened, so this
can't block; their contents are checked when they are loaded.
"""

import logging
import os
import stat
from collections.abc import Container, Iterable
from pathlib import Path
from typing import Final

import msgspec

from specllama.engine.formats.gguf_names import best_projector, is_gguf, is_model, part, stem
from specllama.engine.options import OptionError
from specllama.engine.options.values import quote

log = logging.getLogger("specllama.engine.catalog.directory")

MAX_FILES: Final = 100_000  # maximum number of names, in all folders together


class ModelFiles(msgspec.Struct, frozen=True, kw_only=True):
    """A model in the directory: its name and its files."""

    name: str
    path: str  # path of the first part
    projector: str = ""  # path; "" if there is none


def models_in(directory: str) -> list[ModelFiles]:
    """Returns the models in `directory`, in order of their names. Logs a warning for each that
    can't be used.

    Raises OptionError if the directory can't be read.
    """
    scan = _Scan()
    try:
        files, folders = scan.listed(Path(directory))
    except (OSError, ValueError) as e:
        reason = e.strerror if isinstance(e, OSError) else e
        raise OptionError(f"--models-dir: cannot read {quote(directory)}: {reason}") from None
    models = {model.name: model for model in _models(files, projectors=())}
    for folder in folders:
        try:
            inside, _ = scan.listed(folder)
        except OSError as e:
            log.warning("%s is ignored: %s", quote(str(folder)), e.strerror)
            continue
        for model in _models_of_folder(folder.name, inside):
            if model.name in models:
                _warn_of_double(model.path, models[model.name])
            else:
                models[model.name] = model
    if scan.is_over:
        log.warning("%s contains more than %d files: the rest is ignored", directory, MAX_FILES)
    return [models[name] for name in sorted(models)]


class _Scan:
    """Lists directories until it has read too many names."""

    def __init__(self) -> None:
        self._left = MAX_FILES

    @property
    def is_over(self) -> bool:
        return self._left < 0

    def listed(self, directory: Path) -> tuple[list[Path], list[Path]]:
        """Returns the GGUF files and the folders in `directory`, without hidden ones, in order of
        their names. Raises OSError."""
        files, folders = [], []
        with os.scandir(directory) as entries:
            for entry in entries:
                self._left -= 1
                if self.is_over:
                    break
                kind = None if entry.name.startswith(".") else _kind(entry)
                if kind == "file":
                    files.append(directory / entry.name)
                elif kind == "folder":
                    folders.append(directory / entry.name)
        return sorted(files), sorted(folders)


def _kind(entry: os.DirEntry[str]) -> str | None:
    """Returns the kind of a GGUF file or of a folder with a usable name, following links; None for
    any other entry."""
    try:
        mode = entry.stat().st_mode
    except OSError as e:  # a broken or circular link
        if is_gguf(entry.name):
            log.warning("%s is ignored: %s", quote(entry.path), e.strerror)
        return None
    is_folder = stat.S_ISDIR(mode)
    if not is_folder and not is_gguf(entry.name):
        return None
    if not entry.name.isprintable():  # text that is not UTF-8 isn't printable either
        log.warning("%s is ignored: its name can't be shown", quote(entry.path))
        return None
    if not is_folder and not stat.S_ISREG(mode):
        log.warning("%s is ignored: it is not a regular file", quote(entry.path))
        return None
    return "folder" if is_folder else "file"


def _models_of_folder(folder: str, files: list[Path]) -> list[ModelFiles]:
    models = _models(files, projectors=[str(path) for path in files])
    if len(models) == 1:
        return [msgspec.structs.replace(models[0], name=folder)]
    return [msgspec.structs.replace(model, name=f"{folder}/{model.name}") for model in models]


def _models(files: Iterable[Path], projectors: Iterable[str]) -> list[ModelFiles]:
    """Returns the models that files of one directory contain; incomplete ones are ignored."""
    paths = {path.name: path for path in files if is_model(path.name)}
    firsts: dict[str, Path] = {}  # one file of each model, by the name of its first file
    for name, path in paths.items():
        split = part(name)
        firsts.setdefault(split.file_name(1) if split else name, path)
    found: dict[str, ModelFiles] = {}
    for first, path in firsts.items():
        name = stem(first)
        if missing := first_missing(first, paths):
            log.warning("%s is ignored: there is no %s", quote(str(path)), quote(missing))
        elif name in found:
            _warn_of_double(str(path), found[name])
        else:
            best = best_projector(first, projectors) or ""
            found[name] = ModelFiles(name=name, path=str(paths[first]), projector=best)
    return list(found.values())


def first_missing(first: str, names: Container[str]) -> str | None:
    """Returns the first file that is missing in `names`, of the model whose first file is `first`;
    None if none is missing."""
    split = part(first)
    if split is None:
        return None if first in names else first
    indices = range(1, split.count + 1)
    return next((name for i in indices if (name := split.file_name(i)) not in names), None)


def _warn_of_double(path: str, other: ModelFiles) -> None:
    log.warning("%s is ignored: %s has the same name", quote(path), quote(other.path))
