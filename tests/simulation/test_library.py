"""The stand-in for llama.cpp behaves as llama.cpp does: the same random operations on both."""

import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import TypeVar

import numpy as np
import numpy.typing as npt
import pytest

from specllama.engine.worker.backend import (
    BackendError,
    Context,
    Model,
    OutOfCellsError,
    initialize,
)
from tests.simulation.library import LibraryStandIn, ModelShape, installed
from tests.simulation.memory import Kind
from tests.support.models import random_model
from tests.support.options_support import engine_options
from tools.models.build import ensure

pytestmark = [pytest.mark.slow, pytest.mark.covering(1)]

T = TypeVar("T")

N_SEQUENCES = 4
OPTIONS = {"ctx_size": 1024, "batch_size": 64, "ubatch_size": 32, "cache_type_k": "q8_0"}
SAME = 2e-2
"""The largest difference of logits of the same text: the order of its cells may differ."""
N_OPERATIONS = 120
KINDS: dict[Kind, str] = {
    "window": "tiny-window",
    "recurrent": "tiny-mamba",
    "hybrid": "tiny-hybrid",
}


@pytest.fixture(scope="module", params=["dense", *KINDS])
def kind_and_model(request: pytest.FixtureRequest) -> Iterator[tuple[Kind, Model]]:
    initialize()
    path = ensure(KINDS[request.param]) if request.param in KINDS else random_model()
    model = Model(str(path), engine_options())
    yield request.param, model
    model.close()


@pytest.fixture(params=[True, False], ids=["unified", "separate"])
def unified(request: pytest.FixtureRequest) -> bool:
    return bool(request.param)


@dataclass
class Seen:
    """The logits of the library for each row of the stand-in."""

    rows: dict[bytes, npt.NDArray[np.float32]] = field(default_factory=dict)

    def check(self, stand_in: npt.NDArray[np.float32], real: npt.NDArray[np.float32]) -> None:
        key = stand_in.tobytes()
        if (known := self.rows.get(key)) is not None:
            assert np.abs(known - real).max() < SAME
            return
        for other in self.rows.values():
            assert np.abs(other - real).max() > SAME
        self.rows[key] = real


