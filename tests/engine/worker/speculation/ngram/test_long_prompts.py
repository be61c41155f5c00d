"""A prompt that is indexed in several steps: nothing is proposed until all of it is."""

from collections.abc import Callable

import numpy as np
import pytest

from specllama.engine.worker.speculation.ngram.cache import NgramCache
from specllama.engine.worker.speculation.ngram.index import MAX_NEW
from specllama.engine.worker.speculation.ngram.lookup import NgramMapK, NgramMapK4V, NgramSimple
from specllama.engine.worker.speculation.ngram.mod import NgramMod
from specllama.engine.worker.speculation.source import AnySource
from tests.support.proposals import Running, ask, propose

SOURCES: dict[str, Callable[[], AnySource]] = {
    "ngram-simple": lambda: NgramSimple(12, 48, 1),
    "ngram-map-k": lambda: NgramMapK(12, 48, 1),
    "ngram-map-k4v": lambda: NgramMapK4V(12, 48, 1),
    "ngram-mod": lambda: NgramMod(24, 64, 48),
    "ngram-cache": NgramCache,
}


@pytest.mark.parametrize("name", SOURCES)
def test_several_steps(name: str) -> None:
    source = Running(SOURCES[name]())
    text = np.random.default_rng(1).integers(0, 30_000, 10 * MAX_NEW).tolist()
    text += text[500:600]
    sequence = ask(text, 8)
    for _ in range(10):
        assert propose(source, sequence) == []
    assert propose(source, sequence) == text[600:608]
    sequence.tokens.append(text[600])
    assert propose(source, sequence) == text[601:609]
