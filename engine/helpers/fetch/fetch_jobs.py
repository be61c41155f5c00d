"""The messages between the server and the process that fetches.

It does many jobs at a time, which have ids; each `Fetch` is answered with one `Answer`, unless a
`CancelFetch` comes first.
"""

import msgspec

from specllama.engine.wire.framing import Started

# ---- The error of a URL that is not fetched.


class UnfetchableError(Exception):
    """The rest of a sentence about what was to be fetched, for the user."""


class Rules(msgspec.Struct, frozen=True, kw_only=True):
    """Where to fetch from, and how much. `directory` is that of file URLs, "" for none."""

    urls: bool = False
    domains: tuple[str, ...] = ()  # (): all
    private: bool = False  # addresses that are not public, too
    directory: str = ""
    max_bytes: int
    seconds: float


class Fetch(msgspec.Struct, frozen=True, tag="fetch"):
    """Asks for the file at `url`."""

    id: int
    url: str
    rules: Rules


class CancelFetch(msgspec.Struct, frozen=True, tag="cancel"):
    """Says that nobody waits for it any more."""

    id: int


class FetchedFile(msgspec.Struct, frozen=True, tag="fetched"):
    """The bytes of the file."""

    id: int
    data: bytes


class NotFetched(msgspec.Struct, frozen=True, tag="failed"):
    """The reason why it can't be had, as the rest of a sentence about it."""

    id: int
    reason: str


Job = Fetch | CancelFetch
Answer = FetchedFile | NotFetched

job_decoder = msgspec.msgpack.Decoder(Job)
answer_decoder = msgspec.msgpack.Decoder(Started | Answer)
