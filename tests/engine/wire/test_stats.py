"""Values that are computed from the counts of an engine process."""

from specllama.engine.wire.stats import Stats


def test_only_running_texts_use_the_cache() -> None:
    assert Stats(n_cells=200, n_cells_used=150, n_cells_running=50).cache_usage() == 0.25
    assert Stats().cache_usage() == 0.0


def test_the_throughput_is_that_of_the_running_requests() -> None:
    stats = Stats(n_processing=3)
    assert stats.tokens_per_second() == 0.0
    for seconds in (0.25, 0.75):
        stats.inter_token.observe(seconds)
    assert stats.tokens_per_second() == 6.0
