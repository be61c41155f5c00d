"""Media in prompts: their tokens, and the chunks to encode."""

from collections.abc import Sequence

import numpy as np

from specllama.engine.errors import BackendError, EngineError, invalid_request, not_supported
from specllama.engine.wire.media import Media, MediaKind
from specllama.engine.worker.backend import PreparedChunk, Projector
from specllama.engine.worker.media.registry import MediaRegistry, spans
from specllama.engine.worker.tokens import TokenArray

MARKER = "<__media__>"
"""Stands for a medium in displayed text."""


class MediaPrompts:
    """The media of all prompts. Safe to use from several threads.

    Without a `projector`, media are not supported. A micro-batch has `n_ubatch` tokens.
    """

    def __init__(self, projector: Projector | None, *, n_ubatch: int) -> None:
        self._projector = projector
        self.registry = MediaRegistry()
        """The media in the texts that are cached, saved and restored."""
        self._n_ubatch = n_ubatch

    def reader(self) -> "MediaReader":
        """A reader for the media of one prompt."""
        return MediaReader(self._projector, self.registry, self._n_ubatch)


class MediaReader:
    """Turns the media of one prompt into tokens. `chunks` are the chunks to encode, by id."""

    def __init__(self, projector: Projector | None, registry: MediaRegistry, n_ubatch: int) -> None:
        self._projector = projector
        self._registry = registry
        self._n_ubatch = n_ubatch
        self.chunks: dict[int, PreparedChunk] = {}

    def tokens(self, media: Media) -> TokenArray:
        """The tokens of a medium, with the tokens that the model needs around it. Raises
        `EngineError` if the medium isn't supported or is invalid."""
        projector = self._projector
        if projector is None or not projector.hears_or_sees(media.kind):
            raise no_input(media.kind)
        try:
            pieces = projector.pieces(media)
            parts = [
                self._chunk(piece) if isinstance(piece, PreparedChunk) else piece
                for piece in pieces
            ]
        except (BackendError, ValueError) as error:
            raise invalid_request(str(error)) from None
        return np.concatenate([np.empty(0, np.int32), *parts])

    def _chunk(self, prepared: PreparedChunk) -> TokenArray:
        n_tokens, kind = prepared.n_tokens, prepared.kind
        if prepared.is_whole and n_tokens > self._n_ubatch:
            raise invalid_request(
                f"the {kind} takes {n_tokens} tokens, which have to be evaluated at once, but a "
                f"micro-batch has {self._n_ubatch}: start the server with --ubatch-size "
                f"{n_tokens} (and --batch-size, if it is less), or send a smaller {kind}"
            )
        chunk = self._registry.intern(
            prepared.media.digest,
            prepared.index,
            n_tokens=n_tokens,
            n_pos=prepared.n_pos,
            is_whole=prepared.is_whole,
            kind=kind,
        )
        self.chunks[chunk.id] = prepared
        return chunk.tokens()


def no_input(kind: MediaKind) -> EngineError:
    """The error for media that the model doesn't support, with llama-server's message."""
    return not_supported(
        f"{kind} input is not supported - hint: if this is unexpected, you may need to provide "
        "the mmproj"
    )


def parts(tokens: TokenArray, registry: MediaRegistry) -> Sequence[TokenArray | None]:
    """The text parts between media, with None for each medium."""
    found: list[TokenArray | None] = []
    at = 0
    for span in spans(tokens, registry):
        found.append(tokens[at : span.start])
        if span.chunk.index == 0:
            found.append(None)
        at = span.stop
    return [*found, tokens[at:]]
