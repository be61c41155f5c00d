"""The models in the cache of what came from registries of containers.

CACHE/models--<host>_<name>-<digest>/versions/<version>   the digest of the manifest that a tag
                                                          stood for last time, and its name
.../manifests/<digest>                                    of a model that is there
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
    """What a name in a registry stood for last time."""

    digest: str  # of the manifest
    name: str  # as `spelled`


class RegistryModel(msgspec.Struct, frozen=True, kw_only=True):
    """A complete model."""

    name: str
    path: str  # of the first part
    size: int  # bytes of all files


class _Kept(NamedTuple):
    folder: Path
    place: Path  # of the version
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
    """All models in the cache, in order of their names."""
    models = [model for kept in _all_kept(cache) if (model := _model(kept))]
    return sorted(models, key=lambda model: model.name)


def registry_model(cache: Path, name: str) -> RegistryModel | None:
    """The model of that name, which may be written in any way that a registry takes."""
    try:
        wanted = spelled(reference(name))
    except ValueError:
        return None
    return next((model for model in registry_models(cache) if model.name == wanted), None)


def remove_registry_model(cache: Path, name: str) -> None:
    """Remove the model that `registry_models` gives that name, and what the name stood for before.
    What another name stands for stays. Raises OSError, also for what leads out of the cache."""
    everything = _all_kept(cache)
    for kept in everything:
        if kept.version.name == name:
            in_folder = [other for other in everything if other.folder == kept.folder]
            needed = {each.version.digest for each in in_folder if each.version.name != name}
            _remove(cache, kept, needed)


def _remove(cache: Path, kept: _Kept, needed: Set[str]) -> None:
    """Remove what is complete in a folder and not needed, then the version."""
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
                continue  # being written now, or not by us
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
