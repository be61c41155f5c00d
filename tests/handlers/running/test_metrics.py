"""The counters, and their form for Prometheus."""

import math
from typing import get_args

import pytest
from hypothesis import given
from hypothesis import strategies as st
from prometheus_client import REGISTRY
from prometheus_client.parser import text_string_to_metric_families

from specllama.engine.wire.devices import DeviceMemory
from specllama.engine.wire.stats import WAIT_BOUNDS, Histogram, MissReason, Stats
from specllama.handlers.metrics import without_other_keys
from specllama.handlers.running.metrics import Metrics

DOCUMENTED = {
    "prompt_tokens_total",
    "tokens_predicted_total",
    "prompt_tokens_seconds",
    "predicted_tokens_seconds",
    "kv_cache_usage_ratio",
    "kv_cache_tokens",
    "requests_processing",
    "requests_deferred",
    "n_tokens_max",
}


def samples(text: bytes) -> dict[str, float]:
    """Values by name and labels."""
    found: dict[str, float] = {}
    for family in text_string_to_metric_families(text.decode()):
        for sample in family.samples:
            labels = ",".join(f"{k}={v}" for k, v in sorted(sample.labels.items()))
            name = f"{sample.name}{{{labels}}}" if labels else sample.name
            assert name not in found
            found[name] = sample.value
    return found


@given(st.lists(st.floats(0, 100)))
def test_a_histogram_counts_as_prometheus_does(values: list[float]) -> None:
    histogram = Histogram.of(WAIT_BOUNDS)
    for value in values:
        histogram.observe(value)
    naive = [sum(value <= bound for value in values) for bound in (*WAIT_BOUNDS, math.inf)]
    assert histogram.cumulative() == naive
    assert histogram.count == len(values)
    assert histogram.total == pytest.approx(sum(values))


def test_all_documented_names_are_there_and_nothing_global() -> None:
    before = set(REGISTRY._names_to_collectors)
    text, kind = Metrics().render("m", {"m": Stats()})
    assert kind.startswith("text/plain; version=0.0.4")
    assert {f"llamacpp:{name}" for name in DOCUMENTED} <= samples(text).keys()
    assert not [name for name in samples(text) if name.endswith("_created")]
    assert set(REGISTRY._names_to_collectors) == before


def test_averages_begin_anew_after_each_scrape() -> None:
    metrics = Metrics()

    def scrape(n_prompt: int, seconds: float, steps: list[float], n_decode: int) -> list[float]:
        stats = Stats(n_prompt=n_prompt, prompt_seconds=seconds, n_decode=n_decode)
        for value in steps:
            stats.inter_token.observe(value)
        found = samples(metrics.render("m", {"m": stats})[0])
        return [found[f"llamacpp:{name}_tokens_seconds"] for name in ("prompt", "predicted")]

    assert scrape(100, 2.0, [0.5, 0.5], 3) == [50, 2]
    assert scrape(100, 2.0, [0.5, 0.5], 3) == [0, 0]
    assert scrape(130, 5.0, [0.5, 0.5, 0.25], 4) == [10, 4]
    # A new engine process begins with 0.
    assert scrape(10, 1.0, [0.125], 2) == [10, 8]


def test_gauges_and_histograms() -> None:
    stats = Stats(n_cells=200, n_cells_used=50, n_busy=30, n_decode=10, n_tokens_max=7)
    stats.n_processing, stats.n_deferred = 2, 1
    stats.queue.observe(0.02)
    stats.queue.observe(1000)
    metrics = Metrics()
    metrics.observe_request("create_completion", 200, 0.3)
    metrics.observe_request("create_completion", 400, 0.001)
    found = samples(metrics.render("m", {"m": stats})[0])
    assert found["llamacpp:kv_cache_usage_ratio"] == 0.25
    assert found["llamacpp:n_busy_slots_per_decode"] == 3
    assert found["llamacpp:requests_processing"] == 2
    assert found["llamacpp:requests_deferred"] == 1
    assert found["llamacpp:n_tokens_max"] == 7
    assert found["specllama_request_queue_seconds_bucket{le=0.025}"] == 1
    assert found["specllama_request_queue_seconds_bucket{le=+Inf}"] == 2
    assert found["specllama_request_queue_seconds_sum"] == pytest.approx(1000.02)
    name = "specllama_request_duration_seconds"
    assert found[f"{name}_count{{operation=create_completion,status=200}}"] == 1
    assert found[f"{name}_bucket{{le=0.25,operation=create_completion,status=200}}"] == 0
    assert found[f"{name}_bucket{{le=0.5,operation=create_completion,status=200}}"] == 1


