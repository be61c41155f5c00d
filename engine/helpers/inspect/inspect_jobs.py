"""The messages between the server and the process that reads model files.

They are frames (`engine.wire.framing`) with JSON inside: sums over a hostile file's tensors may
exceed the 64 bits of msgpack's integers. A job is a path, its answer an `Outcome`.
"""

from typing import Literal

import msgspec

from specllama.engine.options import Pooling
from specllama.engine.wire.framing import Started
from specllama.engine.wire.replies import Modality

Capability = Literal["completion", "insert", "tools", "embedding", "rerank"]


class FileMetadata(msgspec.Struct, tag="metadata", frozen=True, kw_only=True):
    """The metadata of a GGUF file, or of all parts of a split model.

    Numbers have the same meaning as in `engine.wire.replies.ModelInfo`. `file_type` is llama.cpp's
    number for the type of most weights, None if the file doesn't contain it. `causal` is False for
    encoders. `fim` is true if the vocabulary has the tokens for filling in the middle, `tools` if
    the chat template supports tool calls.
    """

    architecture: str
    name: str  # "" if the file has none
    n_params: int
    size: int  # bytes of all tensors
    file_size: int  # bytes of all files
    digest: str = ""  # digest of all files (`engine.helpers.inspect.digest`)
    file_type: int | None
    n_ctx_train: int
    n_embd: int
    vocab_type: int
    n_vocab: int
    pooling: Pooling | None = None  # None: the file doesn't set it
    causal: bool = True
    chat_template: bool = False
    tools: bool = False
    fim: bool = False

    @property
    def capabilities(self) -> tuple[Capability, ...]:
        """The capabilities of the model, regardless of the server's options."""
        if self.pooling == "rank":
            return ("rerank",)
        if not self.causal or self.pooling not in (None, "none"):
            return ("embedding",)
        extra: list[Capability] = []
        if self.fim:
            extra.append("insert")
        if self.tools:
            extra.append("tools")
        return ("completion", *extra)


class ProjectorMetadata(msgspec.Struct, tag="projector", frozen=True):
    """The media that a projector supports."""

    modalities: list[Modality]


class Unreadable(msgspec.Struct, tag="unreadable", frozen=True):
    """The reason why a file can't be read, in one line."""

    reason: str


Outcome = FileMetadata | ProjectorMetadata | Unreadable

path_decoder = msgspec.json.Decoder(str)
outcome_decoder = msgspec.json.Decoder(Started | Outcome)
