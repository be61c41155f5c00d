"""Histories from seeds: none fails, each can be played again, and mutants are found."""

import os
import subprocess
import sys

import pytest

from tests.simulation.history import History
from tests.simulation.mutant import FINDS
from tests.simulation.mutants import MUTANTS

pytestmark = [pytest.mark.slow]

N_SEEDS = 20
IN_SHORT = (
    "a text is shared between keys",
    "a copy has a token too many",
)
"""Mutants that the first seeds find; `--mutants` tries all of them."""


@pytest.mark.parametrize("first", range(0, N_SEEDS, 10))
def test_no_history_fails(first: int) -> None:
    for seed in range(first, first + 10):
        history = History(seed)
        history.run()
        assert history.requests.n >= 8


WHOLE = 1107
"""The seed of a history of the whole application."""


def story(hash_seed: int, seed: int = 4) -> list[str]:
    """Returns the output of a separate process for a history; the last line has its speed."""
    done = subprocess.run(
        [sys.executable, "-m", "tests.simulation", "--seed", str(seed)],
        env={**os.environ, "PYTHONHASHSEED": str(hash_seed)},
        capture_output=True,
        check=True,
        text=True,
    )
    return done.stdout.splitlines()[:-1]


def test_a_history_is_played_again() -> None:
    first = story(1)
    assert len(first) > 100
    assert story(2) == first


def test_a_history_is_the_same_after_others() -> None:
    for seed in (3, 4):
        history = History(seed)
        history.run()
    assert history.story == story(1)


def test_a_history_of_the_whole_application_is_the_same_after_another() -> None:
    """Schemas that the first history has compiled are cached in the second one."""
    for _ in range(2):
        history = History(WHOLE)
        history.run()
    assert history.has_http
    assert history.story == story(1, WHOLE)


@pytest.mark.parametrize("words", IN_SHORT)
def test_a_mutant_is_found(words: str) -> None:
    (mutant,) = [mutant for mutant in MUTANTS if mutant.name == words]
    assert mutant.first_seed(range(FINDS)) is not None


def test_mutants_are_distinct() -> None:
    assert len({mutant.name for mutant in MUTANTS}) == len(MUTANTS) >= 40
