"""Models of repositories on the Hugging Face Hub: which files to download, and their paths."""

import logging
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

import httpx2
from huggingface_hub import HfApi, constants, hf_hub_url
from huggingface_hub.errors import HfHubHTTPError, HFValidationError
from huggingface_hub.utils import build_hf_headers, validate_repo_id

from specllama.engine.catalog.locations import shown_size
from specllama.engine.formats.gguf_names import (
    MAX_PRESET,
    PRESET,
    is_gguf,
    parts_of,
    pick_model,
    pick_projector,
    quants,
)
from specllama.engine.helpers.download.download import MAGIC, Item, blob_item, patiently
from specllama.engine.helpers.download.http_errors import (
    DownloadError,
    check_status,
    network_failure,
)
from specllama.engine.helpers.download.hub_layout import (
    RepositoryCache,
    is_commit,
    is_digest,
    is_inside,
)

log = logging.getLogger("specllama.engine.catalog")

N_SHOWN = 12  # names in a message

Notify = Callable[[str], None]


class HubFiles(NamedTuple):
    """Files of a repository, and their places in the cache."""

    items: list[Item]
    first: Path  # the (first part of the) model, or the preset file
    projector: Path | None
    finish: Callable[[], None]  # called when all files exist


class _File(NamedTuple):
    """The Hub's description of a file."""

    name: str
    size: int  # bytes
    digest: str


class _Snapshot(NamedTuple):
    commit: str
    files: dict[str, _File]


def split_quant(repository: str) -> tuple[str, str]:
    """Returns `user/repo[:quant]` as (user/repo, quant or ""). Raises DownloadError."""
    name, _, quant = repository.partition(":")
    try:
        validate_repo_id(name)
    except HFValidationError:
        name = ""
    if name.count("/") != 1:
        raise DownloadError(f"{repository!r} does not name a repository: user/repo[:quant]")
    return name, quant


def open_hub_model(
    repository: str, *, file: str, projector: bool, token: str, offline: bool, notify: Notify
) -> HubFiles:
    """Returns the files of a model of `repository` (user/repo[:quant]): the model of its file
    `file`, if given.

    With `projector`, they include the multimodal projector, if there is one. If the Hub isn't
    reachable, an earlier download is used, and `notify` is called. Raises DownloadError.
    """
    name, quant = split_quant(repository)
    cache = RepositoryCache(Path(constants.HF_HUB_CACHE), name)

    def cached() -> HubFiles:
        where = f"the cache of {name} in {constants.HF_HUB_CACHE}"
        chosen = _choose(cache.names(), quant, file, projector, where)
        return _from_cache(cache, *chosen)

    if offline:
        try:
            return cached()
        except DownloadError as error:
            raise DownloadError(f"{error} (downloads are disabled by offline mode)") from None
    found = None
    with suppress(DownloadError):
        found = cached()
    snapshot = _ask(name, token, found, notify)
    if isinstance(snapshot, HubFiles):
        return snapshot
    names = list(snapshot.files)
    chosen = _choose(names, quant, file, projector, f"the repository {name}")
    return _from_hub(cache, name, snapshot, *chosen, headers=_headers(token))


def open_hub_preset(
    repository: str, *, token: str, offline: bool, notify: Notify
) -> HubFiles | None:
    """Returns the preset file of `repository`, regardless of the quantization; None if it has none.

    If the Hub isn't reachable, an earlier download is used, and `notify` is called. Raises
    DownloadError.
    """
    name, _ = split_quant(repository)
    cache = RepositoryCache(Path(constants.HF_HUB_CACHE), name)
    found = _from_cache(cache, [PRESET], None) if PRESET in cache.names() else None
    if offline:
        return found
    snapshot = _ask(name, token, found, notify)
    if isinstance(snapshot, HubFiles):
        return snapshot
    file = snapshot.files.get(PRESET)
    if file is None:
        return None
    if file.size > MAX_PRESET:
        raise DownloadError(
            f"the {PRESET} of {name} has {shown_size(file.size)}, more than the limit of "
            f"{shown_size(MAX_PRESET)}"
        )
    return _from_hub(cache, name, snapshot, [PRESET], None, headers=_headers(token))


def _ask(
    repository: str, token: str, found: HubFiles | None, notify: Notify
) -> _Snapshot | HubFiles:
    """Returns the Hub's description of the repository; `found`, the files in the cache, if the Hub
    isn't reachable. Raises DownloadError."""
    try:
        # Don't retry if the cache has the files.
        if found is not None:
            return _ask_once(repository, token)
        return patiently(lambda: _ask_once(repository, token))
    except DownloadError as error:
        if found is None:
            raise
        notify(f"{error}; the files in the cache are used")
        return found


