"""Which sources there are for which options."""

from pathlib import Path

import pytest

from specllama.engine.errors import BackendError
from specllama.engine.options.tables.speculation import SpeculationOptions, SpeculationType
from specllama.engine.worker.speculation.sources import text_sources
from tests.support.proposals import Running, ask, propose

PERIOD = [*range(50, 100)]


def names(options: SpeculationOptions) -> list[str]:
    return [source.name for source in text_sources(options, 100)]


def test_there_are_those_that_are_wanted() -> None:
    assert names(SpeculationOptions()) == []
    assert names(SpeculationOptions(spec_type=("draft-simple",))) == []
    every: tuple[SpeculationType, ...]
    every = ("ngram-cache", "ngram-mod", "ngram-map-k4v", "ngram-map-k", "ngram-simple", "radix")
    assert names(SpeculationOptions(spec_type=every)) == [*reversed(every)]
    assert names(SpeculationOptions(spec_default=True)) == ["radix", "ngram-mod", "ngram-cache"]


@pytest.mark.parametrize("name", ["ngram-simple", "ngram-map-k", "ngram-map-k4v", "ngram-mod"])
def test_each_has_its_own_sizes(name: str) -> None:
    sizes = {
        "spec_ngram_simple_size_n": 3, "spec_ngram_simple_size_m": 4,
        "spec_ngram_map_k_size_n": 5, "spec_ngram_map_k_size_m": 6,
        "spec_ngram_map_k4v_size_n": 7, "spec_ngram_map_k4v_size_m": 8,
        "spec_ngram_mod_n_match": 9, "spec_ngram_mod_n_max": 10, "spec_ngram_mod_n_min": 0,
    }  # fmt: skip
    prefix = "spec_" + name.replace("-", "_")
    n, m = [size for field, size in sizes.items() if field.startswith(prefix + "_")][:2]
    [source] = text_sources(SpeculationOptions(spec_type=(name,), **sizes), 100)  # type: ignore[arg-type]
    running = Running(source)
    assert propose(running, ask([*PERIOD, 1, *PERIOD[:n]], 99)) == PERIOD[n : n + m]
    running.leave(1)
    assert propose(running, ask([*PERIOD, 1, *PERIOD[: n - 1]], 99, key=((0, 1.0),))) == []


@pytest.mark.parametrize("name", ["ngram-simple", "ngram-map-k", "ngram-map-k4v"])
def test_each_has_its_own_number_of_hits(name: str) -> None:
    hits = {f"spec_{name.replace('-', '_')}_min_hits": 2}
    [source] = text_sources(SpeculationOptions(spec_type=(name,), **hits), 100)  # type: ignore[arg-type]
    running = Running(source)
    assert propose(running, ask([*PERIOD, *PERIOD], 4, id=1)) == []
    assert propose(running, ask([*PERIOD, *PERIOD, *PERIOD], 4, id=2)) == PERIOD[:4]


def test_a_lookup_file_is_for_ngram_cache(tmp_path: Path) -> None:
    path = tmp_path / "damaged"
    path.write_bytes(b"x")
    other = SpeculationOptions(spec_type=("radix",), lookup_cache_static=str(path))
    assert names(other) == ["radix"]
    with pytest.raises(BackendError, match="damaged"):
        names(SpeculationOptions(spec_type=("ngram-cache",), lookup_cache_static=str(path)))
