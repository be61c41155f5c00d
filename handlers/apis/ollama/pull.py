"""Downloads in Ollama's form: objects with the progress, and a last one with the result."""

import asyncio
from collections.abc import AsyncGenerator
from contextlib import aclosing, suppress
from typing import Final

from specllama.engine.catalog.entry import wants_fetch
from specllama.engine.errors import EngineError, unavailable
from specllama.engine.helpers.download.downloader import FetchError, Transfer, fetch
from specllama.engine.options import OptionError, Options, replaced, text_values
from specllama.handlers.http import schemas
from specllama.handlers.running.resolve_model import check_allowed, not_found
from specllama.handlers.running.runtime import Runtime

SUCCESS: Final = "success"
"""The status at the end."""
HUBS: Final = ("hf.co/", "huggingface.co/", "https://hf.co/", "https://huggingface.co/")
"""The prefixes of a repository's name in requests of Ollama's clients."""
LATEST: Final = ":latest"
"""The suffix that Ollama's clients add to a name without a tag."""


def wanted(current: Runtime, name: str) -> Options | None:
    """Returns the options of the download for the model `name`; None if the model is here.

    A router looks for the name even if it has a single model, because the name may be that of a
    model to download. Raises EngineError (not_found_error) for a name that is neither a model of
    the server nor a repository, and permission_error for a model that the request's API key doesn't
    allow.
    """
    catalog = current.catalog
    plain = _without_hub(name)
    if name and catalog.router:
        entry = catalog.named(plain) or catalog.named(plain.removesuffix(LATEST))
    else:
        entry = catalog.find(name)
    if entry is None:
        check_allowed(plain)
        return replaced(current.options.model, hf_repo=_repository(current, plain))
    check_allowed(entry.name, *entry.aliases)
    options = current.pool.options(entry)
    return options if wants_fetch(options) else None


def _without_hub(name: str) -> str:
    for hub in HUBS:
        name = name.removeprefix(hub)
    return name


def _repository(current: Runtime, name: str) -> str:
    with suppress(OptionError):
        return text_values.hf_repo(name.removesuffix(LATEST))
    unknown = not_found(current, name)
    message = f"{unknown}; to download a model, name a repository of the hub: hf.co/user/repo:quant"
    raise EngineError.of("not_found_error", message)


async def pull(
    current: Runtime, options: Options | None
) -> AsyncGenerator[schemas.OllamaPullProgress, None]:
    """Downloads the model of `options`, and yields objects with the progress. Then a router reloads
    its catalog, which lists the new model.

    Closing the iterator ends the download, which the next call resumes. Raises EngineError:
    unavailable_error if the download fails, server_error if the catalog can't be reloaded.
    """
    yield {"status": "pulling manifest"}
    if options is not None:
        async with aclosing(_transfers(options)) as transfers:
            async for transfer in transfers:
                yield _progress(transfer)
        if current.catalog.router:
            await current.inventory.reload()
    yield {"status": SUCCESS}


async def _transfers(options: Options) -> AsyncGenerator[Transfer, None]:
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


def _progress(transfer: Transfer) -> schemas.OllamaPullProgress:
    digest = transfer.digest
    made: schemas.OllamaPullProgress = {"status": f"pulling {digest[:12] or transfer.file}"}
    if digest:
        made["digest"] = f"sha256:{digest}"
    if transfer.n_total:
        made["total"], made["completed"] = transfer.n_total, transfer.n_done
    return made
