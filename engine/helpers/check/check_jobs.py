"""The messages between the server and a process that checks bodies.

They go as frames (`engine.wire.framing`). A process works on one job at a time, so messages
need no ids; each `CheckJob` is answered with one `BodyVerdict`.
"""

import msgspec

from specllama.engine.wire.framing import Started


class CheckJob(msgspec.Struct, frozen=True, omit_defaults=True):
    """A body, and the schema that it has to follow.

    `schema` is a number for the schema; `source` is what it is, in JSON, and comes along with the
    first job for it.
    """

    schema: int
    body: bytes
    source: bytes = b""


class BodyVerdict(msgspec.Struct, frozen=True, tag="verdict", omit_defaults=True):
    """The fault of a body in one sentence, "" for none. `discreet` is the same without the client's
    own words, where it has some. `exhausted`: the process ran out of memory, and is not fit for
    another job."""

    fault: str = ""
    discreet: str = ""
    exhausted: bool = False


job_decoder = msgspec.msgpack.Decoder(CheckJob)
verdict_decoder = msgspec.msgpack.Decoder(Started | BodyVerdict)
