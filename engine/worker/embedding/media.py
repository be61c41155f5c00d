"""The media of inputs, encoded while their request is being prepared."""

from collections.abc import Mapping
from typing import NamedTuple

from specllama.engine import system
from specllama.engine.errors import server_error
from specllama.engine.worker.backend import PreparedChunk, Projector, Rows
from specllama.engine.worker.media.encoder import MediaEncoder


class Encoded(NamedTuple):
    """A chunk of a medium with its embeddings."""

    chunk: PreparedChunk
    rows: Rows


class MediaEncoding:
    """Encodes media for the threads that prepare requests, which wait for the result. Keeps the
    last results, up to `keep_bytes`."""

    def __init__(self, projector: Projector, keep_bytes: int) -> None:
        self._finished = system.Condition()
        self._encoder = MediaEncoder(projector, keep_bytes, self._notify)

    def _notify(self) -> None:
        with self._finished:
            self._finished.notify_all()

    def encoded(self, owner: int, chunks: Mapping[int, PreparedChunk]) -> dict[int, Encoded]:
        """The embeddings of `chunks`, by id. Raises `EngineError`."""
        orders = [self._encoder.order(owner, id, chunk) for id, chunk in chunks.items()]
        try:
            with self._finished:
                self._finished.wait_for(lambda: all(order.is_done for order in orders))
            found = {}
            for order in orders:
                if order.rows is None:
                    raise server_error(str(order.error))
                found[order.id] = Encoded(chunks[order.id], order.rows)
            return found
        finally:
            for order in orders:
                self._encoder.release(order)

    def ids(self) -> list[int]:
        """The ids of the chunks that are kept or being encoded."""
        return self._encoder.ids()

    def close(self) -> None:
        self._encoder.close()
