"""The sums that gateways read."""

from specllama.engine.wire.stats import Stats
from specllama.handlers.loads import _rank
from specllama.handlers.running.model_load import ModelLoad


def test_the_load_is_a_sum_over_models() -> None:
    one = Stats(n_prompt=3, n_prompt_cached=1, n_processing=2, n_deferred=1)
    one.n_cells, one.n_cells_running, one.n_tokens_running, one.n_tokens_waiting = 100, 50, 60, 7
    other = Stats(n_processing=1, n_cells=300, n_cells_running=30, n_tokens_running=30)
    rank = _rank([ModelLoad("one", 2, one), ModelLoad("other", 4, other)])
    assert rank == {
        "dp_rank": 0,
        "num_running_reqs": 3,
        "num_waiting_reqs": 1,
        "num_total_reqs": 4,
        "num_used_tokens": 80,
        "num_waiting_uncached_tokens": 7,
        "num_total_tokens": 97,
        "max_total_num_tokens": 400,
        "token_usage": 0.5,
        "gen_throughput": 0,
        "cache_hit_rate": 0.25,
        "utilization": 0.5,
        "max_running_requests": 6,
    }


def test_without_models_there_is_no_load() -> None:
    rank = _rank([])
    assert not any(rank.values())