def _choose(
    files: Sequence[str], quant: str, file: str, projector: bool, where: str
) -> tuple[list[str], str | None]:
    """Returns the files of the model, the first part first, and its projector. Raises
    DownloadError."""
    models = [name for name in files if is_gguf(name)]
    if not models:
        raise DownloadError(f"{where} has no GGUF files")
    if file:
        first = file if file in files else None
        missing = f"{where} has no file {file!r}; there are: {_listed(models)}"
    else:
        first = pick_model(files, quant)
        wanted = f"model of quantization {quant!r}" if quant else "model"
        missing = f"{where} has no {wanted}; there are: {_listed(quants(files) or models)}"
    if first is None:
        raise DownloadError(missing)
    parts = parts_of(first)
    for part in parts:
        if part not in files:
            raise DownloadError(f"{where} lacks a part of the model: {part}")
    return parts, pick_projector(files, first) if projector else None


def _listed(names: Sequence[str]) -> str:
    more = f" and {len(names) - N_SHOWN} more" if len(names) > N_SHOWN else ""
    return ", ".join(names[:N_SHOWN]) + more


def _from_cache(cache: RepositoryCache, parts: list[str], projector: str | None) -> HubFiles:
    commit = cache.commit() or ""
    return HubFiles(
        [],
        cache.file(commit, parts[0]),
        cache.file(commit, projector) if projector else None,
        lambda: None,
    )


def _from_hub(
    cache: RepositoryCache,
    repository: str,
    snapshot: _Snapshot,
    parts: list[str],
    projector: str | None,
    *,
    headers: dict[str, str],
) -> HubFiles:
    commit = snapshot.commit

    def item(name: str) -> Item:
        file = snapshot.files[name]
        return blob_item(
            cache,
            commit,
            name,
            url=hf_hub_url(repository, name, revision=commit),
            size=file.size,
            digest=file.digest,
            magic=MAGIC if is_gguf(name) else b"",
            headers=headers,
        )

    def finish() -> None:
        if cache.commit() != commit:
            with suppress(OSError):  # for offline mode only; the cache may be read-only
                cache.set_commit(commit)

    return HubFiles(
        [item(name) for name in [*parts, *filter(None, [projector])]],
        cache.file(commit, parts[0]),
        cache.file(commit, projector) if projector else None,
        finish,
    )


def _headers(token: str) -> dict[str, str]:
    headers: dict[str, str] = build_hf_headers(token=token or None)
    return headers


def _ask_once(repository: str, token: str) -> _Snapshot:
    """Returns the Hub's description of the repository. Raises DownloadError."""
    try:
        info = HfApi().model_info(
            repository,
            files_metadata=True,
            timeout=constants.HF_HUB_DOWNLOAD_TIMEOUT,
            token=token or None,
        )
        files = [
            _File(
                file.rfilename, file.size or 0, file.lfs.sha256 if file.lfs else file.blob_id or ""
            )
            for file in info.siblings or []
        ]
        commit = str(info.sha)
    except HfHubHTTPError as error:
        check_status(error.response, repository)
        raise DownloadError(f"the Hub's answer is invalid: {_first_line(error)}") from error
    except (httpx2.HTTPError, httpx2.InvalidURL) as error:
        raise network_failure(error, constants.ENDPOINT, repository) from error
    except (ValueError, TypeError, KeyError, AttributeError) as error:
        raise _nonsense(repository) from error
    if not is_commit(commit):
        raise _nonsense(repository)
    return _Snapshot(commit, {file.name: file for file in files if _is_sound(file)})


def _nonsense(repository: str) -> DownloadError:
    return DownloadError(
        f"{constants.ENDPOINT} does not describe {repository} like a Hugging Face Hub: check "
        "HF_ENDPOINT"
    )


def _is_sound(file: _File) -> bool:
    """Returns whether the file can be stored in the cache; the Hub may be hostile."""
    sound = (
        isinstance(file.name, str)
        and isinstance(file.size, int)
        and isinstance(file.digest, str)
        and is_inside(file.name)
        and is_digest(file.digest)
        and file.size > 0
    )
    if not sound:
        log.debug("a file of the repository is ignored: %r", file)
    return sound


def _first_line(error: Exception) -> str:
    return (str(error).strip().splitlines() or [type(error).__name__])[0]
