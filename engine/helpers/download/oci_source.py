"""Models of container registries: which files to download, and their paths.

They are stored in folders with the layout of the Hub's cache, by the manifest; see
`engine.catalog.registry_cache`.
"""

import hashlib
import os
import re
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Final, NamedTuple

import httpx2

from specllama.engine.catalog.registry_cache import read_version
from specllama.engine.formats.oci_names import Reference, reference, spelled
from specllama.engine.helpers.download.download import blob_item, has_size, patiently
from specllama.engine.helpers.download.http_errors import DownloadError
from specllama.engine.helpers.download.hub_layout import RepositoryCache
from specllama.engine.helpers.download.hub_source import HubFiles
from specllama.engine.helpers.download.oci_registry import (
    MAX_MANIFEST,
    File,
    Registry,
    digest_of,
    model_files,
    read_manifest,
)

MAX_MANIFESTS: Final = 16  # manifests of an index that are examined

_ODD = re.compile(r"[^A-Za-z0-9.-]")

Notify = Callable[[str], None]


class _Model(NamedTuple):
    """A registry's description of a model."""

    manifest: bytes
    files: list[File]

    @property
    def digest(self) -> str:
        return _sha256(self.manifest)


class _ModelCache(RepositoryCache):
    """The part of the cache that belongs to one repository of a registry."""

    def __init__(self, cache: Path, named: Reference) -> None:
        # Two repositories may have the same `shown`, so the digest distinguishes them.
        place = f"{named.host}/{named.repository}"
        shown = _ODD.sub("_", place)[:100]
        super().__init__(cache, f"{shown}-{_sha256(place.encode())[:10]}")

    def model(self, named: Reference) -> _Model | None:
        """Returns the last downloaded model; None if its files don't exist any more."""
        with suppress(OSError, ValueError, DownloadError):
            digest = read_version(self._version(named)).digest
            with self._manifest(digest).open("rb") as file:
                manifest = file.read(MAX_MANIFEST + 1)
            files = model_files(read_manifest(manifest, named.repository), named.repository)
            model = _Model(manifest, files)
            if model.digest == digest and files and self._has(model):
                return model
        return None

    def is_listed(self, named: Reference) -> bool:
        """Returns whether the stored version contains the name."""
        with suppress(OSError, ValueError):
            return read_version(self._version(named)).name == spelled(named)
        return False

    def remember(self, named: Reference, model: _Model) -> None:
        """Raises OSError."""
        _write(self._manifest(model.digest), model.manifest)
        _write(self._version(named), f"{model.digest}\n{spelled(named)}".encode())

    def _has(self, model: _Model) -> bool:
        return all(has_size(self.file(model.digest, f.name), f.size) for f in model.files)

    def _manifest(self, digest: str) -> Path:
        return self._folder / "manifests" / digest

    def _version(self, named: Reference) -> Path:
        # Tags are case-sensitive, which some file systems aren't.
        version = named.version
        name = f"{_ODD.sub('_', version)}-{_sha256(version.encode())[:10]}"
        return self._folder / "versions" / name


def open_registry_model(
    client: httpx2.Client, name: str, cache: Path, *, offline: bool, notify: Notify
) -> HubFiles:
    """Returns the files of a model in a registry: `[HOST/]NAME[:TAG]`, or with a digest.

    Asks the registry for the manifest of the tag. If the registry isn't reachable, an earlier
    download is used, and `notify` is called. Raises DownloadError.
    """
    try:
        named = reference(name)
    except ValueError as error:
        raise DownloadError(f"{name!a} is not a name in a registry: {error}") from None
    there = _ModelCache(cache, named)
    found = there.model(named)
    if found is None and offline:
        raise DownloadError(
            f"{name} has not been downloaded; downloads are disabled by offline mode"
        )
    registry = Registry(client, named)
    if found is None:
        found = patiently(lambda: _ask(registry, named, name))
    elif not offline and not named.digest:  # a digest never changes its meaning
        try:
            # Don't retry if the cache has the files.
            found = _ask(registry, named, name)
        except DownloadError as error:
            notify(f"{error}; the earlier download is used")
    return _files(there, registry, named, found)


def _files(cache: _ModelCache, registry: Registry, named: Reference, model: _Model) -> HubFiles:
    items = [
        blob_item(
            cache,
            model.digest,
            file.name,
            url=registry.blob_url(file.digest),
            size=file.size,
            digest=file.digest,
            headers=registry.headers,
            check=registry.check,
        )
        for file in model.files
    ]

    def finish() -> None:
        if cache.model(named) != model or not cache.is_listed(named):
            with suppress(OSError):  # the cache may be read-only
                cache.remember(named, model)

    return HubFiles(items, cache.file(model.digest, model.files[0].name), None, finish)


def _ask(registry: Registry, named: Reference, what: str) -> _Model:
    """Returns the registry's description of the model. Raises DownloadError."""
    data = _fetch(registry, named.version, named.digest, what)
    manifest = read_manifest(data, what)
    if files := model_files(manifest, what):
        return _Model(data, files)
    for each in (manifest.manifests or [])[:MAX_MANIFESTS]:
        digest = digest_of(each, what)
        data = _fetch(registry, f"sha256:{digest}", digest, what)
        if files := model_files(read_manifest(data, what), what):
            return _Model(data, files)
    raise DownloadError(f"{what} has no GGUF model: check the name")


def _fetch(registry: Registry, version: str, digest: str, what: str) -> bytes:
    data = registry.manifest(version, what)
    if digest and _sha256(data) != digest:
        raise DownloadError(f"the registry sent another manifest of {what} than requested")
    return data


def _sha256(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


def _write(path: Path, data: bytes) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    new = path.with_name(f"{path.name}.{os.getpid()}.new")
    new.write_bytes(data)
    new.replace(path)
