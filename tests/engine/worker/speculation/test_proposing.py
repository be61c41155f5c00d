"""Which source is heard, for how many tokens, and what it learns of them."""

from collections.abc import Sequence

from engine.worker.scheduling.sequences import Chunk
from engine.worker.speculation.pace import Pace
from engine.worker.speculation.proposing import Proposing, Wish
from engine.worker.speculation.source import Ask
from tests.support.scheduling import sequence
from tests.support.speculating import Eager


class Known:
    """Proposes `tokens` whenever it is asked."""

    def __init__(self, name: str, tokens: list[int]) -> None:
        self.name, self.tokens = name, tokens
        self.asks: list[Ask] = []
        self.told: list[tuple[int, int, int]] = []
        self.forgotten: list[int] = []

    def propose(self, asks: Sequence[Ask]) -> list[list[int]]:
        self.asks += asks
        return [self.tokens[: ask.n] for ask in asks]

    def verified(self, id: int, n_proposed: int, n_accepted: int) -> None:
        self.told.append((id, n_proposed, n_accepted))

    def forget(self, id: int) -> None:
        self.forgotten.append(id)

    def close(self) -> None:
        pass


def eager() -> Pace:
    return Eager(0.0, 64)


def test_the_first_source_that_knows_something_is_heard() -> None:
    silent, first, second = Known("a", []), Known("b", [4, 5]), Known("c", [6])
    text = sequence(1, [1, 2])
    proposing = Proposing([silent, first, second], eager())
    proposing.propose([Wish(text, 3, p_min=0.5)], 1)
    assert text.proposed == (4, 5)
    assert text.n_forced == 0
    assert [(ask.id, ask.n, ask.p_min) for ask in first.asks] == [(1, 3, 0.5)]
    assert silent.asks
    assert not second.asks
    proposing.verified(Chunk(text, 1, 2, (4, 5)), 1, is_refuted=True)
    assert first.told == [(1, 2, 1)]
    assert not silent.told
    proposing.forget(1)
    assert [each.forgotten for each in (silent, first, second)] == [[1], [1], [1]]


def test_what_a_constraint_forces_comes_instead() -> None:
    source = Known("a", [4, 5])
    text = sequence(1, [1, 2])
    proposing = Proposing([source], eager())
    proposing.propose([Wish(text, 0, forced=[7, 8], likely=[9])], 1)
    assert (text.proposed, text.n_forced) == ((7, 8, 9), 2)
    assert not source.asks
    proposing.verified(Chunk(text, 1, 2, text.proposed, 2), 3, is_refuted=False)
    assert not source.told
    proposing.propose([Wish(text, 0)], 1)
    assert not text.proposed, "none are wanted"


def test_a_source_keeps_its_limits() -> None:
    source = Known("a", [4, 5, 6, 7])
    text = sequence(1, [1, 2])
    Proposing([source], eager(), limits={"a": (0, 2)}).propose([Wish(text, 9)], 1)
    assert text.proposed == (4, 5)
    Proposing([source], eager(), limits={"a": (5, 9)}).propose([Wish(text, 9)], 1)
    assert not text.proposed, "fewer are of no use"


def test_a_costly_source_is_not_asked_for_what_is_not_worth_it() -> None:
    seconds = iter(range(1000))
    source = Known("a", [4, 5, 6, 7])
    text = sequence(1, [1, 2])
    proposing = Proposing([source], Pace(0.0, 64), clock=lambda: float(next(seconds)))
    for _ in range(200):
        proposing.propose([Wish(text, 4)], 1)
        proposing.verified(Chunk(text, 1, 2, text.proposed), 0, is_refuted=True)
        proposing.observe(1, len(text.proposed), 0.01)
    assert len(source.asks) < 30
