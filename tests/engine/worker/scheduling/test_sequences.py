"""Texts that may share cells or proposals with each other."""

import numpy as np

from specllama.engine.worker.generation.adapters import key_of
from specllama.engine.worker.scheduling.sequences import Sequence
from specllama.engine.worker.tokens import TokenBuffer


def sequence(scales: list[tuple[int, float]], owner: int, *, private: bool = False) -> Sequence:
    key = key_of(scales, owner if private else 0)
    tokens = TokenBuffer(np.array([1], np.int32))
    return Sequence(id=1, tokens=tokens, n_prompt=1, key=key, owner=owner)


def test_owners_may_share_cells_but_suggest_nothing_to_each_other() -> None:
    mine, others = sequence([], 7), sequence([], 8)
    assert mine.key == others.key
    assert mine.text_key != others.text_key
    assert sequence([], 7, private=True).text_key == mine.text_key
    assert sequence([], 7, private=True).key != mine.key


def test_texts_of_other_adapters_suggest_nothing() -> None:
    assert sequence([(0, 1.0)], 7).text_key != sequence([], 7).text_key
    assert sequence([(0, 1.0)], 7).text_key == sequence([(0, 1.0)], 7, private=True).text_key
    assert sequence([(0, 1.0)], 7).text_key != sequence([(0, 1.0)], 0).text_key
