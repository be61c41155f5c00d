"""The messages between the server and a process that validates bodies.

They are frames (`engine.wire.framing`). A process works on one job at a time, so messages need no
ids. Each `CheckJob` is answered with one `BodyVerdict`.
"""

import msgspec

from specllama.engine.wire.framing import Started


class CheckJob(msgspec.Struct, frozen=True, omit_defaults=True):
    """A body, and its schema.

    `schema` is a number for the schema. `source`, its JSON, is only sent with the first job for the
    schema.
    """

    schema: int
    body: bytes
    source: bytes = b""


class BodyVerdict(msgspec.Struct, frozen=True, tag="verdict", omit_defaults=True):
    """The fault of a body in one sentence, "" for none. `discreet` is the same sentence without
    text from the client. `exhausted`: the process ran out of memory and can't do another job."""

    fault: str = ""
    discreet: str = ""
    exhausted: bool = False


job_decoder = msgspec.msgpack.Decoder(CheckJob)
verdict_decoder = msgspec.msgpack.Decoder(Started | BodyVerdict)
