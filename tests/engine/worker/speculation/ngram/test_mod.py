"""ngram-mod against a plain map of n-grams."""

from hypothesis import given
from hypothesis import strategies as st

from specllama.engine.worker.cache.texts import OWNER
from specllama.engine.worker.speculation.ngram.mod import NgramMod
from tests.support.proposals import STEPS, Running, ask, growing, propose, texts


def learn(known: dict[tuple[int, ...], int], text: list[int], n: int) -> None:
    known |= {tuple(text[i : i + n]): text[i + n] for i in range(len(text) - n)}


def drafted(known: dict[tuple[int, ...], int], text: list[int], match: int, n: int) -> list[int]:
    found: list[int] = []
    while len(text) >= match and len(found) < n:
        token = known.get(tuple([*text, *found][-match:]))
        if token is None:
            break
        found.append(token)
    return found


@given(
    st.lists(texts(), min_size=1, max_size=3),
    STEPS,
    st.integers(1, 4),
    st.integers(0, 6),
    st.integers(0, 6),
    st.integers(0, 9),
)
def test_the_continuation_in_any_text(
    several: list[list[int]], steps: list[int], match: int, n_max: int, n_min: int, n: int
) -> None:
    source = Running(NgramMod(match, n_max, n_min))
    known: dict[tuple[int, ...], int] = {}
    for id, text in enumerate(several):
        for buffer in growing(text, steps):
            learn(known, text[: len(buffer)], match)
            wanted = drafted(known, text[: len(buffer)], match, min(n, n_max))
            if len(wanted) < min(n, n_max, n_min):
                wanted = []
            assert propose(source, ask(buffer, n, id=id)) == wanted
        source.leave(id)


def test_texts_of_other_keys_are_not_proposed() -> None:
    source = Running(NgramMod(2, 8, 1))
    mine, others = ((OWNER, 1.0),), ((OWNER, 2.0),)
    source.propose([ask([1, 2, 3, 4, 5, 6], id=1, key=mine)])
    assert propose(source, ask([1, 2], id=2, key=others)) == []
    assert propose(source, ask([1, 2], id=3)) == []
    assert propose(source, ask([1, 2], id=4, key=mine)) == [3, 4, 5, 6]


def test_memory_is_bounded() -> None:
    source = NgramMod(2, 8, 1, max_young=100, max_ngrams=1000)
    running = Running(source)
    for owner in range(1, 30):
        for id in range(10):
            text = [owner, *range(100 * id, 100 * id + 60)]
            running.propose([ask(text, id=id, key=((OWNER, float(owner)),))])
            assert len(source) <= 1000
            running.leave(id)
    newest = ((OWNER, 29.0),)
    assert propose(running, ask([930, 931], 4, key=newest)) == [932, 933, 934, 935]
    assert propose(running, ask([30, 31], 4, id=2, key=newest)) == []
    source.close()
    assert len(source) == 0


def test_a_context_shift() -> None:
    source = Running(NgramMod(2, 8, 1))
    shifted = ask([*range(40), 1, 2], 4)
    assert propose(source, shifted) == [3, 4, 5, 6]
    shifted.tokens.remove(1, 30)
    assert propose(source, shifted) == [3, 4, 5, 6]
    shifted.tokens.append(30)
    assert propose(source, shifted) == []
