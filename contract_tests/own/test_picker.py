"""A stand-in for the picker of the Gateway API inference extension: it reads the metrics of two
servers by the names of the model server protocol, and chooses one."""

import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass

import pytest
from prometheus_client.parser import text_string_to_metric_families
from prometheus_client.samples import Sample

from contract_tests.kit.server import OwnServer, Start, wait_until

LONG = {"prompt": "Once upon a time", "n_predict": 200, "ignore_eos": True}


@dataclass(frozen=True)
class Signals:
    """The values of one server, as the picker knows them."""

    waiting: float
    running: float
    usage: float
    block_size: int
    n_blocks: int


def signals(server: OwnServer) -> Signals:
    families = {
        family.name: family.samples
        for family in text_string_to_metric_families(server.get("/metrics").text)
    }

    def only(name: str) -> Sample:
        [sample] = families[name]
        assert sample.labels["model_name"] == "specllama-tiny"
        return sample

    cache = only("vllm:cache_config_info").labels
    return Signals(
        only("vllm:num_requests_waiting").value,
        only("vllm:num_requests_running").value,
        only("vllm:kv_cache_usage_perc").value,
        int(cache["block_size"]),
        int(cache["num_gpu_blocks"]),
    )


def picked(found: Sequence[Signals]) -> int:
    """Returns the server with the shortest queue; of several, the one with the most free cache."""
    return min(range(len(found)), key=lambda i: (found[i].waiting, found[i].usage))


@pytest.fixture(scope="module")
def servers(module_server: Start) -> list[OwnServer]:
    options = ("--metrics", "--parallel", "1", "--ctx-size", "4096")
    return [module_server(*options) for _ in range(2)]


@contextmanager
def busy(server: OwnServer, n: int) -> Iterator[None]:
    """Sends requests to `server` all the time, `n` at once."""
    ended = threading.Event()

    def work() -> None:
        while not ended.is_set():
            server.ask("/completion", LONG)

    with ThreadPoolExecutor(n) as pool:
        working = [pool.submit(work) for _ in range(n)]
        try:
            yield
        finally:
            ended.set()
    for each in working:
        each.result()


def until_picked(wanted: int, servers: list[OwnServer], busy: Callable[[Signals], bool]) -> None:
    """Waits until the picker chooses `wanted`, while the other server is `busy`."""

    def is_picked() -> bool:
        found = [signals(server) for server in servers]
        return busy(found[1 - wanted]) and picked(found) == wanted

    wait_until(is_picked, "the other server is picked")


def test_the_size_of_the_cache(servers: list[OwnServer]) -> None:
    found = signals(servers[0])
    assert found.block_size * found.n_blocks == 4096


@pytest.mark.parametrize("index", [0, 1])
def test_the_server_with_more_free_cache_is_picked(index: int, servers: list[OwnServer]) -> None:
    with busy(servers[index], 1):
        until_picked(1 - index, servers, lambda load: load.running == 1 and load.usage > 0)
    assert [signals(server).usage for server in servers] == [0, 0]


@pytest.mark.parametrize("index", [0, 1])
def test_the_server_with_the_shorter_queue_is_picked(index: int, servers: list[OwnServer]) -> None:
    """One has a request in its only slot, and the other one has further requests that wait."""
    with busy(servers[1 - index], 1), busy(servers[index], 3):
        until_picked(1 - index, servers, lambda load: (load.running, load.waiting) == (1, 2))

        def is_reported() -> bool:
            [load] = servers[index].get("/v1/loads").json()["loads"]
            return (load["num_running_reqs"], load["num_waiting_reqs"]) == (1, 2)

        wait_until(is_reported, "the load is that of the metrics")
