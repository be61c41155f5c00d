"""The process that downloads a model.

    python -m specllama.engine.helpers.download.download_main   (started by the downloader)

It receives one message with the files to download, and sends reports of the progress. A separate
process can be ended at any time, whatever the network does. Its partial files are kept, and the
next download resumes them. The process ends when its stdin ends.
"""

import errno
import logging
import os
import shutil
import threading
from collections.abc import Callable, Sequence

import httpx2
from huggingface_hub import constants

from specllama.engine import system
from specllama.engine.catalog.locations import registry_cache, shown_size, url_cache
from specllama.engine.helpers.download.download import Item, obtain
from specllama.engine.helpers.download.download_jobs import (
    Fetched,
    FetchFailed,
    Notice,
    Report,
    Transfer,
    Wanted,
    wanted_decoder,
)
from specllama.engine.helpers.download.http_errors import DownloadError
from specllama.engine.helpers.download.hub_source import HubFiles, open_hub_model, open_hub_preset
from specllama.engine.helpers.download.oci_source import open_registry_model
from specllama.engine.helpers.download.url_source import UrlFile, open_url
from specllama.engine.wire.link import Link, take_over

REPORT_SECONDS = 0.1  # minimum time between two reports
SHA256 = 64  # hexadecimal digits


ServerLink = Link[Wanted, Report]


class TransferMeter:
    """Adds up the bytes of all files, and reports the sum from time to time."""

    def __init__(self, items: Sequence[Item], link: ServerLink) -> None:
        self._link = link
        self._there = [item.n_there() for item in items]
        sizes = [item.size for item in items]
        self._n_total = 0 if None in sizes else sum(size or 0 for size in sizes)
        self._digest = items[0].digest if items and len(items[0].digest) == SHA256 else ""
        self._reported = 0.0

    def of(self, index: int, item: Item) -> Callable[[int], None]:
        """Returns the callback that counts the bytes of item number `index`."""
        return lambda n_there: self._report(index, item, n_there)

    def _report(self, index: int, item: Item, n_there: int) -> None:
        self._there[index] = n_there
        n_done, now = sum(self._there), system.now()
        if now - self._reported >= REPORT_SECONDS or n_done == self._n_total:
            self._reported = now
            self._link.send(Transfer(item.name, n_done, self._n_total, self._digest))


def fetch(wanted: Wanted, link: ServerLink) -> Fetched:
    """Downloads all files of `wanted`. Raises DownloadError, and OSError of the file system."""
    if not wanted.token.isascii() or not wanted.token.isprintable() or " " in wanted.token:
        raise DownloadError("--hf-token is not a token: it has spaces or other invalid characters")
    offline = wanted.offline or constants.is_offline_mode()
    timeout = httpx2.Timeout(constants.HF_HUB_DOWNLOAD_TIMEOUT)
    with httpx2.Client(follow_redirects=True, timeout=timeout) as client:

        def notify(text: str) -> None:
            link.send(Notice(text))

        def open_one(url: str) -> UrlFile:
            return open_url(
                client,
                url,
                url_cache(os.environ),
                token=wanted.token,
                offline=offline,
                notify=notify,
            )

        hub: HubFiles | None = None
        of_draft: HubFiles | None = None
        items: list[Item] = []
        model, projector, preset, draft = "", "", "", ""
        if wanted.preset:
            hub = open_hub_preset(
                wanted.repository, token=wanted.token, offline=offline, notify=notify
            )
            if hub is not None:
                items += hub.items
                preset = str(hub.first)
        elif wanted.repository:
            hub = open_hub_model(
                wanted.repository,
                file=wanted.file,
                projector=wanted.projector,
                token=wanted.token,
                offline=offline,
                notify=notify,
            )
            items += hub.items
            model, projector = str(hub.first), str(hub.projector or "")
        elif wanted.image:
            hub = open_registry_model(
                client, wanted.image, registry_cache(os.environ), offline=offline, notify=notify
            )
            items += hub.items
            model = str(hub.first)
        elif wanted.url:
            of_model = open_one(wanted.url)
            items += of_model.items
            model = str(of_model.path)
        if wanted.projector_url:
            of_projector = open_one(wanted.projector_url)
            items += of_projector.items
            projector = str(of_projector.path)
        if wanted.draft_repository:
            of_draft = open_hub_model(
                wanted.draft_repository,
                file=wanted.draft_file,
                projector=False,
                token=wanted.token,
                offline=offline,
                notify=notify,
            )
            items += of_draft.items
            draft = str(of_draft.first)
        _obtain_all(client, items, link)
    for each in (hub, of_draft):
        if each is not None:
            each.finish()
    return Fetched(model, projector, preset, draft)


def _obtain_all(client: httpx2.Client, items: Sequence[Item], link: ServerLink) -> None:
    check_space(items)
    meter = TransferMeter(items, link)
    for index, item in enumerate(items):
        report = meter.of(index, item)
        obtain(client, item, report)
        report(item.n_there())


def check_space(items: Sequence[Item]) -> None:
    """Raises DownloadError, before the download, if the disk is too small for the files. (All files
    of a model have the same file system.)"""
    n_needed = sum(max((item.size or 0) - item.n_there(), 0) for item in items)
    if n_needed == 0:
        return
    folder = items[0].target.parent
    existing = next(path for path in (folder, *folder.parents) if path.exists())
    n_free = shutil.disk_usage(existing).free
    if n_needed > n_free:
        raise DownloadError(
            f"the model needs {shown_size(n_needed)} more in {folder}, where {shown_size(n_free)} "
            "are free: set LLAMA_CACHE to a directory with more space"
        )


def explain(error: OSError) -> str:
    """Returns an error of the file system in one line for the user."""
    where = f" ({error.filename})" if error.filename else ""
    match error.errno:
        case errno.ENOSPC | errno.EDQUOT:
            return "the disk is full: make room, or set LLAMA_CACHE to a directory on another one"
        case errno.EACCES | errno.EPERM | errno.EROFS:
            return (
                f"the cache can't be written to{where}: check its permissions, or set LLAMA_CACHE "
                "to another directory"
            )
    return f"the cache can't be used{where}: {error.strerror or error}"


def _end_with(link: ServerLink) -> None:
    """Ends the process when the server has ended, or doesn't need the model any more."""
    while link.receive():
        pass
    os._exit(1)


def main() -> int:
    link: ServerLink = take_over(wanted_decoder)
    logging.basicConfig(level=logging.WARNING, format="%(name)s: %(message)s")
    # This process reports failures itself.
    logging.getLogger("huggingface_hub").setLevel(logging.CRITICAL)
    match link.receive():
        case [Wanted() as wanted]:
            pass
        case _:
            return 2
    threading.Thread(target=_end_with, args=(link,), daemon=True).start()
    try:
        link.send(fetch(wanted, link))
    except BrokenPipeError:
        return 1  # the server has ended
    except DownloadError as error:
        link.send(FetchFailed(" ".join(str(error).split())))
        return 1
    except OSError as error:
        link.send(FetchFailed(explain(error)))
        return 1
    return 0


if __name__ == "__main__":
    system.leave(main())  # don't wait for the thread that reads stdin
