"""Proposals from texts with the same beginning."""

from hypothesis import given
from hypothesis import strategies as st

from specllama.engine.worker.cache.texts import OWNER, Key
from specllama.engine.worker.speculation.known_texts import (
    MIN_TOKENS,
    N_AGAIN,
    KnownTexts,
    Radix,
    RadixState,
)
from tests.support.proposals import STEPS, Running, ask, growing, propose, texts

LEAD = list(range(100, 100 + MIN_TOKENS))
"""So long that all texts are kept."""
KEYS: list[Key] = [((OWNER, 1.0),), ((OWNER, 2.0),), ((0, 0.5), (OWNER, 1.0))]


def keep(source: Running[RadixState], text: list[int], key: Key = ()) -> None:
    source.propose([ask(text, id=1000, key=key)])
    source.leave(1000)


def test_the_same_beginning_goes_on_the_same() -> None:
    source = Running(Radix())
    keep(source, [*LEAD, 1, 2, 3, 4, 5])
    assert propose(source, ask([*LEAD, 1], 3)) == [2, 3, 4]
    assert propose(source, ask([*LEAD, 1, 2, 3], 3)) == [4, 5]
    assert propose(source, ask([*LEAD, 1, 2, 3, 4, 5], 3)) == []
    assert propose(source, ask([*LEAD[:-1], 9], 3, id=2)) == []


def test_of_several_texts_the_one_used_last_is_followed_as_long_as_it_agrees() -> None:
    source = Running(Radix())
    keep(source, [*LEAD, 1, 2, 7, 7, 7])
    keep(source, [*LEAD, 1, 2, 3, 4, 5])
    keep(source, [*LEAD, 6, 6, 6])
    assert propose(source, ask([*LEAD], 2)) == [6, 6]
    assert propose(source, ask([*LEAD, 1], 2)) == [2, 3]
    assert propose(source, ask([*LEAD, 1, 2, 7], 2)) == [7, 7]
    keep(source, [*LEAD, 1, 2, 7, 7, 8, 8])
    assert propose(source, ask([*LEAD, 1, 2, 7, 7], 2)) == [7]
    assert propose(source, ask([*LEAD, 1, 2, 7, 7, 8], 2)) == [8]


def test_a_text_that_went_another_way_is_followed_again() -> None:
    source = Running(Radix())
    text = list(range(200, 240))
    keep(source, [*LEAD, *text])
    sequence = ask([*LEAD, *text[:10]], 4)
    assert propose(source, sequence) == text[10:14]
    changed = [1, 2, 3, *text[12 : 12 + N_AGAIN]]
    for token in changed[:-1]:
        sequence.tokens.append(token)
        assert propose(source, sequence) == []
    sequence.tokens.append(changed[-1])
    there = 12 + N_AGAIN
    assert propose(source, sequence) == text[there : there + 4]
    sequence.tokens.append(text[there])
    assert propose(source, sequence) == text[there + 1 : there + 5]


@given(st.lists(st.tuples(texts(), st.sampled_from(KEYS)), max_size=4), texts(), STEPS)
def test_only_texts_of_the_key_are_proposed_and_of_the_same_beginning_if_there_is_one(
    kept: list[tuple[list[int], Key]], text: list[int], steps: list[int]
) -> None:
    source = Running(Radix())
    for each, key in kept:
        keep(source, [*LEAD, *each], key)
    key = KEYS[0]
    allowed = [[*LEAD, *each] for each, of in kept if of == key]
    for buffer in growing([*LEAD, *text], steps):
        found = propose(source, ask(buffer, 5, key=key))
        known = [*LEAD, *text][: len(buffer)]
        goes_on = [
            each[len(known) : len(known) + 5]
            for each in allowed
            if each[: len(known)] == known and len(each) > len(known)
        ]
        if found:
            parts = [each[i : i + len(found)] for each in allowed for i in range(len(each))]
            assert found in parts
        elif goes_on:
            raise AssertionError("it is known what follows")


@given(st.lists(texts(), min_size=1, max_size=4), STEPS, st.integers(0, 3))
def test_a_naive_search_finds_the_same_where_texts_begin_alike(
    kept: list[list[int]], steps: list[int], which: int
) -> None:
    """A sequence that is one of the texts from its beginning to its end."""
    source = Running(Radix())
    for each in kept:
        keep(source, [*LEAD, *each])
    text = [*LEAD, *kept[which % len(kept)]]
    for buffer in growing(text, steps):
        known = text[: len(buffer)]
        found = propose(source, ask(buffer, 50))
        goes_on = [
            [*LEAD, *each][len(known) :] for each in kept if [*LEAD, *each][: len(known)] == known
        ]
        assert not any(goes_on) or found in [rest[:50] for rest in goes_on if rest]


@given(st.lists(texts(), max_size=3), texts(), STEPS)
def test_the_same_history_has_the_same_proposals(
    kept: list[list[int]], text: list[int], steps: list[int]
) -> None:
    def proposals() -> list[list[int]]:
        source = Running(Radix())
        for each in kept:
            keep(source, [*LEAD, *each])
        return [propose(source, ask(buffer)) for buffer in growing([*LEAD, *text], steps)]

    assert proposals() == proposals()


def test_a_context_shift_is_another_text() -> None:
    source = Running(Radix())
    keep(source, [*LEAD, 1, 2, 3, 4, 5, 6])
    sequence = ask([*LEAD, 1, 2, 3], 3)
    assert propose(source, sequence) == [4, 5, 6]
    sequence.tokens.remove(2, 4)
    for token in range(10):
        assert propose(source, sequence) == []
        sequence.tokens.append(token)
    source.leave(1)
    assert propose(source, ask([*LEAD[:2], *LEAD[4:], 1, 2, 3], 3)) == [0, 1, 2]


def test_memory_is_bounded() -> None:
    texts = KnownTexts(max_texts=8, max_tokens=1000)
    source = Running(Radix(texts))
    for id in range(100):
        source.propose([ask([id, *LEAD, *range(id)], id=id)])
        source.leave(id)
        source.leave(id)
        assert len(texts) <= 8
        assert texts.n_tokens <= 1000
    source.source.close()
    assert len(texts) == 0
