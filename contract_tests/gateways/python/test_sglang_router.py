"""SGLang's gateway in front of two servers."""

import json
import sys
from collections.abc import Iterator

import pytest

from contract_tests.gateways.python.place import CHAT, MODEL, Place, busy, free_port, gateway, until

N_CHATS = 6


@pytest.fixture(scope="module")
def router(
    servers: tuple[Place, Place], tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Place]:
    port = free_port()
    urls = [server.url for server in servers]
    command = [
        *(sys.executable, "-m", "sglang_router.launch_router", "--policy", "power_of_two"),
        *("--host", "127.0.0.1", "--port", str(port), "--worker-urls", *urls),
        *("--prometheus-port", str(free_port()), "--api-key", servers[0].key),
        *("--worker-startup-check-interval", "1"),  # also the interval of the loads
    ]
    log = tmp_path_factory.mktemp("router") / "log"
    with gateway(command, port, log, servers[0].key, "/workers") as place:

        def both() -> bool:
            found = place.ask("/workers")["workers"]
            return len([each for each in found if each["is_healthy"]]) == len(servers)

        until(both, "the servers are registered")
        yield place


def loads(router: Place) -> dict[str, int]:
    return {each["worker"]: each["load"] for each in router.ask("/get_loads")["workers"]}


def test_models(router: Place) -> None:
    assert [each["id"] for each in router.ask("/v1/models")["data"]] == [MODEL]


def test_chat(router: Place) -> None:
    answer = router.ask("/v1/chat/completions", CHAT)
    assert answer["choices"][0]["message"]["content"]
    assert answer["usage"]["completion_tokens"] > 0


def test_stream(router: Place) -> None:
    events = router.text("/v1/chat/completions", {**CHAT, "stream": True}).split("\n\n")
    data = [each.removeprefix("data: ") for each in events if each.startswith("data: ")]
    assert data[-1] == "[DONE]"
    deltas = [json.loads(each)["choices"][0]["delta"] for each in data[:-1]]
    assert "".join(delta.get("content") or "" for delta in deltas)


def test_completion(router: Place) -> None:
    answer = router.ask("/v1/completions", {"model": MODEL, "prompt": "Hello", "max_tokens": 4})
    assert answer["choices"][0]["text"]


def test_loads(router: Place, servers: tuple[Place, Place]) -> None:
    assert loads(router) == dict.fromkeys((server.url for server in servers), 0)
    with busy(servers[1]):
        until(lambda: loads(router)[servers[1].url] > 0, "the gateway has the load")
        assert loads(router)[servers[0].url] == 0


@pytest.mark.parametrize("index", [0, 1])
def test_the_free_server_gets_all_requests(
    index: int, router: Place, servers: tuple[Place, Place]
) -> None:
    loaded, free = servers[index], servers[1 - index]
    with busy(loaded):
        before = free.n_chats(), loaded.n_chats()
        router.ask("/v1/chat/completions", CHAT)  # the loads may be those of a second ago

        def balanced() -> bool:
            start = free.n_chats(), loaded.n_chats()
            for _ in range(N_CHATS):
                router.ask("/v1/chat/completions", CHAT)
            return (free.n_chats() - start[0], loaded.n_chats() - start[1]) == (N_CHATS, 0)

        until(balanced, f"only the free server gets requests: {before}")
