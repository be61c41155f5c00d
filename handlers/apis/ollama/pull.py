"""Downloads in Ollama's form: objects that tell the progress, and a last one."""

import asyncio
from collections.abc import AsyncGenerator
from contextlib import aclosing, suppress
from typing import Final

from specllama.engine.catalog.entry import wants_fetch
from specllama.engine.errors import EngineError, unavailable
from specllama.engine.helpers.download.downloader import FetchError, Transfer, fetch
from specllama.engine.options import OptionError, Options, replaced, text_values
from specllama.handlers.http import schemas
from specllama.handlers.running.resolve_model import not_found
from specllama.handlers.running.runtime import Runtime

SUCCESS: Final = "success"
"""The status at the end."""
HUBS: Final = ("hf.co/", "huggingface.co/", "https://hf.co/", "https://huggingface.co/")
"""What Ollama's clients put before the name of a repository."""
LATEST: Final = ":latest"
"""What they put behind a name without a tag."""


def wanted(current: Runtime, name: str) -> Options | None:
    """What to download for the model `name`; None for one that is here.

    A router minds the name even while it has a single model: another one may be wanted. Raises
    EngineError (not_found_error) for one that it doesn't have and that is no repository's either.
    """
    catalog = current.catalog
    plain = _without_hub(name)
    if name and catalog.router:
        entry = catalog.named(plain) or catalog.named(plain.removesuffix(LATEST))
    else:
        entry = catalog.find(name)
    if entry is None:
        return replaced(current.options.model, hf_repo=_repository(current, plain))
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
    message = f"{unknown}; to download one, name a repository of the hub: hf.co/user/repo:quant"
    raise EngineError.of("not_found_error", message)


async def pull(
    current: Runtime, options: Options | None
) -> AsyncGenerator[schemas.OllamaPullProgress, None]:
    """The objects that a client reads while the model of `options` is downloaded. At the end a
    router looks for models again, and has it.

    Ending the iterator ends the download, which the next one resumes. Raises EngineError:
    unavailable_error, or server_error if the models can't be read again.
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
    told: schemas.OllamaPullProgress = {"status": f"pulling {digest[:12] or transfer.file}"}
    if digest:
        told["digest"] = f"sha256:{digest}"
    if transfer.n_total:
        told["total"], told["completed"] = transfer.n_total, transfer.n_done
    return told
