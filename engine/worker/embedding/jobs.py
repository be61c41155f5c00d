"""Requests for vectors: their inputs, the parts of these, and what the parts' vectors become."""

from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from specllama.engine.errors import ErrorInfo
from specllama.engine.wire.replies import Failed, Timings
from specllama.engine.wire.requests import NO_TERMS, Terms
from specllama.engine.worker.backend import Vectors as Rows
from specllama.engine.worker.embedding.media import Encoded
from specllama.engine.worker.media.registry import ChunkSpan
from specllama.engine.worker.scheduling.fairness import QueueTicket
from specllama.engine.worker.tokens import TokenArray


@dataclass(eq=False)
class EmbeddingJob:
    """One request: the tokens of its inputs, and the vectors so far. `spans` are the spans of media
    in each input; `media` are the encoded chunks, by id. Jobs of one client call have the same
    `group`. `n_used` tokens have been evaluated in `ms`, its part of the time of the steps."""

    id: int
    inputs: list[TokenArray]
    normalize: int = -1
    dimensions: int = 0
    group: int = 0
    owner: int = 0
    terms: Terms = NO_TERMS
    arrived: float = 0.0
    spans: list[list[ChunkSpan]] = field(default_factory=list)
    media: dict[int, Encoded] = field(default_factory=dict)
    n_begun: int = 0
    n_open: int = field(init=False)
    n_used: int = 0
    ms: float = 0.0
    rows: list[Rows | None] = field(init=False)
    ticket: "QueueTicket[EmbeddingJob]" = field(init=False)

    def __post_init__(self) -> None:
        self.n_open = len(self.inputs)
        self.rows = [None] * len(self.inputs)
        self.ticket = QueueTicket(
            item=self,
            id=self.id,
            group=self.group or self.id,
            owner=self.owner,
            weight=self.terms.weight,
            priority=self.terms.priority,
            n_tokens=len(self.inputs[0]),
        )

    @property
    def n_tokens(self) -> int:
        return sum(map(len, self.inputs))

    @property
    def n_waiting(self) -> int:
        """The tokens of the inputs that haven't begun."""
        return sum(map(len, self.inputs[self.n_begun :]))

    @property
    def used(self) -> Timings | None:
        """What a metered job has used."""
        return Timings(0, self.n_used, self.ms, 0, 0.0) if self.terms.is_metered else None

    def failed(self, message: str) -> Failed:
        return Failed(self.id, ErrorInfo("server_error", message), self.used)


@dataclass(eq=False)
class Input:
    """An input that is being evaluated as `sequence`; its first `n_past` tokens are done.
    `is_alone`: its steps have no other inputs."""

    job: EmbeddingJob
    index: int
    sequence: int = 0
    n_past: int = 0
    is_alone: bool = False
    parts: list[Rows] = field(default_factory=list)
    lengths: list[int] = field(default_factory=list)

    def restart(self) -> None:
        """Begin the evaluation again."""
        self.n_past = 0
        self.parts.clear()
        self.lengths.clear()

    @property
    def tokens(self) -> TokenArray:
        return self.job.inputs[self.index]

    @property
    def n_pending(self) -> int:
        return len(self.tokens) - self.n_past

    @property
    def has_media(self) -> bool:
        return bool(self.job.media) and bool(self.job.spans[self.index])

    @property
    def span(self) -> ChunkSpan | None:
        """The medium at the next token; None if that is text."""
        return self._next_span(lambda span: span.start <= self.n_past)

    @property
    def n_text(self) -> int:
        """The number of pending tokens before the next medium."""
        span = self._next_span(lambda span: True)
        return self.n_pending if span is None else max(0, span.start - self.n_past)

    def _next_span(self, wanted: Callable[[ChunkSpan], bool]) -> ChunkSpan | None:
        spans = self.job.spans[self.index] if self.has_media else []
        return next((s for s in spans if s.stop > self.n_past and wanted(s)), None)


@dataclass(frozen=True, slots=True)
class InputPart:
    """`n` more tokens of `input`, to be evaluated in the next step."""

    input: Input
    n: int


# ---- Vectors: merged from those of parts, and normalized.


MAX_INT16 = 32760.0
"""The largest absolute value with `normalize` 0, as in llama.cpp."""


def normalized(rows: Rows, p: int) -> Rows:
    """Each row divided by its p-norm. `p` -1: unchanged; 0: divided by the largest absolute value
    and multiplied by `MAX_INT16`. A row of zeros stays unchanged."""
    if p == -1:
        return rows
    wide = np.abs(rows.astype(np.float64))
    peak = wide.max(axis=1, keepdims=True)
    safe = np.where(peak > 0, peak, 1.0)
    # Relative to the peak, no power overflows, whatever p is.
    norm = (
        safe / MAX_INT16 if p == 0 else safe * ((wide / safe) ** p).sum(1, keepdims=True) ** (1 / p)
    )
    return np.where(peak > 0, rows / np.where(peak > 0, norm, 1.0), 0.0).astype(np.float32)


def merged(pooling: str, parts: list[Rows], lengths: list[int]) -> Rows:
    """The rows of one input that was evaluated in parts of `lengths` tokens.

    Exact for a causal model, in which no token's vector depends on later tokens.
    """
    if len(parts) == 1:
        return parts[0]
    match pooling:
        case "none":
            return np.concatenate(parts)
        case "cls":
            return parts[0]
        case "mean":
            weights = np.array(lengths, np.float64) / sum(lengths)
            mean: npt.NDArray[np.float64] = np.tensordot(weights, np.stack(parts), 1)
            return mean.astype(np.float32)
        case _:
            return parts[-1]
