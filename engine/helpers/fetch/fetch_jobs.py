"""The messages between the server and the process that fetches URLs.

It does many jobs at a time, so they have ids. Each `Fetch` is answered with one `Answer`, unless a
`CancelFetch` precedes it.
"""

import msgspec

from specllama.engine.wire.framing import Started

# ---- The error of a URL that can't be fetched.


class UnfetchableError(Exception):
    """A URL can't be fetched. The message for the user is a sentence about the file, which it calls
    "it"."""


class Rules(msgspec.Struct, frozen=True, kw_only=True):
    """The permitted sources of files, and the limits of size and time. `directory` is the directory
    of file URLs, "" to disable them."""

    urls: bool = False
    domains: tuple[str, ...] = ()  # (): all
    private: bool = False  # also permit addresses that are not public
    directory: str = ""
    max_bytes: int
    seconds: float


class Fetch(msgspec.Struct, frozen=True, tag="fetch"):
    """A request for the file at `url`."""

    id: int
    url: str
    rules: Rules


class CancelFetch(msgspec.Struct, frozen=True, tag="cancel"):
    """Cancels a `Fetch`."""

    id: int


class FetchedFile(msgspec.Struct, frozen=True, tag="fetched"):
    """The bytes of the file."""

    id: int
    data: bytes


class NotFetched(msgspec.Struct, frozen=True, tag="failed"):
    """The file can't be fetched. `reason` is as in `UnfetchableError`."""

    id: int
    reason: str


Job = Fetch | CancelFetch
Answer = FetchedFile | NotFetched

job_decoder = msgspec.msgpack.Decoder(Job)
answer_decoder = msgspec.msgpack.Decoder(Started | Answer)
