"""Checkpoints of texts."""

import numpy as np

from engine.worker.cache.checkpoints import Checkpoints


def test_what_copies_share_counts_once() -> None:
    checkpoints = Checkpoints(4)
    assert checkpoints.n_bytes == 0
    checkpoints.add(1, 10, np.zeros(100, np.uint8))
    checkpoints.add(1, 20, np.zeros(50, np.uint8))
    checkpoints.inherit(1, 2, 20)
    assert checkpoints.n_bytes == 150
    checkpoints.cut(1, 0)
    assert checkpoints.n_bytes == 150
    checkpoints.cut(2, 10)
    assert checkpoints.n_bytes == 100