class Both:
    """A context of the library, and one of the stand-in. Every call is made on both."""

    def __init__(
        self, real: Context, stand_in: Context, library: LibraryStandIn, seed: int
    ) -> None:
        self.contexts = real, stand_in
        self.library = library
        self.random = random.Random(seed)
        self.texts: list[list[int]] = [[] for _ in range(N_SEQUENCES)]
        self.saved: list[tuple[list[int], list[npt.NDArray[np.uint8]]]] = []
        self.checkpoints: dict[int, tuple[list[int], list[npt.NDArray[np.uint8]]]] = {}
        self.seen = Seen()

    def results(self, work: Callable[[Context], T]) -> list[T]:
        """Returns the results of `work` for the library's context, and for the stand-in's."""
        real = work(self.contexts[0])
        with installed(lambda: self.library):
            return [real, work(self.contexts[1])]

    def each(self, work: str, *args: object) -> object:
        """Returns the result of a method, which has to be the same for both."""
        real, stand_in = self.results(lambda context: getattr(context, work)(*args))
        assert stand_in == real, (work, args)
        return real

    # ---- operations ----------------------------------------------------------------------

    def operate(self) -> None:
        operations = [self.evaluate, self.evaluate, self.evaluate, self.remove, self.copy]
        operations += [self.save, self.restore, self.cut_out, self.checkpoint, self.rewind]
        self.random.choice(operations)()

    def sequence(self) -> int:
        return self.random.randrange(N_SEQUENCES)

    def evaluate(self) -> None:
        """Evaluates tokens of some sequences, in the order of their ids."""
        chosen = [s for s in range(N_SEQUENCES) if self.random.random() < 0.5]
        news = {s: self._tokens(s) for s in chosen}
        news = {s: new for s, new in news.items() if len(self.texts[s]) + len(new) < 200}
        if not news or sum(map(len, news.values())) > self.contexts[0].n_batch:
            return

        def decoded(context: Context) -> list[npt.NDArray[np.float32]]:
            context.batch.clear()
            last = [context.batch.add(new, len(self.texts[s]), s) for s, new in news.items()]
            try:
                context.decode()
            except OutOfCellsError:
                return []
            return [context.logits(index).copy() for index in last]

        rows, of_stand_in = self.results(decoded)
        for real, stand_in in zip(rows, of_stand_in, strict=True):
            self.seen.check(stand_in, real)
        for s, new in news.items() if rows else ():
            self.texts[s] += new

    def _tokens(self, s: int) -> list[int]:
        """Returns tokens whose beginning is mostly that of other texts. The first token occurs
        only there, because attention to equal values doesn't depend on their number."""
        n = self.random.choice([1, 1, 2, 5, 15])
        first = [] if self.texts[s] else [self.random.choice([20, 21])]
        return [*first, *(self.random.choice([11, 12, 13]) for _ in range(n))]

    def remove(self) -> None:
        s = self.sequence()
        n = self.random.choice([0, self.random.randint(0, len(self.texts[s]))])
        if self.each("remove", s, n):
            self.texts[s] = self.texts[s][:n]
        else:  # the rest of the memory is unusable
            self.each("remove", s, 0)
            self.texts[s] = []
        self._ends(s)

    def _ends(self, s: int) -> None:
        assert self.each("_end", s) == len(self.texts[s])
        self.each("first_cut", s)

    def copy(self) -> None:
        source, target = self.random.sample(range(N_SEQUENCES), 2)
        self.each("remove", target, 0)
        n = self.random.randint(0, len(self.texts[source]))
        done = n > 0 and self.each("copy", source, target, n)
        self.texts[target] = self.texts[source][:n] if done else []
        self._ends(target)

    def save(self) -> None:
        s = self.sequence()
        states = self.results(lambda context: context.save_sequence(s))
        self.saved.append(([*self.texts[s]], states))

    def restore(self) -> None:
        if not self.saved:
            return
        s = self.sequence()
        text, states = self.random.choice(self.saved)
        self.each("remove", s, 0)

        def restored(context: Context) -> bool:
            try:
                context.restore_sequence(s, states[self.contexts.index(context)], len(text))
            except BackendError:
                return False
            return True

        real, stand_in = self.results(restored)
        assert stand_in == real
        self.texts[s] = [*text] if real else []

    def cut_out(self) -> None:
        """Cuts tokens out of a text, after removing the other texts: `Context.cut_out` needs cells
        that no other sequence shares."""
        s = self.sequence()
        n = len(self.texts[s])
        if n < 8 or self.contexts[0]._window:
            return
        for other in range(N_SEQUENCES):
            if other != s:
                self.each("remove", other, 0)
                self.texts[other] = []
        start = self.random.randint(1, n - 4)
        stop = self.random.randint(start + 1, n - 2)
        if self.each("cut_out", s, start, stop):
            del self.texts[s][start:stop]
        self._ends(s)

    def checkpoint(self) -> None:
        s = self.sequence()
        if self.contexts[0].is_cuttable or not self.texts[s]:
            return
        states = [
            state for state in self.results(lambda context: context.save(s)) if state is not None
        ]
        assert len(states) == 2
        self.checkpoints[s] = [*self.texts[s]], states

    def rewind(self) -> None:
        s = self.sequence()
        if s not in self.checkpoints:
            return
        text, states = self.checkpoints[s]
        if self.texts[s][: len(text)] != text:
            return
        real, stand_in = self.results(
            lambda context: context.rewind(s, len(text), states[self.contexts.index(context)])
        )
        assert stand_in == real
        self.texts[s] = [*text] if real else []
        self._ends(s)


@pytest.mark.parametrize("seed", range(8))
def test_the_same_operations(kind_and_model: tuple[Kind, Model], unified: bool, seed: int) -> None:
    kind, model = kind_and_model
    n_ctx = 512 if unified else 1024  # with too few cells for all
    options = engine_options(**{**OPTIONS, "ctx_size": n_ctx}, kv_unified=unified, flash_attn="off")
    shape = ModelShape(kind, n_ctx_train=model.n_ctx_train, window=model.n_swa)
    real = Context(model, options, N_SEQUENCES, unified)
    library = LibraryStandIn(shape)
    with installed(lambda: library):
        stand_in = Context(model, options, N_SEQUENCES, unified)
    both = Both(real, stand_in, library, seed)
    for _ in range(N_OPERATIONS):
        both.operate()
    assert len(both.seen.rows) > 10
    real.close()
