"""Removes models from the Hugging Face cache, and nothing outside of it.

The cache may contain links: a folder may be a link to another place, and the file of a model a link
to a file that was never downloaded. Links are removed, their targets stay.
"""

import errno
import os
from collections.abc import Iterator, Sequence, Set
from pathlib import Path

from specllama.engine.catalog.hub_cache import CachedModel, cached_models
from specllama.engine.formats.gguf_names import is_model, parts_of, pick_projector


def is_removable(cache: Path, model: CachedModel) -> bool:
    """Returns whether the model's folder is in the cache, without links."""
    folder = _folder(cache, model.repository)
    try:
        inside = Path(model.path).parent.resolve().relative_to(folder.resolve()).parts
        return folder.resolve() == cache.resolve() / folder.name and inside[:1] == ("snapshots",)
    except (OSError, ValueError):
        return False


def remove(cache: Path, name: str) -> None:
    """Removes the model with exactly that name from all commits of its repository, with its
    projector if no other model uses it. Contents that another file also links to stay. Does nothing
    if the model doesn't exist.

    Raises OSError, also for a model that is not removable.
    """
    while models := [each for each in cached_models(cache) if each.name == name]:
        # Two files of one quantization share a name: the second one appears after the first is
        # removed.
        [model] = models
        if not is_removable(cache, model):
            raise PermissionError(errno.EPERM, "it is not in the cache", model.path)
        _remove(_folder(cache, model.repository), model)


def _folder(cache: Path, repository: str) -> Path:
    return cache / ("models--" + repository.replace("/", "--"))


def _remove(folder: Path, model: CachedModel) -> None:
    path = Path(model.path)
    files = [path.with_name(part) for part in parts_of(path.name)]
    snapshot = folder / "snapshots" / path.relative_to(folder / "snapshots").parts[0]
    names = {file.relative_to(snapshot).as_posix() for file in files}
    links = [
        link
        for commit in _real_folders(folder / "snapshots")
        for name in _to_remove(_names(commit), names)
        if is_real(folder, (link := commit / name).parent)
    ]
    unlink(folder, links)


def unlink(folder: Path, links: Sequence[Path]) -> None:
    """Removes names of files of a repository, and contents without any other name in it. Raises
    OSError."""
    blobs = {blob for link in links if (blob := _blob(folder, link))}
    for link in links:
        link.unlink()
    for blob in blobs - set(_linked(folder)):
        blob.unlink(missing_ok=True)


def _to_remove(there: Set[str], model: Set[str]) -> Set[str]:
    """Returns the files to remove of a commit's files `there`, for the files of a `model`."""
    gone, rest = there & model, there - model
    projectors = {pick_projector(sorted(there), name) for name in gone}
    of_others = {pick_projector(sorted(rest), name) for name in rest if is_model(name)}
    return gone | {name for name in projectors - of_others if name}


def _names(commit: Path) -> set[str]:
    """Returns all names in a commit, including folders: a folder in place of a file makes the
    removal fail."""
    return {
        (Path(root) / name).relative_to(commit).as_posix()
        for root, folders, names in os.walk(commit)
        for name in (*folders, *names)
    }


def _real_folders(parent: Path) -> list[Path]:
    with os.scandir(parent) as entries:
        return [parent / entry.name for entry in entries if entry.is_dir(follow_symlinks=False)]


def is_real(folder: Path, inside: Path) -> bool:
    """Returns whether the path from `folder` to `inside` contains no link."""
    return inside.resolve() == folder.resolve() / inside.relative_to(folder)


def _blob(folder: Path, link: Path) -> Path | None:
    """Returns the content that a link leads to, if it belongs to the repository."""
    if not link.is_symlink():
        return None
    target = Path(os.path.normpath(link.parent / os.readlink(link)))
    blobs = folder / "blobs"
    own = target.parent.resolve() == blobs.resolve() and is_real(folder, blobs)
    return blobs / target.name if own and not target.is_symlink() and target.is_file() else None


def _linked(folder: Path) -> Iterator[Path]:
    """Yields the contents that links of any commit lead to."""
    for root, _, names in os.walk(folder / "snapshots"):
        for name in names:
            if blob := _blob(folder, Path(root) / name):
                yield blob
