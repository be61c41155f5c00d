"""Downloads of models."""

from collections.abc import Callable

import msgspec

from engine.options import Options


class Transfer(msgspec.Struct, frozen=True):
    """How far a download is: bytes, over all files of the model; `file` is the present one."""

    file: str
    n_done: int
    n_total: int


class FetchError(Exception):
    """A model could not be downloaded: one line for the user."""


def wants_fetch(options: Options) -> bool:
    """Whether the model has to be downloaded before it can be loaded."""
    return not options.model and bool(options.hf_repo or options.model_url)


async def fetch(options: Options, on_progress: Callable[[Transfer], None]) -> Options:
    """The same options with local paths. Raises FetchError."""
    raise FetchError("this build can't download models")
