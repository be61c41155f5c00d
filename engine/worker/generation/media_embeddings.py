"""The embeddings of media that sequences wait for, or are evaluated from."""

from collections.abc import Iterable, Mapping
from contextlib import AbstractContextManager, nullcontext

from specllama.engine import system
from specllama.engine.errors import BackendError
from specllama.engine.worker.backend import Context, Projector
from specllama.engine.worker.cache.prefix_cache import ALL
from specllama.engine.worker.generation.request import Request
from specllama.engine.worker.media.encoder import DeviceSlices, MediaEncoder
from specllama.engine.worker.scheduling.sequences import Chunk, Sequence


class Embeddings:
    """Orders what the sequences in slots need of their media, and says how far each can go on.
    Belongs to the thread that steps.

    Nothing is encoded that the KV cache holds. What a sequence that leaves its slot has ordered is
    ordered again when it comes back. With `turns`, encoder and steps don't compute at once.
    """

    def __init__(
        self, projector: Projector | None, keep_bytes: int, turns: DeviceSlices | None = None
    ) -> None:
        self._news = system.Event()
        self._turns = turns if projector is not None else None
        self._encoder = None
        if projector is not None:
            self._encoder = MediaEncoder(projector, keep_bytes, self._news.set, self._turns)
        self._ordering: list[Request] = []  # those that may have orders

    def update(
        self, active: Iterable[Sequence], requests: Mapping[int, Request]
    ) -> list[tuple[Request, BackendError]]:
        """Set `n_ready` of the sequences in slots. Those whose media can't be encoded."""
        if self._encoder is None:
            return []
        failed: list[tuple[Request, BackendError]] = []
        last, self._ordering = self._ordering, []
        for sequence in active:
            if not sequence.spans or sequence.spans[-1].stop <= sequence.n_past:
                sequence.embed(ALL)
                continue
            request = requests[sequence.id]
            self._ordering.append(request)
            if (error := self._update(self._encoder, request)) is not None:
                failed.append((request, error))
        for request in last:
            if request not in self._ordering:
                request.release_media()
        return failed

    def _update(self, encoder: MediaEncoder, request: Request) -> BackendError | None:
        sequence, orders = request.sequence, request.orders
        needed: set[int] = set()
        n_ready = ALL
        for span in sequence.spans:
            if span.stop <= sequence.n_past:
                continue
            id = sequence.tokens.item(span.start)
            needed.add(id)
            if id not in orders:
                orders[id] = encoder.order(sequence.group, id, request.media[id])
            order = orders[id]
            if order.error is not None:
                return order.error
            if order.rows is None:
                n_ready = min(n_ready, span.start)
        for id in orders.keys() - needed:
            orders.pop(id).release()
        sequence.embed(n_ready)
        return None

    def decode(self, context: Context, chunk: Chunk, request: Request) -> int:
        """Evaluate a chunk of a span. The index of its last token's logits, if it ends the text.
        Raises what `Context.decode` does."""
        sequence, span = chunk.sequence, chunk.span
        assert span is not None
        id = sequence.tokens.item(chunk.start)
        rows = request.orders[id].rows
        assert rows is not None
        first, stop = chunk.start - span.start, chunk.stop - span.start
        medium = request.media[id]
        return context.decode_media(
            sequence.seq_id, span.start, medium, rows[first:stop], first, output=chunk.is_last
        )

    def turn(self, allowed: float) -> AbstractContextManager[None]:
        """Keeps the encoder from computing while a step does. Before, it has `allowed` seconds."""
        return self._turns.step(allowed) if self._turns is not None else nullcontext()

    def wait(self, seconds: float) -> None:
        """Until something is encoded, `seconds` at most."""
        self._news.wait(seconds)
        self._news.clear()

    def ids(self) -> list[int]:
        """The chunks that are kept or on their way."""
        return self._encoder.ids() if self._encoder is not None else []

    def close(self) -> None:
        if self._encoder is not None:
            self._encoder.close()
