"""Kept texts against a list of them."""

import numpy as np
import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from specllama.engine.worker.cache.texts import Key
from specllama.engine.worker.speculation.known_texts import KnownTexts
from specllama.engine.worker.tokens import TokenArray

pytestmark = pytest.mark.slow

KEYS: list[Key] = [(), ((0, 1.0),), ((0, 1.0), (-1, 5.0))]
TOKENS = st.lists(st.integers(0, 2), max_size=6)
MAX_TEXTS, MAX_TOKENS = 6, 20


def array(tokens: list[int]) -> TokenArray:
    return np.array(tokens, np.int32)


class TextsMachine(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.texts = KnownTexts(MAX_TEXTS, MAX_TOKENS)
        self.model: list[tuple[Key, list[int]]] = []  # the least recently used first

    @property
    def held(self) -> list[tuple[Key, list[int]]]:
        return [(key, text.tolist()) for key, text in self.texts]

    @rule(tokens=TOKENS, key=st.sampled_from(KEYS))
    def add(self, tokens: list[int], key: Key) -> None:
        given = array(tokens)
        self.texts.add(given, key)
        given[:] = 99  # it is a copy
        covering = self.beginning(tokens, key) if tokens else []
        if covering:
            used = self.held[-1]
            assert used in covering
            self.model.remove(used)
            self.model.append(used)
        elif tokens:
            self.model = [
                each for each in self.model if each[0] != key or tokens[: len(each[1])] != each[1]
            ]
            self.model.append((key, tokens))
        while len(self.model) > MAX_TEXTS or sum(len(text) for _, text in self.model) > MAX_TOKENS:
            del self.model[0]

    def beginning(self, tokens: list[int], key: Key) -> list[tuple[Key, list[int]]]:
        return [each for each in self.model if each[0] == key and each[1][: len(tokens)] == tokens]

    @rule(tokens=TOKENS.filter(bool), key=st.sampled_from(KEYS))
    def find(self, tokens: list[int], key: Key) -> None:
        found = [text.tolist() for text in self.texts.beginning(array(tokens), key)]
        beginning = self.beginning(tokens, key)
        wanted = [text for _, text in reversed(beginning) if len(text) > len(tokens)]
        assert found == wanted
        if wanted:
            self.model.remove((key, wanted[0]))
            self.model.append((key, wanted[0]))

    @rule()
    def clear(self) -> None:
        self.texts.clear()
        self.model = []

    @invariant()
    def is_bounded(self) -> None:
        assert self.held == self.model
        assert len(self.texts) == len(self.model) <= MAX_TEXTS
        assert self.texts.n_tokens == sum(len(text) for _, text in self.model) <= MAX_TOKENS


TestTexts = TextsMachine.TestCase


def test_the_least_recently_used_text_goes() -> None:
    texts = KnownTexts(max_texts=2)
    texts.add(array([1, 1]), ())
    texts.add(array([2, 2]), ())
    assert [text.tolist() for text in texts.beginning(array([1]), ())] == [[1, 1]]
    texts.add(array([3, 3]), ())
    assert [len(texts.beginning(array([token]), ())) for token in (1, 2, 3)] == [1, 0, 1]


def test_a_version_changes_with_new_texts_of_the_key() -> None:
    texts = KnownTexts()
    before = texts.version(())
    texts.add(array([1]), KEYS[1])
    assert texts.version(()) == before
    texts.add(array([1]), ())
    assert texts.version(()) > before


def test_a_text_too_long_is_not_kept() -> None:
    texts = KnownTexts(max_tokens=3)
    texts.add(array([1, 2, 3]), ())
    texts.add(array([2, 2, 3, 4]), ())
    assert (len(texts), texts.n_tokens) == (1, 3)
