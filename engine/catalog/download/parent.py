"""Downloads the model that options name, in a process of its own."""

import asyncio
import logging
import os
import sys
from collections.abc import Callable
from contextlib import suppress

import msgspec

from engine.catalog.download.messages import Fetched, FetchFailed, Notice, Report, Transfer, Wanted
from engine.catalog.locations import hub_environment
from engine.catalog.wanted import wants_fetch, wants_model, wants_projector
from engine.options import Options

__all__ = ["FetchError", "Transfer", "fetch", "wants_fetch"]

log = logging.getLogger("engine.catalog")

STALL_SECONDS = "30"  # without a byte; then the connection is given up, and another one tried
LINE_LIMIT = 1 << 20  # bytes

_reports = msgspec.json.Decoder(Report)


class FetchError(Exception):
    """The model can't be downloaded; one line for the user."""


async def fetch(options: Options, on_progress: Callable[[Transfer], None]) -> Options:
    """Have the model and the projector that `options` name by repository or URL on this
    machine: downloaded, unless they are in the cache already.

    Returns the options with the paths of the files in `model` (of the first part) and `mmproj`.
    `on_progress` is called at most ten times a second. When cancelled, the download ends at
    once; the next one of the same files goes on from there. Raises FetchError.
    """
    found = await _run(_wanted(options), on_progress)
    return msgspec.structs.replace(
        options,
        model=found.model or options.model,
        mmproj=found.projector or options.mmproj,
    )


def _wanted(options: Options) -> Wanted:
    repository = options.hf_repo if wants_model(options) else ""
    named = bool(options.mmproj or options.mmproj_url)
    return Wanted(
        repository=repository,
        file=options.hf_file if repository else "",
        token=options.hf_token,
        url=options.model_url if wants_model(options) and not repository else "",
        projector=options.mmproj_auto and not named,
        projector_url=options.mmproj_url if wants_projector(options) else "",
        offline=options.offline,
    )


async def _run(wanted: Wanted, on_progress: Callable[[Transfer], None]) -> Fetched:
    environment = {
        "HF_HUB_DOWNLOAD_TIMEOUT": STALL_SECONDS,
        **os.environ,
        **hub_environment(os.environ),
    }
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-P", "-m", "engine.catalog.download.child"),
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
        limit=LINE_LIMIT,
        env=environment,
    )
    assert process.stdin is not None
    assert process.stdout is not None
    try:
        # stdin stays open: its end would end the process.
        process.stdin.write(msgspec.json.encode(wanted) + b"\n")
        async for line in process.stdout:
            match _reports.decode(line):
                case Transfer() as transfer:
                    on_progress(transfer)
                case Notice(text=text):
                    log.warning("%s", text)
                case Fetched() as found:
                    return found
                case FetchFailed(message=message):
                    raise FetchError(message)
    except (msgspec.MsgspecError, ValueError) as error:
        raise FetchError(f"the process that downloads sends nonsense: {error}") from error
    finally:
        with suppress(ProcessLookupError):
            process.kill()
        await process.wait()
    raise FetchError("the process that downloads ended before it was done; see its messages above")
