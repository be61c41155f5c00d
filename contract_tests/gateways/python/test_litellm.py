"""LiteLLM's proxy in front of two servers."""

import json
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from contract_tests.gateways.python.place import CHAT, MODEL, Place, busy, free_port, gateway

N_CHATS = 8
RETRIES = 12
"""Each goes to a server chosen by chance, also to the one that is down, until it cools down."""
MASTER_KEY = "sk-master"
TOOL = {
    "type": "function",
    "function": {
        "name": "weather",
        "parameters": {
            "type": "object",
            "properties": {"city": {"type": "string", "enum": ["Lima", "Quito"]}},
            "required": ["city"],
        },
    },
}


def configured(folder: Path, urls: list[str], key: str) -> Path:
    """Returns a file with the gateway's settings; JSON is YAML."""
    deployments = [
        {
            "model_name": MODEL,
            "litellm_params": {
                "model": f"openai/{MODEL}",
                "api_base": f"{url}/v1",
                "api_key": key,
            },
        }
        for url in urls
    ]
    settings = {
        "model_list": deployments,
        "router_settings": {"routing_strategy": "simple-shuffle", "num_retries": RETRIES},
        "general_settings": {"master_key": MASTER_KEY},
    }
    file = folder / "config.yaml"
    file.write_text(json.dumps(settings), "utf-8")
    return file


def command(file: Path, port: int) -> list[str]:
    program = Path(sys.executable).parent / "litellm"
    return [str(program), "--config", str(file), "--host", "127.0.0.1", "--port", str(port)]


@pytest.fixture(scope="module")
def proxy(
    servers: tuple[Place, Place], tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Place]:
    folder, port = tmp_path_factory.mktemp("proxy"), free_port()
    file = configured(folder, [server.url for server in servers], servers[0].key)
    with gateway(command(file, port), port, folder / "log", MASTER_KEY, "/v1/models") as place:
        yield place


def test_models(proxy: Place) -> None:
    assert {each["id"] for each in proxy.ask("/v1/models")["data"]} == {MODEL}


def test_chat(proxy: Place) -> None:
    answer = proxy.ask("/v1/chat/completions", CHAT)
    assert answer["choices"][0]["message"]["content"]
    assert answer["usage"]["completion_tokens"] > 0


def test_stream(proxy: Place) -> None:
    events = proxy.text("/v1/chat/completions", {**CHAT, "stream": True}).split("\n\n")
    data = [each.removeprefix("data: ") for each in events if each.startswith("data: ")]
    assert data[-1].strip() == "[DONE]"
    deltas = [json.loads(each)["choices"][0]["delta"] for each in data[:-1]]
    assert "".join(delta.get("content") or "" for delta in deltas)


def test_tools(proxy: Place) -> None:
    body = {**CHAT, "max_tokens": 100, "tools": [TOOL], "tool_choice": "required"}
    [call] = proxy.ask("/v1/chat/completions", body)["choices"][0]["message"]["tool_calls"]
    assert json.loads(call["function"]["arguments"])["city"] in ("Lima", "Quito")


def test_both_servers_get_requests(proxy: Place, servers: tuple[Place, Place]) -> None:
    before = [server.n_chats() for server in servers]
    n = 0
    while n < 100 and any(
        server.n_chats() == old for server, old in zip(servers, before, strict=True)
    ):
        proxy.ask("/v1/chat/completions", CHAT)
        n += 1
    assert all(server.n_chats() > old for server, old in zip(servers, before, strict=True))


def test_one_server_is_busy(proxy: Place, servers: tuple[Place, Place]) -> None:
    with busy(servers[0]):
        for _ in range(N_CHATS):
            assert proxy.ask("/v1/chat/completions", CHAT)["choices"]


def test_a_server_that_is_down(
    servers: tuple[Place, Place], tmp_path_factory: pytest.TempPathFactory
) -> None:
    """The other one answers all requests."""
    folder, port = tmp_path_factory.mktemp("half"), free_port()
    urls = [f"http://127.0.0.1:{free_port()}", servers[1].url]
    file = configured(folder, urls, servers[0].key)
    with gateway(command(file, port), port, folder / "log", MASTER_KEY, "/v1/models") as half:
        before = servers[1].n_chats()
        for _ in range(N_CHATS):
            assert half.ask("/v1/chat/completions", CHAT)["choices"]
        assert servers[1].n_chats() == before + N_CHATS
