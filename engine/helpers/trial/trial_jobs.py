"""The messages between the engine and a trial process. One job at a time, so they need no ids."""

import msgspec

from specllama.engine.grammars.compiling import GrammarSource
from specllama.engine.wire.framing import Started


class TrialTokens(msgspec.Struct, frozen=True):
    """A vocabulary: the bytes of every token, and those that end a text."""

    texts: list[bytes]
    eog: list[int]


class TrialJob(msgspec.Struct, frozen=True):
    """A source to be tried against a vocabulary, which has a number; `tokens` come along with the
    first job for it. `ids` are the tokens that names in a grammar stand for, as far as they are
    known; `seconds` is the time of the processor that the job may take;
    `leniently` as in `relaxing.compilable`."""

    source: GrammarSource
    vocabulary: int
    seconds: float
    tokens: TrialTokens | None = None
    ids: dict[str, int | None] = {}
    leniently: bool = False


class Unknown(msgspec.Struct, frozen=True, tag="unknown"):
    """The grammar names tokens that are not among `TrialJob.ids`."""

    names: list[str]


class Tried(msgspec.Struct, frozen=True, tag="tried"):
    """The source in the notation of llguidance, which can compile it and go on with it; the
    keywords that are left out of its schemas; the memory that it keeps."""

    grammar: str
    relaxed: tuple[str, ...]
    n_bytes: int


class TrialRefused(msgspec.Struct, frozen=True, tag="refused"):
    """A fault in the source, as a message for its author."""

    message: str


class Costly(msgspec.Struct, frozen=True, tag="costly"):
    """It takes too much work, or memory."""


Answer = Unknown | Tried | TrialRefused | Costly

job_decoder = msgspec.msgpack.Decoder(TrialJob)
answer_decoder = msgspec.msgpack.Decoder(Started | Answer)
