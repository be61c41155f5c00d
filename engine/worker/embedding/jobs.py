"""Requests for vectors, and the inputs and pieces of text that they consist of."""

from dataclasses import dataclass, field

from engine.worker.backend import Vectors as Rows
from engine.worker.tokens import TokenArray


@dataclass(eq=False)
class Job:
    """One request: the tokens of its inputs, and what has become of them."""

    id: int
    inputs: list[TokenArray]
    normalize: int = -1
    dimensions: int = 0
    n_begun: int = 0
    n_open: int = field(init=False)
    rows: list[Rows | None] = field(init=False)

    def __post_init__(self) -> None:
        self.n_open = len(self.inputs)
        self.rows = [None] * len(self.inputs)


@dataclass(eq=False)
class Input:
    """An input that is being evaluated as `sequence`; `n_past` tokens of it are done."""

    job: Job
    index: int
    sequence: int = 0
    n_past: int = 0
    parts: list[Rows] = field(default_factory=list)
    lengths: list[int] = field(default_factory=list)

    @property
    def tokens(self) -> TokenArray:
        return self.job.inputs[self.index]

    @property
    def n_pending(self) -> int:
        return len(self.tokens) - self.n_past


@dataclass(frozen=True, slots=True)
class InputPart:
    """`n` more tokens of `input`, to be evaluated in the next step."""

    input: Input
    n: int
