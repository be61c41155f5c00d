"""Files that the cache of a repository keeps by their digests."""

from collections.abc import Callable
from pathlib import Path

import httpx2

from specllama.engine.helpers.download.download import MAGIC, Item
from specllama.engine.helpers.download.http_errors import check_status
from specllama.engine.helpers.download.hub_layout import RepositoryCache


def blob_item(
    cache: RepositoryCache,
    commit: str,
    name: str,
    *,
    url: str,
    size: int,
    digest: str,
    headers: dict[str, str],
    magic: bytes = MAGIC,
    check: Callable[[httpx2.Response, str], None] = check_status,
) -> Item:
    """The file `name` of `commit`, which becomes a link to a blob."""
    path, blob = cache.file(commit, name), cache.blob(digest)

    def link() -> None:
        cache.link(digest, commit, name)

    return Item(
        name=name,
        url=url,
        target=blob,
        partial=cache.partial(digest),
        lock=cache.lock(digest),
        is_done=lambda: has_size(path, size),
        is_complete=lambda: has_size(blob, size),
        on_arrival=link,
        size=size,
        digest=digest,
        magic=magic,
        headers=headers,
        check=check,
    )


def has_size(path: Path, size: int) -> bool:
    try:
        return path.stat().st_size == size
    except OSError:
        return False
