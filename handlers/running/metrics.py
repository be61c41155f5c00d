"""The metrics of one server, for Prometheus."""

from collections.abc import Callable, Iterator, Mapping
from typing import TypeAlias, get_args

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
    Metric,
)
from prometheus_client.exposition import CONTENT_TYPE_PLAIN_0_0_4

from specllama.engine.wire.stats import REQUIRED, Histogram, MissReason, Stats

DURATION_BOUNDS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 120.0)
"""Upper bounds of the buckets for the duration of requests, in seconds."""
BLOCK = 16
"""Tokens of a block, the unit in which gateways count the KV cache. The server itself reuses single
tokens."""


class Metrics:
    """Collects the durations of HTTP requests, and renders them with the engine's statistics.

    Each object has its own registry, so that several servers can run in one process.
    """

    def __init__(self) -> None:
        self._durations: dict[tuple[str, str], Histogram] = {}
        self._stats = Stats()
        self._last = Stats()  # of the same model, at its last scrape
        self._scraped: dict[str, Stats] = {}  # by model
        self._every: Mapping[str, Stats] = {}
        self._registry = CollectorRegistry()
        self._registry.register(self)

    def observe_request(self, operation: str, status: int, seconds: float) -> None:
        """Counts one answered request. The number of series is bounded by the documented answers:
        operations and their statuses."""
        key = (operation, str(status))
        if (histogram := self._durations.get(key)) is None:
            histogram = self._durations[key] = Histogram.of(DURATION_BOUNDS)
        histogram.observe(seconds)

    def render(self, model: str, every: Mapping[str, Stats]) -> tuple[bytes, str]:
        """Returns the text for one model, and its content type. `every` has the statistics of this
        model, and of others for the metrics with labels for models. This is a scrape for the
        model's averages "since the last scrape"."""
        stats = every[model]
        last = self._scraped.get(model, Stats())
        fresh = stats.n_decode < last.n_decode  # a new engine process counts from 0
        self._stats, self._last, self._every = stats, Stats() if fresh else last, every
        text = generate_latest(self._registry)
        self._scraped[model] = stats
        return text, CONTENT_TYPE_PLAIN_0_0_4

    def describe(self) -> list[Metric]:
        """Registers no names in advance (part of the interface of a collector)."""
        return []

    def collect(self) -> Iterator[Metric]:
        """Yields the current metrics (part of the interface of a collector)."""
        yield from _counters(self._stats)
        yield from _gauges(self._stats, self._last)
        yield from _histograms(self._stats)
        yield from _load_gauges(self._every)
        yield from _replicas(self._every)
        family = HistogramMetricFamily(
            "specllama_request_duration_seconds",
            "Duration of HTTP requests, to the end of the answer.",
            labels=("operation", "status"),
        )
        for labels, histogram in self._durations.items():
            family.add_metric(labels, _buckets(histogram), histogram.total)
        yield family


