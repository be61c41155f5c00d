"""The models in the cache of downloads from container registries.

CACHE/models--<host>_<name>-<digest>/versions/<version>   the last known digest of a tag's
                                                          manifest, and the tag's name
.../manifests/<digest>                                    manifest of a downloaded model
.../snapshots/<digest>/...                                its files, as links
"""

import errno
import os
from collections.abc import Set
from pathlib import Path
from typing import Final, NamedTuple

import msgspec

from specllama.engine.catalog.directory import first_missing
from specllama.engine.catalog.hub_cache import files_below, folders_of
from specllama.engine.catalog.removal import is_real, unlink
from specllama.engine.formats.gguf_names import is_model, part
from specllama.engine.formats.oci_names import reference, spelled

_MAX_VERSION: Final = 4096  # bytes
_HEXADECIMAL: Final = frozenset("0123456789abcdef")


class Version(NamedTuple):
    """The last known meaning of a name in a registry."""

    digest: str  # digest of the manifest
    name: str  # as `spelled`


class RegistryModel(msgspec.Struct, frozen=True, kw_only=True):
    """A complete model."""

    name: str
    path: str  # path of the first part
    size: int  # bytes of all files


class _Kept(NamedTuple):
    folder: Path
    place: Path  # path of the version
    version: Version

    @property
    def snapshot(self) -> Path:
        return self.folder / "snapshots" / self.version.digest


def read_version(place: Path) -> Version:
    """Raises OSError, ValueError."""
    with place.open("rb") as file:
        digest, _, name = file.read(_MAX_VERSION).decode("ascii").partition("\n")
    if len(digest) != 64 or not _HEXADECIMAL.issuperset(digest):
        raise ValueError("no SHA-256")
    return Version(digest, name)


def registry_models(cache: Path) -> list[RegistryModel]:
    """Returns all models in the cache, in order of their names."""
    models = [model for kept in _all_kept(cache) if (model := _model(kept))]
    return sorted(models, key=lambda model: model.name)


def registry_model(cache: Path, name: str) -> RegistryModel | None:
    """Returns the model of that name, in any of its valid spellings."""
    try:
        wanted = spelled(reference(name))
    except ValueError:
        return None
    return next((model for model in registry_models(cache) if model.name == wanted), None)


def remove_registry_model(cache: Path, name: str) -> None:
    """Removes the model with that name in `registry_models`, and its earlier versions. Versions
    with other names stay. Raises OSError, also for paths that lead out of the cache."""
    everything = _all_kept(cache)
    for kept in everything:
        if kept.version.name == name:
            in_folder = [other for other in everything if other.folder == kept.folder]
            needed = {each.version.digest for each in in_folder if each.version.name != name}
            _remove(cache, kept, needed)


def _remove(cache: Path, kept: _Kept, needed: Set[str]) -> None:
    """Removes the complete and unneeded content of a folder, then the version."""
    folder = kept.folder
    places = [kept.place.parent, kept.snapshot, folder / "manifests", folder / "snapshots"]
    if not all(is_real(cache, place) for place in places):
        raise PermissionError(errno.EPERM, "it is not in the cache", str(folder))
    manifests = [Path(entry.path) for entry in os.scandir(folder / "manifests")]
    for manifest in manifests:
        snapshot = folder / "snapshots" / manifest.name
        if manifest.name not in needed and is_real(cache, snapshot):
            unlink(folder, list(files_below(snapshot)))
            manifest.unlink()
    kept.place.unlink()


def _all_kept(cache: Path) -> list[_Kept]:
    found = []
    for folder in folders_of(cache):
        try:
            places = sorted(Path(entry.path) for entry in os.scandir(folder / "versions"))
        except OSError:
            continue
        for place in places:
            try:
                version = read_version(place)
                named = spelled(reference(version.name)) == version.name
            except (OSError, ValueError):
                continue  # it is being written, or wasn't written by this program
            if named:
                found.append(_Kept(folder, place, version))
    return found


def _model(kept: _Kept) -> RegistryModel | None:
    try:
        files = {p.relative_to(kept.snapshot).as_posix(): p for p in files_below(kept.snapshot)}
        size = sum(path.stat().st_size for path in files.values())
    except OSError:
        return None
    for name, path in files.items():
        split = part(name)
        if is_model(name) and not (split and split.index != 1) and not first_missing(name, files):
            return RegistryModel(name=kept.version.name, path=str(path), size=size)
    return None
