"""Downloads the model that options name, in a separate process."""

import logging
import os
from collections.abc import Callable, Mapping

from specllama.engine.catalog.entry import wants_model, wants_projector
from specllama.engine.catalog.hub_cache import cached_models, named
from specllama.engine.catalog.locations import hub_cache, hub_environment
from specllama.engine.catalog.presets import RemotePreset
from specllama.engine.formats.gguf_names import PRESET
from specllama.engine.helpers.download.download_jobs import (
    Fetched,
    FetchFailed,
    Notice,
    Transfer,
    Wanted,
    report_decoder,
)
from specllama.engine.helpers.download.hub_layout import RepositoryCache
from specllama.engine.options import OptionError, Options, replaced
from specllama.engine.wire.commands import download_command, environment
from specllama.engine.wire.framing import FrameError, frame
from specllama.engine.wire.process import Child

__all__ = ["FetchError", "Transfer", "fetch", "fetch_preset", "find_remote_preset"]

log = logging.getLogger("specllama.engine.catalog")

STALL_SECONDS = (
    "30"  # s without a byte, after which the connection is closed and another one opened
)
MAX_REPORT = 1 << 20  # bytes
ENDING_SECONDS = 5.0  # s for the process to end after its work


class FetchError(Exception):
    """The model can't be downloaded. The message is one line for the user."""


async def fetch(options: Options, on_progress: Callable[[Transfer], None]) -> Options:
    """Downloads the model, the projector and the draft model that `options` name by repository or
    URL, unless they are in the cache.

    Returns the options with the paths of the files in `model` and `model_draft` (of the first part)
    and `mmproj`. `on_progress` is called at most ten times a second. Cancelling ends the download
    at once; the next download of the same files resumes it. Raises FetchError.
    """
    found = await _run(_wanted(options), on_progress)
    return replaced(
        options,
        model=found.model or options.engine.model.model,
        mmproj=found.projector or options.engine.media.mmproj,
        model_draft=found.draft or options.engine.draft.model_draft,
    )


async def fetch_preset(options: Options) -> str:
    """Returns the path of the preset file of the repository that `options` name, downloaded like a
    model; "" if the repository has none. Raises FetchError."""
    source = options.source
    wanted = Wanted(
        repository=source.hf_repo, token=source.hf_token, offline=source.offline, preset=True
    )
    return (await _run(wanted, lambda _: None)).preset


def _wanted(options: Options) -> Wanted:
    repository = options.source.hf_repo if wants_model(options) else ""
    named = bool(options.engine.media.mmproj or options.source.mmproj_url)
    fetches_draft = options.fetches_draft()
    return Wanted(
        repository=repository,
        file=options.source.hf_file if repository else "",
        token=options.source.hf_token,
        url=options.source.model_url if wants_model(options) and not repository else "",
        image=options.source.docker_repo if wants_model(options) and not repository else "",
        projector=options.source.mmproj_auto and not named,
        projector_url=options.source.mmproj_url if wants_projector(options) else "",
        draft_repository=options.source.hf_repo_draft if fetches_draft else "",
        draft_file=options.engine.draft.model_draft if fetches_draft else "",
        offline=options.source.offline,
    )


async def _run(wanted: Wanted, on_progress: Callable[[Transfer], None]) -> Fetched:
    try:
        first = frame(wanted)
    except UnicodeEncodeError as error:
        raise FetchError(
            "the model's name or address is not valid UTF-8: check --hf-repo, --hf-file, "
            "--hf-token, --hf-repo-draft, --model-draft, --model-url and --mmproj-url"
        ) from error
    child = await Child.start(
        download_command(),
        report_decoder,
        first=first,  # stdin stays open, as its end would end the process
        env={
            "HF_HUB_DOWNLOAD_TIMEOUT": STALL_SECONDS,
            **environment(),
            **hub_environment(os.environ),
        },
        limit=MAX_REPORT,
    )
    try:
        while True:
            match await child.receive():
                case Transfer() as transfer:
                    on_progress(transfer)
                case Notice(text=text):
                    log.warning("%s", text)
                case Fetched() as found:
                    # Not killed: asyncio logs a warning if a child ends at the moment of a kill.
                    await child.end(ENDING_SECONDS)
                    return found
                case FetchFailed(message=message):
                    raise FetchError(message)
    except FrameError as error:
        raise FetchError(f"the download process sent an invalid message: {error}") from error
    except EOFError:
        raise FetchError(
            "the download process ended unexpectedly; see its messages above"
        ) from None
    finally:
        await child.reap()


async def find_remote_preset(options: Options, environ: Mapping[str, str]) -> RemotePreset | None:
    """Returns the preset file of the repository that `options` name; None if it has none, or if the
    options name a file.

    Asks the Hub, unless the cache has a model of the repository and no preset file: such a
    repository contains models, and the start needn't wait for the Hub. Raises OptionError if the
    Hub doesn't answer, or the repository doesn't exist.
    """
    repository = options.source.hf_repo
    if not repository or options.engine.model.model:
        return None
    name = repository.partition(":")[0]
    cache = hub_cache(environ)
    is_cached = PRESET in RepositoryCache(cache, name).names()
    if not is_cached and named(cached_models(cache), repository) is not None:
        return None
    try:
        path = await fetch_preset(options)
    except FetchError as error:
        raise OptionError(str(error)) from error
    if not path:
        return None
    log.warning(
        "%s is a repository of presets: the server offers the models of its %s", name, PRESET
    )
    return RemotePreset(repository=name, path=path)