def test_computed_tokens_have_their_reasons() -> None:
    stats = Stats(n_prompt_missed={"key": 5, "new": 2, "none": 1}, n_prompt_from_files=7)

    def computed(stats: Stats) -> dict[str, float]:
        found = samples(Metrics().render("m", {"m": stats})[0])
        assert found["specllama_prompt_tokens_from_files_total"] == 7
        name = "specllama_prompt_tokens_computed_total{reason="
        return {key[len(name) : -1]: n for key, n in found.items() if key.startswith(name)}

    all_reasons = computed(stats)
    assert all_reasons.keys() == {*get_args(MissReason), "none"}
    assert {reason: n for reason, n in all_reasons.items() if n} == stats.n_prompt_missed
    shown = computed(without_other_keys(stats))
    assert (shown["key"], shown["new"], shown["none"]) == (0, 7, 1)
    assert stats.n_prompt_missed["key"] == 5


def test_each_replica_has_its_own_series() -> None:
    parts = {
        "one": Stats(n_prompt=10, n_predicted=3, n_processing=2, report_age=0.5),
        "two": Stats(n_prompt=5, n_deferred=4, n_cells=100, n_cells_running=25, n_cells_used=90),
    }
    every = {"m": Stats(n_prompt=15, replicas=parts), "plain": Stats()}
    found = samples(Metrics().render("m", every)[0])
    assert found["llamacpp:prompt_tokens_total"] == 15
    series = {key: n for key, n in found.items() if key.startswith("specllama_replica_")}
    shown = {key.removeprefix("specllama_replica_"): n for key, n in series.items() if n}
    assert shown == {
        "prompt_tokens_total{model=m,replica=one}": 10,
        "prompt_tokens_total{model=m,replica=two}": 5,
        "tokens_predicted_total{model=m,replica=one}": 3,
        "requests_running{model=m,replica=one}": 2,
        "requests_waiting{model=m,replica=two}": 4,
        "kv_cache_usage_ratio{model=m,replica=two}": 0.9,
        "report_age_seconds{model=m,replica=one}": 0.5,
    }
    assert len(series) == 2 * 9
    assert b"replica" not in Metrics().render("m", {"m": Stats()})[0]


def test_two_servers_count_apart() -> None:
    one, other = Metrics(), Metrics()
    one.observe_request("tokenize", 200, 0.1)
    assert b"tokenize" in one.render("m", {"m": Stats()})[0]
    assert b"tokenize" not in other.render("m", {"m": Stats()})[0]


def test_the_memory_of_a_process_is_listed_by_kind() -> None:
    stats = Stats(
        n_bytes_cache_ram=1, n_bytes_checkpoints=2, n_bytes_constraints=3, n_bytes_resident=4
    )
    found = samples(Metrics().render("m", {"m": stats})[0])
    names = ("cache_ram", "checkpoint", "constraint", "engine_resident")
    assert [found[f"specllama_{name}_bytes"] for name in names] == [1, 2, 3, 4]


def test_the_time_without_a_decode_is_added_up() -> None:
    found = samples(Metrics().render("m", {"m": Stats(idle_seconds=1.5)})[0])
    assert found["specllama_device_idle_seconds_total"] == 1.5


def test_the_memory_of_devices_is_listed() -> None:
    stats = Stats(devices=[DeviceMemory("GPU0", free=1, total=3)])
    found = samples(Metrics().render("m", {"m": stats})[0])
    assert found["specllama_device_memory_free_bytes{device=GPU0}"] == 1
    assert found["specllama_device_memory_bytes{device=GPU0}"] == 3
    assert b"specllama_device_memory" not in Metrics().render("m", {"m": Stats()})[0]


def test_gauges_of_gateways_have_a_series_for_each_model() -> None:
    one = Stats(n_processing=2, n_deferred=1, n_cells=64, n_cells_running=16, n_tokens_running=40)
    one.n_tokens_waiting, one.n_preempted, one.n_refused = 70, 3, 2
    found = samples(Metrics().render("one", {"one": one, "other": Stats()})[0])
    assert found["vllm:num_requests_running{model_name=one}"] == 2
    assert found["vllm:num_requests_waiting{model_name=one}"] == 1
    assert found["vllm:kv_cache_usage_perc{model_name=one}"] == 0.25
    size = "block_size=16,model_name=one,num_gpu_blocks=4"
    assert found[f"vllm:cache_config_info{{{size}}}"] == 1
    assert found["specllama_tokens_running{model=one}"] == 40
    assert found["specllama_tokens_waiting{model=one}"] == 70
    assert found["specllama_requests_preempted_total"] == 3
    assert found["specllama_requests_refused_total"] == 2
    assert found["vllm:num_requests_running{model_name=other}"] == 0
