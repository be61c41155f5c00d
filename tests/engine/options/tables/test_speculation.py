"""Acceptance that is made up: which rates go with which sources."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from specllama.engine.options import OptionError
from specllama.engine.options.tables.speculation import rates_of, read_rates, show_rates
from specllama.handlers.options import parse

SOURCE = ("--spec-type", "ngram-mod", "--spec-ngram-mod-n-max", "4")


def rates(*argv: str) -> tuple[float, ...]:
    return parse([*argv], {}).model.engine.speculation.synthetic_rates(has_draft=False)


@given(st.integers(1, 80).flatmap(lambda n: st.tuples(st.just(n), st.floats(1, n + 1))))
def test_a_step_gives_that_many_tokens(given: tuple[int, float]) -> None:
    n, length = given
    found = rates_of(length, (), n)
    assert len(found) == n
    assert 1 + sum(found) == pytest.approx(length, abs=1e-6)
    assert all(0 <= rate <= 1 for rate in found)
    assert [*found] == sorted(found, reverse=True)


def test_rates_are_read_and_shown() -> None:
    assert read_rates(" 0.75, .5,0.25,0 ") == (0.75, 0.5, 0.25, 0.0)
    assert show_rates((0.75, 0.5, 0.0)) == "0.75,0.5,0.0"
    assert rates(*SOURCE, "--spec-synth-rates", "1,0.5,0.5,0") == (1.0, 0.5, 0.5, 0.0)
    assert rates(*SOURCE, "--spec-synth-len", "5") == (1.0,) * 4
    assert rates(*SOURCE, "--spec-synth-len", "1") == pytest.approx((0.0,) * 4, abs=1e-9)
    assert rates(*SOURCE) == ()


def test_those_of_the_source_that_proposes_most_count() -> None:
    more = ("--spec-type", "ngram-simple", "--spec-ngram-simple-size-m", "2")
    assert len(rates(*SOURCE, *more, "--spec-synth-len", "2")) == 4
    drafting = parse([*SOURCE, "--spec-draft-n-max", "9"], {}).model.engine.speculation
    assert drafting.n_max(has_draft=True) == 9
    assert drafting.n_max(has_draft=False) == 4


@pytest.mark.parametrize(
    ("argv", "error"),
    [
        (["--spec-synth-len", "2"], "it needs --spec-type"),
        (["--spec-type", "draft-simple", "--spec-synth-rates", "0.5"], "it needs --spec-type"),
        (["--spec-type", "none", "--spec-synth-rates", "0.5"], "it needs --spec-type"),
        (
            [*SOURCE, "--spec-synth-rates", "0.5,0.4"],
            "has 2 rates, but it needs one for each of the up to 4",
        ),
        ([*SOURCE, "--spec-synth-rates", "0.5,0.6,0,0"], "higher than the one before"),
        ([*SOURCE, "--spec-synth-rates", "1.1,1,1,1"], "out of range"),
        ([*SOURCE, "--spec-synth-rates", "1,1,1,-1"], "out of range"),
        ([*SOURCE, "--spec-synth-rates", "1,1,,1"], "not a number"),
        ([*SOURCE, "--spec-synth-rates", "1,nan,1,1"], "not a number"),
        ([*SOURCE, "--spec-synth-rates", ""], "not a number"),
        ([*SOURCE, "--spec-synth-len", "5.01"], "a step generates at most 5"),
        ([*SOURCE, "--spec-synth-len", "0.9"], "1 or more"),
        ([*SOURCE, "--spec-synth-len", "-1"], "1 or more"),
        ([*SOURCE, "--spec-synth-len", "inf"], "not a number"),
        ([*SOURCE, "--spec-synth-len", "2", "--spec-synth-rates", "1,1,1,1"], "exclude"),
    ],
)
def test_contradicting_options_are_rejected(argv: list[str], error: str) -> None:
    with pytest.raises(OptionError, match=error):
        parse(argv, {})


def test_a_draft_model_of_a_repository_is_a_source() -> None:
    repository = ("-hf", "some/model", "-hfd", "some/draft", "--spec-draft-n-max", "3")
    options = parse([*repository, "--spec-synth-rates", "0.5,0.5,0.5"], {})
    assert options.model.engine.speculation.spec_synth_rates == (0.5,) * 3
    with pytest.raises(OptionError, match="up to 3 tokens"):
        parse([*repository, "--spec-synth-rates", "0.5"], {})
