"""Which combinations of parameters the default run has."""

from itertools import product

import pytest

from tests.support.covering import covering

ROWS = [dict(zip("abc", row, strict=True)) for row in product(range(7), range(4), range(2))]


def test_every_value_occurs() -> None:
    kept = [ROWS[at] for at in covering(ROWS, 1)]
    assert len(kept) == 7
    assert all({row[name] for row in kept} == {row[name] for row in ROWS} for name in "abc")


def test_every_pair_occurs() -> None:
    kept = [ROWS[at] for at in covering(ROWS, 2)]
    assert len(kept) == 28
    for one, other in ("ab", "ac", "bc"):
        found = {(row[one], row[other]) for row in kept}
        assert found == {(row[one], row[other]) for row in ROWS}


@pytest.mark.parametrize("strength", [1, 2, 3])
def test_few_parameters(strength: int) -> None:
    """With a single parameter, no value can be left out."""
    assert covering([{"a": n} for n in range(5)], strength) == {0, 1, 2, 3, 4}
    assert covering([{"a": 1, "b": 2}], strength) == {0}
