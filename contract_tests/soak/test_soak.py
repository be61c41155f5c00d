"""Growth is found, and fluctuation is not mistaken for growth."""

import numpy as np
import pytest

from contract_tests.soak.sampling import LATENCY, Samples
from contract_tests.soak.slopes import fit, theil_sen

TIMES = np.arange(0, 1200, 5.0)


def wavering(seed: int) -> np.ndarray[tuple[int, ...], np.dtype[np.float64]]:
    """Returns noise that keeps its direction for a while, as memory does."""
    dice = np.random.default_rng(seed)
    noise = dice.normal(0, 1, len(TIMES))
    for i in range(1, len(noise)):
        noise[i] += 0.8 * noise[i - 1]
    return 100 + noise


def test_a_straight_line_has_its_slope() -> None:
    assert theil_sen(TIMES, 3 + 0.5 * TIMES) == pytest.approx(0.5)


def test_outliers_move_nothing() -> None:
    values = 3 + 0.5 * TIMES
    values[::5] += 1000
    assert theil_sen(TIMES, values) == pytest.approx(0.5, rel=0.2)


@pytest.mark.parametrize("seed", range(5))
def test_a_leak_grows_and_wavering_does_not(seed: int) -> None:
    flat = fit(TIMES.tolist(), wavering(seed).tolist(), 1800)
    leak = fit(TIMES.tolist(), (wavering(seed) + 0.02 * TIMES).tolist(), 1800)
    assert flat is not None
    assert leak is not None
    assert not flat.grows(10)
    assert leak.grows(10)
    assert not leak.grows(100), "the growth is within the margin"
    assert leak.low < 0.02 < leak.high


def test_too_few_points_are_no_slope() -> None:
    assert fit([1.0, 2.0], [1.0, 2.0], 10) is None


def test_many_points_are_thinned() -> None:
    times = np.arange(5000, dtype=float)
    slope = fit(times.tolist(), (2 * times).tolist(), 5000)
    assert slope is not None
    assert slope.value == pytest.approx(2)


def grown(what: str, per_sample: float) -> list[str]:
    seconds = 0.0
    samples = Samples(now=lambda: seconds)
    for number in range(300):
        seconds = number * 5.0
        samples.add("server", what, 100 + per_sample * number)
    return [each.what for each in samples.findings() if each.grows]


@pytest.mark.parametrize(
    ("what", "per_sample", "is_reported"),
    [
        ("RSS, MiB", 1.0, True),
        ("RSS, MiB", 0.01, False),
        ("descriptors", 0.1, True),
        ("threads", -1.0, False),
        (LATENCY, 1.0, True),
        (LATENCY, 0.1, False),
    ],
)
def test_growth_beyond_the_margin(what: str, per_sample: float, is_reported: bool) -> None:
    assert grown(what, per_sample) == ([what] if is_reported else [])


def test_growth_during_the_warm_up_does_not_count() -> None:
    seconds = 0.0
    samples = Samples(now=lambda: seconds)
    for number in range(300):
        seconds = number * 5.0
        samples.add("server", "RSS, MiB", min(number, 90) * 10.0)
    [finding] = samples.findings()
    assert not finding.grows
    assert finding.row().startswith("| server | RSS, MiB | 900.0 |")


def test_growth_within_the_margin_is_not_called_flat() -> None:
    seconds = 0.0
    samples = Samples(now=lambda: seconds)
    for number in range(300):
        seconds = number * 5.0
        samples.add("server", "RSS, MiB", 100 + 0.05 * number)
        samples.add("server", "threads", 5)
    rss, threads = samples.findings()
    assert (rss.grows, rss.verdict) == (False, "grows within the margin")
    assert (threads.grows, threads.verdict) == (False, "flat")


def test_series_with_too_few_samples_are_reported() -> None:
    seconds = 0.0
    samples = Samples(now=lambda: seconds)
    for number in range(300):
        seconds = number * 5.0
        samples.add("server", "threads", 5)
        if number > 297:
            samples.add("sleeper", "threads", 5)
    assert [each.who for each in samples.findings()] == ["server"]
    assert samples.unjudged == ["threads of sleeper (2 samples)"]
