"""Batches from processes of their own."""

import time
from contextlib import closing
from dataclasses import replace

import numpy as np
import pytest

from tools.models.training.supply import STRIDE, Pool, supply

pytestmark = pytest.mark.slow

POOL = Pool(seed=1, first=0, size=60_000, level=0.2, n_ctx=4096)


def test_pools_are_made_in_their_order() -> None:
    asked = [replace(POOL, first=i * STRIDE) for i in range(3)]
    new = []
    with closing(supply(iter(asked), 2)) as made:
        for pool, batches in made:
            if pool in new:
                time.sleep(0.1)
                continue
            new.append(pool)
            for batch, same in zip(batches, pool.made(), strict=True):
                assert np.array_equal(batch.tokens, same.tokens)
                assert np.array_equal(batch.parts, same.parts)
    assert new == asked