def _counters(stats: Stats) -> Iterator[Metric]:
    for name, text, value in (
        ("prompt_tokens", "Prompt tokens evaluated.", stats.n_prompt),
        ("prompt_tokens_cached", "Prompt tokens from the cache.", stats.n_prompt_cached),
        ("prompt_seconds", "Time of steps with prompt tokens.", stats.prompt_seconds),
        ("tokens_predicted", "Tokens generated.", stats.n_predicted),
        ("tokens_predicted_seconds", "Total time between tokens.", stats.inter_token.total),
        ("n_decode", "Steps of the engine.", stats.n_decode),
        ("spec_decode_num_draft_tokens", "Proposed tokens.", stats.n_drafted),
        ("spec_decode_num_accepted_tokens", "Accepted proposed tokens.", stats.n_drafts_accepted),
        ("spec_decode_num_drafts", "Proposals of tokens.", stats.n_drafts),
    ):
        yield CounterMetricFamily(f"llamacpp:{name}", text, value)
    shared = "Prompt tokens from the cache that another text still uses."
    yield CounterMetricFamily("specllama_prompt_tokens_shared", shared, stats.n_prompt_shared)
    restored = "Prompt tokens from the cache that were restored from host memory or files."
    yield CounterMetricFamily("specllama_prompt_tokens_restored", restored, stats.n_prompt_restored)
    files = "Prompt tokens from the cache that were restored from files."
    yield CounterMetricFamily(
        "specllama_prompt_tokens_from_files", files, stats.n_prompt_from_files
    )
    computed = CounterMetricFamily(
        "specllama_prompt_tokens_computed",
        "Evaluated prompt tokens, by the reason why the first one of the prompt wasn't cached.",
        labels=("reason",),
    )
    for reason in (*get_args(MissReason), REQUIRED):
        computed.add_metric([reason], stats.n_prompt_missed.get(reason, 0))
    yield computed
    preempted = "Requests that gave their slots to requests with better priorities."
    yield CounterMetricFamily("specllama_requests_preempted", preempted, stats.n_preempted)
    refused = "Requests refused by the limits of the queue, or by their deadlines."
    yield CounterMetricFamily("specllama_requests_refused", refused, stats.n_refused)
    idle = "Time from the results of a decode to the next decode, while there was work."
    yield CounterMetricFamily("specllama_device_idle_seconds", idle, stats.idle_seconds)


def _gauges(stats: Stats, last: Stats) -> Iterator[Metric]:
    prompt = _rate(
        stats.n_prompt - last.n_prompt,
        stats.prompt_seconds - last.prompt_seconds,
    )
    predicted = _rate(
        stats.inter_token.count - last.inter_token.count,
        stats.inter_token.total - last.inter_token.total,
    )
    for name, text, value in (
        ("prompt_tokens_seconds", "Prompt tokens per second, since the last scrape.", prompt),
        ("predicted_tokens_seconds", "Tokens per second, since the last scrape.", predicted),
        (
            "kv_cache_usage_ratio",
            "Used fraction of the KV cache.",
            _rate(stats.n_cells_used, stats.n_cells),
        ),
        ("kv_cache_tokens", "Tokens in the KV cache.", stats.n_cells_used),
        ("requests_processing", "Requests in slots.", stats.n_processing),
        ("requests_deferred", "Waiting requests.", stats.n_deferred),
        ("n_busy_slots_per_decode", "Busy slots in a step.", _rate(stats.n_busy, stats.n_decode)),
        ("n_tokens_max", "Tokens of the longest text.", stats.n_tokens_max),
    ):
        yield GaugeMetricFamily(f"llamacpp:{name}", text, value)
    for name, text, n_bytes in (
        ("cache_ram", "Texts in the host memory of --cache-ram.", stats.n_bytes_cache_ram),
        ("checkpoint", "Checkpoints of texts.", stats.n_bytes_checkpoints),
        ("constraint", "Cached compiled grammars and schemas.", stats.n_bytes_constraints),
        ("engine_resident", "Resident memory of the engine process.", stats.n_bytes_resident),
    ):
        yield GaugeMetricFamily(f"specllama_{name}_bytes", text, n_bytes)
    if stats.devices:
        yield from _device_memory(stats)


