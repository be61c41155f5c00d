"""The messages between the engine and a trial process. There is one job at a time, so they need no
ids."""

import msgspec

from specllama.engine.grammars.compiling import GrammarSource
from specllama.engine.wire.framing import Started


class TrialTokens(msgspec.Struct, frozen=True):
    """A vocabulary: the bytes of every token, and the tokens that end a text."""

    texts: list[bytes]
    eog: list[int]


class TrialJob(msgspec.Struct, frozen=True):
    """A source to try with a vocabulary, which has a number; `tokens` are only sent with the first
    job for it. `ids` are the known tokens for names in a grammar; `seconds` is the limit of CPU
    time; `leniently` as in `relaxing.compilable`."""

    source: GrammarSource
    vocabulary: int
    seconds: float
    tokens: TrialTokens | None = None
    ids: dict[str, int | None] = {}
    leniently: bool = False


class Unknown(msgspec.Struct, frozen=True, tag="unknown"):
    """The grammar names tokens that are not in `TrialJob.ids`."""

    names: list[str]


class Tried(msgspec.Struct, frozen=True, tag="tried"):
    """The result of a successful trial: the source in llguidance's notation; the keywords left out
    of its schemas; the memory that it keeps, in bytes."""

    grammar: str
    relaxed: tuple[str, ...]
    n_bytes: int


class TrialRefused(msgspec.Struct, frozen=True, tag="refused"):
    """An error in the source, as a message for its author."""

    message: str


class Costly(msgspec.Struct, frozen=True, tag="costly"):
    """The source takes too much work, or memory."""


Answer = Unknown | Tried | TrialRefused | Costly

job_decoder = msgspec.msgpack.Decoder(TrialJob)
answer_decoder = msgspec.msgpack.Decoder(Started | Answer)
