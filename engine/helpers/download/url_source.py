"""Models at URLs: which files to download, and their paths."""

import hashlib
import re
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple
from urllib.parse import unquote

import httpx2
from huggingface_hub import constants
from huggingface_hub.utils import build_hf_headers

from specllama.engine.formats.gguf_names import part
from specllama.engine.helpers.download.download import MAGIC, Item, patiently
from specllama.engine.helpers.download.http_errors import (
    NETWORK_FAILURES,
    DownloadError,
    check_status,
    network_failure,
)

_ODD = re.compile(r"[^A-Za-z0-9_.+-]")
_MAX_NAME = 180  # characters; file systems permit 255, including suffixes

Notify = Callable[[str], None]


class UrlFile(NamedTuple):
    """The files at a URL, and their places in the cache."""

    items: list[Item]  # the parts in their order
    path: Path  # path of the first part


class _Content(NamedTuple):
    """A server's description of a file."""

    size: int | None  # bytes
    validator: str  # changes with the content; "" if there is no such value


def open_url(
    client: httpx2.Client, url: str, cache: Path, *, token: str, offline: bool, notify: Notify
) -> UrlFile:
    """Returns the files of a model (or of another GGUF file) at an http(s) address: all parts, if
    it is part of a split model.

    Asks the server for the sizes. If the server isn't reachable, an earlier download is used, and
    `notify` is called. Raises DownloadError.
    """
    items = []
    for address in _parts(_parse(url)):
        target = _place(address, cache)
        headers = _headers(address, token)
        if offline:
            if not target.exists():
                raise DownloadError(
                    f"{_shown(address)} has not been downloaded (it would be {target}); downloads "
                    "are disabled by offline mode"
                )
            content = None
        else:
            content = _ask(client, address, headers, target, notify)
        items.append(_item(address, target, headers, content))
    return UrlFile(items, items[0].target)


def _parse(url: str) -> httpx2.URL:
    try:
        address = httpx2.URL(url)
    except httpx2.InvalidURL as error:
        raise DownloadError(f"{url!r} is not a URL: {error}") from None
    if address.scheme not in ("http", "https") or not address.host:
        raise DownloadError(f"{url!r} is not an http or https URL")
    if not _name(address):
        raise DownloadError(f"{_shown(address)} does not name a file")
    return address


def _parts(address: httpx2.URL) -> list[httpx2.URL]:
    split = part(address.path)
    if split is None:
        return [address]
    return [address.copy_with(path=path) for path in split.file_names()]


def _name(address: httpx2.URL) -> str:
    """Returns the name of the file, valid on every file system."""
    last = unquote(address.path.rsplit("/", 1)[-1])
    return _ODD.sub("_", last).strip(".")[-_MAX_NAME:]


def _place(address: httpx2.URL, cache: Path) -> Path:
    """Returns the path of the file. Each remote directory has its own local one, as the same
    name may occur in several. The query doesn't count, as it may be a signature that changes
    each time."""
    directory = address.path.rsplit("/", 1)[0]
    origin = f"{address.scheme}://{address.host}:{address.port}{directory}"
    digest = hashlib.sha256(origin.encode()).hexdigest()[:10]
    return cache / f"{_ODD.sub('_', address.host)[:60]}-{digest}" / _name(address)


def _headers(address: httpx2.URL, token: str) -> dict[str, str]:
    """Returns the headers of a request. Only the Hub gets the Hub's token."""
    hub = httpx2.URL(constants.ENDPOINT)
    if (address.scheme, address.host, address.port) != (hub.scheme, hub.host, hub.port):
        return {}
    headers: dict[str, str] = build_hf_headers(token=token or None)
    return headers


def _shown(address: httpx2.URL) -> str:
    """Returns the address without parts that may be secret."""
    return str(address.copy_with(userinfo=b"", query=None, fragment=None))


def _ask(
    client: httpx2.Client,
    address: httpx2.URL,
    headers: dict[str, str],
    target: Path,
    notify: Notify,
) -> _Content | None:
    """Returns the server's description; None if the file of an earlier download is to be used."""
    if not target.exists():
        return patiently(lambda: _ask_once(client, address, headers))
    try:
        # Don't retry if the cache has the file.
        return _ask_once(client, address, headers)
    except DownloadError as error:
        notify(f"{error}; the earlier download is used")
        return None


def _ask_once(client: httpx2.Client, address: httpx2.URL, headers: dict[str, str]) -> _Content:
    """Returns the server's description. Requests only the first bytes, with GET, because signed
    addresses are often not valid for HEAD."""
    shown = _shown(address)
    asked = {**headers, "Range": f"bytes=0-{len(MAGIC) - 1}", "Accept-Encoding": "identity"}
    try:
        with client.stream("GET", address, headers=asked) as response:
            check_status(response, shown)
            if response.status_code == 206:
                length = response.headers.get("Content-Range", "").rpartition("/")[2]
            else:
                length = response.headers.get("Content-Length", "")
    except NETWORK_FAILURES as error:
        raise network_failure(error, str(address), shown) from error
    size = int(length) if length.isascii() and length.isdigit() and len(length) < 19 else None
    validator = response.headers.get("ETag") or response.headers.get("Last-Modified") or ""
    return _Content(size, validator)


def _item(
    address: httpx2.URL, target: Path, headers: dict[str, str], content: _Content | None
) -> Item:
    name = target.name
    size, validator = content or (None, "")
    # The name contains the digest of the content that the partial file belongs to.
    digest = hashlib.sha256(validator.encode()).hexdigest()[:12]
    partial = target.with_name(f"{name}.{digest}.part")
    note = target.with_name(f"{name}.etag")

    def is_done() -> bool:
        if content is None or not target.exists():
            return target.exists()
        if validator:
            return _read(note) == validator
        return size is None or target.stat().st_size == size

    def on_arrival() -> None:
        note.write_text(validator, "utf-8")
        for old in target.parent.glob(f"{name}.*.part"):
            old.unlink(missing_ok=True)

    return Item(
        name=name,
        url=str(address),
        target=target,
        partial=partial,
        lock=target.with_name(f"{name}.lock"),
        is_done=is_done,
        is_complete=lambda: False,  # only `is_done` determines that
        on_arrival=on_arrival,
        size=size,
        resumable=validator != "",
        headers=headers,
    )


def _read(path: Path) -> str:
    with suppress(OSError, UnicodeDecodeError):
        return path.read_text("utf-8")
    return ""
