"""A process that fetches URLs of requests, many at a time, until its stdin ends.

    python -m specllama.engine.helpers.fetch.fetch_main BYTES   (started by the fetcher)

BYTES is the limit of the address space, if the platform supports one. Each job has its own time
limit.
"""

import asyncio
import os
import re
import sys
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from typing import Final

import specllama.engine.wire.startup as startup  # the very first
from specllama.engine import system
from specllama.engine.helpers.fetch.client import fetch
from specllama.engine.helpers.fetch.fetch_jobs import (
    Answer,
    Fetch,
    FetchedFile,
    Job,
    NotFetched,
    UnfetchableError,
    job_decoder,
)
from specllama.engine.options import OptionError
from specllama.engine.options.files import open_regular
from specllama.engine.wire.framing import Started
from specllama.engine.wire.link import Link, take_over

# ---- Files of file URLs, below one directory.


MAX_PATH: Final = 255  # characters, as in llama-server

_FORBIDDEN: Final = re.compile(
    # Control characters, wildcards and streams of Windows, and look-alikes of dots and slashes.
    r'[\x00-\x1f\x7f-\x9f:*?"<>|\u2215\u2216\uff0e\ufeff\ufffd\ud800-\udfff]|\.\.'
)


def read(url: str, directory: str, max_bytes: int) -> bytes:
    """Returns the contents of the file that `url` names. Raises UnfetchableError.

    The text after `file://` is a path below `directory`; percent escapes in the path are not
    decoded. The target of a link has to be below `directory`, too.
    """
    path = url[len("file://") :].lstrip("/")
    if len(path) > MAX_PATH or _FORBIDDEN.search(path) or path != path.strip(" ").rstrip("."):
        raise UnfetchableError("its path is not allowed")
    root = os.path.realpath(directory)
    real = os.path.realpath(os.path.join(root, path))
    if not path or os.path.commonpath((root, real)) != root:
        raise UnfetchableError("its path is not allowed")
    try:
        with open(open_regular(real), "rb") as file:
            data = file.read(max_bytes + 1)
    except (OSError, OptionError):
        raise UnfetchableError("it does not exist, or can't be read") from None
    if len(data) > max_bytes:
        raise UnfetchableError(f"it has more than the {max_bytes} bytes that are allowed")
    return data


THREADS: Final = 64  # a name resolution blocks one of them until it ends

ServerLink = Link[Job, Started | Answer]


async def serve(link: ServerLink) -> None:
    """Does jobs until the input ends."""
    tasks: dict[int, asyncio.Task[None]] = {}
    loop = asyncio.get_running_loop()
    loop.set_default_executor(ThreadPoolExecutor(THREADS))
    while jobs := await asyncio.to_thread(link.receive):
        for job in jobs:
            if isinstance(job, Fetch):
                task = tasks[job.id] = asyncio.create_task(_do(job, link))
                task.add_done_callback(lambda _, id=job.id: tasks.pop(id))  # type: ignore[misc]
            elif (known := tasks.get(job.id)) is not None:
                known.cancel()


async def _do(job: Fetch, link: ServerLink) -> None:
    answer: Answer
    try:
        answer = FetchedFile(job.id, await _fetched(job))
    except UnfetchableError as e:
        answer = NotFetched(job.id, str(e))
    except MemoryError:
        answer = NotFetched(job.id, "fetching it needs too much memory")
    except Exception as e:  # of any kind, as the server waits for an answer
        answer = NotFetched(job.id, f"fetching it failed ({type(e).__name__})")
    with suppress(BrokenPipeError):  # the server has ended: `receive` will notice
        await asyncio.to_thread(link.send, answer)


async def _fetched(job: Fetch) -> bytes:
    rules = job.rules
    if not job.url.lower().startswith("file:"):
        if not rules.urls:
            raise UnfetchableError("fetching URLs is disabled (see --media-urls)")
        return await fetch(job.url, rules)
    if not rules.directory:
        raise UnfetchableError("reading files is disabled (see --media-path)")
    reading = asyncio.to_thread(read, job.url, rules.directory, rules.max_bytes)
    try:
        return await asyncio.wait_for(reading, rules.seconds)
    except TimeoutError:
        raise UnfetchableError(f"reading it takes more than {rules.seconds:g} s") from None


def main() -> None:
    link: ServerLink = take_over(job_decoder)
    startup.limit_memory(int(sys.argv[1]))
    startup.resume_gc()
    link.send(Started())
    # Not `asyncio.run`, which waits at its end for threads that still resolve names.
    asyncio.new_event_loop().run_until_complete(serve(link))


if __name__ == "__main__":
    main()
    system.leave()
