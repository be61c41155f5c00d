"""The embeddings of the media in prompts, from which their tokens are evaluated."""

from collections.abc import Iterable, Mapping
from contextlib import AbstractContextManager, nullcontext

from specllama.engine import system
from specllama.engine.errors import BackendError
from specllama.engine.worker.backend import Context, Projector
from specllama.engine.worker.cache.texts import ALL
from specllama.engine.worker.generation.request import Request
from specllama.engine.worker.media.encoder import DeviceSlices, MediaEncoder
from specllama.engine.worker.scheduling.sequences import Chunk, Sequence


class Embeddings:
    """Orders the embeddings that sequences in slots need, and sets how far each sequence can be
    evaluated. Belongs to the thread that steps.

    Media that the KV cache holds are not encoded again. A sequence that leaves its slot drops its
    orders; they are made again when it comes back. With `turns`, the encoder and the steps take
    turns on the device.
    """

    def __init__(
        self, projector: Projector | None, keep_bytes: int, turns: DeviceSlices | None = None
    ) -> None:
        self._ready = system.Event()
        self._turns = turns if projector is not None else None
        self._encoder = None
        if projector is not None:
            self._encoder = MediaEncoder(projector, keep_bytes, self._ready.set, self._turns)
        self._ordering: list[Request] = []  # requests that may have orders

    def update(
        self, active: Iterable[Sequence], requests: Mapping[int, Request]
    ) -> list[tuple[Request, BackendError]]:
        """Set how far the sequences in slots can be evaluated (`Sequence.embed`). Returns the
        requests whose media can't be encoded, with the errors."""
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
        """Evaluate a chunk of a span. Returns the index of its last token's logits, valid if the
        chunk ends the text. Raises the errors of `Context.decode`."""
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

    @property
    def takes_turns(self) -> bool:
        """True if the encoder may need the device between two steps."""
        return self._turns is not None

    def turn(self, allowed: float) -> AbstractContextManager[None]:
        """A context in which a step computes and the encoder doesn't. Before it is entered, the
        encoder gets `allowed` seconds."""
        return self._turns.step(allowed) if self._turns is not None else nullcontext()

    def wait(self, seconds: float) -> None:
        """Wait until a medium is encoded, `seconds` at most."""
        self._ready.wait(seconds)
        self._ready.clear()

    def ids(self) -> list[int]:
        """The ids of the media chunks that are kept or being encoded."""
        return self._encoder.ids() if self._encoder is not None else []

    def close(self) -> None:
        if self._encoder is not None:
            self._encoder.close()