def _load_gauges(every: Mapping[str, Stats]) -> Iterator[Metric]:
    """Yields the gauges by which gateways choose a server, under vLLM's names. The number of series
    is bounded by the models of the catalog."""
    for name, label, text, value in (
        ("vllm:num_requests_running", "model_name", "Requests in slots.", _n_running),
        ("vllm:num_requests_waiting", "model_name", "Waiting requests.", _n_waiting),
        (
            "vllm:kv_cache_usage_perc",
            "model_name",
            "Fraction of the KV cache that running requests use; 1 is all of it.",
            Stats.cache_usage,
        ),
        (
            "specllama_tokens_running",
            "model",
            "Tokens of running requests, with those of their prompts that are not evaluated yet.",
            _n_tokens,
        ),
        (
            "specllama_tokens_waiting",
            "model",
            "Prompt tokens of waiting requests that are not in the cache.",
            _n_queued,
        ),
    ):
        family = GaugeMetricFamily(name, text, labels=(label,))
        for model, stats in every.items():
            family.add_metric([model], value(stats))
        yield family
    family = GaugeMetricFamily(
        "vllm:cache_config_info",
        "Size of the KV cache, in blocks.",
        labels=("model_name", "block_size", "num_gpu_blocks"),
    )
    for model, stats in every.items():
        family.add_metric([model, str(BLOCK), str(stats.n_cells // BLOCK)], 1)
    yield family


_Labelled: TypeAlias = type[GaugeMetricFamily] | type[CounterMetricFamily]


def _replicas(every: Mapping[str, Stats]) -> Iterator[Metric]:
    """Yields the metrics of each replica of models that have replicas. They have two series of
    labels: the models of the catalog, and the replicas at the time of the scrape."""
    found = [
        ([model, name], stats)
        for model, whole in every.items()
        for name, stats in whole.replicas.items()
    ]
    if not found:
        return
    families: list[tuple[_Labelled, str, str, Callable[[Stats], float]]] = [
        (GaugeMetricFamily, "requests_running", "Requests in slots.", _n_running),
        (GaugeMetricFamily, "requests_waiting", "Waiting requests.", _n_waiting),
        (GaugeMetricFamily, "tokens_running", "Tokens of running requests.", _n_tokens),
        (GaugeMetricFamily, "tokens_waiting", "Uncached tokens of waiting requests.", _n_queued),
        (
            GaugeMetricFamily,
            "kv_cache_usage_ratio",
            "Used fraction of the KV cache.",
            lambda stats: _rate(stats.n_cells_used, stats.n_cells),
        ),
        (
            GaugeMetricFamily,
            "report_age_seconds",
            "Time since the replica reported its load and its cache.",
            lambda stats: stats.report_age,
        ),
        (
            CounterMetricFamily,
            "prompt_tokens",
            "Prompt tokens evaluated.",
            lambda stats: stats.n_prompt,
        ),
        (
            CounterMetricFamily,
            "prompt_tokens_cached",
            "Prompt tokens from the cache.",
            lambda stats: stats.n_prompt_cached,
        ),
        (
            CounterMetricFamily,
            "tokens_predicted",
            "Tokens generated.",
            lambda stats: stats.n_predicted,
        ),
    ]
    for kind, name, text, value in families:
        family = kind(f"specllama_replica_{name}", text, labels=("model", "replica"))
        for labels, stats in found:
            family.add_metric(labels, value(stats))
        yield family


def _n_running(stats: Stats) -> float:
    return stats.n_processing


def _n_waiting(stats: Stats) -> float:
    return stats.n_deferred


def _n_tokens(stats: Stats) -> float:
    return stats.n_tokens_running


def _n_queued(stats: Stats) -> float:
    return stats.n_tokens_waiting


def _device_memory(stats: Stats) -> Iterator[Metric]:
    free = GaugeMetricFamily(
        "specllama_device_memory_free_bytes", "Free memory of a device.", labels=("device",)
    )
    total = GaugeMetricFamily(
        "specllama_device_memory_bytes", "Memory of a device.", labels=("device",)
    )
    for device in stats.devices:
        free.add_metric([device.name], device.free)
        total.add_metric([device.name], device.total)
    yield from (free, total)


def _histograms(stats: Stats) -> Iterator[Metric]:
    for name, text, histogram in (
        ("request_queue", "A request's wait for a slot.", stats.queue),
        (
            "time_to_first_token",
            "From arrival in the engine to the first token.",
            stats.first_token,
        ),
        ("step", "Duration of a step of the engine.", stats.step),
        ("inter_token_latency", "Time from a token to the next.", stats.inter_token),
    ):
        yield HistogramMetricFamily(
            f"specllama_{name}_seconds", text, _buckets(histogram), histogram.total
        )


def _buckets(histogram: Histogram) -> list[tuple[str, float]]:
    names = [*map(str, histogram.bounds), "+Inf"]
    return list(zip(names, map(float, histogram.cumulative()), strict=True))


def _rate(numerator: float, denominator: float) -> float:
    return numerator / denominator if denominator > 0 else 0.0
