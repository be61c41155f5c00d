"""Downloads in Ollama's form: objects that tell the progress, and a last one."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import suppress
from typing import Any, Final

from engine.catalog.download.parent import FetchError, Transfer, fetch, wants_fetch
from engine.errors import EngineError, ErrorInfo, unavailable
from engine.options import OptionError, Options, replaced, values
from handlers.running.runtime import Runtime
from handlers.running.served import find

SUCCESS: Final = {"status": "success"}
HUBS: Final = ("hf.co/", "huggingface.co/", "https://hf.co/", "https://huggingface.co/")
"""What Ollama's clients put before the name of a repository."""


def wanted(current: Runtime, name: str) -> Options | None:
    """What to download for the model `name`; None for one that is here.

    Raises EngineError (not_found_error) for a name that a router's catalog doesn't have and that
    is no repository's either.
    """
    try:
        entry = find(current, name)
    except EngineError as unknown:
        return _of_repository(current.options.model, name, unknown.info.message)
    options = current.pool.options(entry.name)
    return options if wants_fetch(options) else None


def _of_repository(options: Options, name: str, unknown: str) -> Options:
    for hub in HUBS:
        name = name.removeprefix(hub)
    with suppress(OptionError):
        repository = values.hf_repo(name.removesuffix(":latest"))
        return replaced(options, hf_repo=repository)
    message = f"{unknown}; to download one, name a repository of the hub: hf.co/user/repo:quant"
    raise EngineError(ErrorInfo("not_found_error", message))


async def pull(options: Options | None) -> AsyncIterator[dict[str, Any]]:
    """The objects that a client reads while the model of `options` is downloaded.

    Ending the iterator ends the download, which the next one resumes. Raises EngineError
    (unavailable_error).
    """
    yield {"status": "pulling manifest"}
    if options is not None:
        async for transfer in _transfers(options):
            yield _progress(transfer)
    yield SUCCESS


async def _transfers(options: Options) -> AsyncIterator[Transfer]:
    queue: asyncio.Queue[Transfer | None] = asyncio.Queue()
    fetching = asyncio.create_task(fetch(options, queue.put_nowait), name="pull")
    fetching.add_done_callback(lambda _: queue.put_nowait(None))
    try:
        while (transfer := await queue.get()) is not None:
            yield transfer
        await fetching
    except FetchError as error:
        raise unavailable(str(error)) from error
    finally:
        fetching.cancel()
        await asyncio.wait({fetching})


def _progress(transfer: Transfer) -> dict[str, Any]:
    digest = transfer.digest
    told: dict[str, Any] = {"status": f"pulling {digest[:12] or transfer.file}"}
    if digest:
        told["digest"] = f"sha256:{digest}"
    if transfer.n_total:
        told |= {"total": transfer.n_total, "completed": transfer.n_done}
    return told
