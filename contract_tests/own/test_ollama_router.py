"""Ollama's client with a router: loading, unloading and downloading models."""

import hashlib
from collections.abc import Iterator
from datetime import datetime
from typing import Any

import psutil
import pytest
from ollama import Client, ResponseError

from contract_tests.kit import contract
from contract_tests.kit.bodies import body
from contract_tests.kit.routers import LOADED, UNLOADED, set_status, status, wait_for
from contract_tests.kit.server import SECONDS, OwnServer, Server, Start, alive, wait_until
from contract_tests.kit.situations import engine_stopped
from contract_tests.own.servers import MODEL
from specllama.engine.shipped import model_path
from tests.support.hub import Hub, serving

FILE = model_path().read_bytes()
REPOSITORY = "maker/tiny-GGUF"
NAME = f"{REPOSITORY}:Q8_0"
CRAWL = len(FILE) // 3600  # bytes per second, for downloads that must not end


@pytest.fixture(scope="module")
def running_hub() -> Iterator[Hub]:
    with serving() as hub:
        yield hub


@pytest.fixture
def stand_in(running_hub: Hub) -> Hub:
    """A hub with a model, and without faults."""
    running_hub.reset()
    running_hub.add(REPOSITORY, {"tiny-Q8_0.gguf": FILE, "README.md": b"# tiny"})
    return running_hub


@pytest.fixture
def cache(stand_in: Hub, tmp_path: Any) -> dict[str, str]:
    """The environment variables of a program that uses the hub, with an empty cache."""
    return {
        "HF_ENDPOINT": stand_in.url,
        "HF_HUB_CACHE": str(tmp_path / "hub"),
        "HF_HUB_DOWNLOAD_TIMEOUT": str(round(SECONDS)),
    }


def client_of(server: Server) -> Client:
    headers = {"Authorization": f"Bearer {server.api_key or 'none'}"}
    return Client(host=server.url, headers=headers, timeout=SECONDS)


@pytest.fixture(scope="module")
def router(module_server: Start, hub: dict[str, str]) -> OwnServer:
    return module_server(router=True, variables=hub, api_key="key")


# ---- in memory, or not -------------------------------------------------------------------


def test_a_model_comes_and_goes(router: OwnServer) -> None:
    with client_of(router) as client:
        set_status(router, MODEL, UNLOADED)
        assert client.ps().models == []
        assert client.generate(MODEL).done_reason == "load"
        assert status(router, MODEL)["value"] == LOADED
        [process] = client.ps().models
        assert process.model == MODEL
        assert client.generate(MODEL, keep_alive=0).done_reason == "unload"
        wait_for(router, MODEL, UNLOADED)
        assert client.chat(MODEL, []).done_reason == "load"
        assert client.chat(MODEL, [], keep_alive="0s").done_reason == "unload"
        wait_for(router, MODEL, UNLOADED)
        # A model is not loaded in order to be unloaded.
        assert client.generate(MODEL, keep_alive=0).done_reason == "unload"
        assert status(router, MODEL)["value"] == UNLOADED


@pytest.mark.parametrize("stream", [False, True])
def test_a_model_goes_after_an_answer(router: OwnServer, stream: bool) -> None:
    options = {"num_predict": 3}
    with client_of(router) as client:
        set_status(router, MODEL, LOADED)
        generate: Any = client.generate
        answer = generate(MODEL, "a", keep_alive=0, options=options, stream=stream)
        assert (list(answer)[-1] if stream else answer).done
        wait_for(router, MODEL, UNLOADED)
        chat: Any = client.chat
        messages = [{"role": "user", "content": "a"}]
        answer = chat(MODEL, messages, keep_alive=0, options=options, stream=stream)
        assert (list(answer)[-1] if stream else answer).done
        wait_for(router, MODEL, UNLOADED)


def test_others_go_on(router: OwnServer) -> None:
    """A model with a running request isn't unloaded."""
    set_status(router, MODEL, LOADED)
    request = body("create_completion", model=MODEL, n_predict=6000, ignore_eos=True)
    with client_of(router) as client, router.stream("/completion", request) as (_, events):
        next(events)
        with engine_stopped(router):
            assert client.generate(MODEL, keep_alive=0).done_reason == "unload"
            assert status(router, MODEL)["value"] == LOADED
        assert not any("error" in next(events).json for _ in range(20))
    assert status(router, MODEL)["value"] == LOADED


def test_a_sleeping_model_is_not_in_memory(own_server: Start, hub: dict[str, str]) -> None:
    server = own_server("--sleep-idle-seconds", "1", router=True, variables=hub)
    with client_of(server) as client:
        assert client.generate(MODEL).done_reason == "load"
        wait_for(server, MODEL, "sleeping")
        assert client.ps().models == []
        assert status(server, MODEL)["value"] == "sleeping"


def test_when_a_busy_model_expires(own_server: Start, hub: dict[str, str]) -> None:
    server = own_server("--sleep-idle-seconds", "1000", router=True, variables=hub)
    with client_of(server) as client:
        client.generate(MODEL)
        [process] = client.ps().models
        assert process.expires_at is not None
        left = process.expires_at - datetime.now(process.expires_at.tzinfo)
        assert left.total_seconds() <= 1000


# ---- downloads ---------------------------------------------------------------------------


def test_pull(own_server: Start, cache: dict[str, str]) -> None:
    server = own_server(router=True, variables=cache)
    with client_of(server) as client:
        steps = list(client.pull(f"hf.co/{NAME}", stream=True))
        assert steps[0].status == "pulling manifest"
        assert steps[-1].status == "success"
        between = steps[1:-1]
        digest = hashlib.sha256(FILE).hexdigest()
        assert {step.digest for step in between} == {f"sha256:{digest}"}
        assert {step.status for step in between} == {f"pulling {digest[:12]}"}
        assert {step.total for step in between} == {len(FILE)}
        counts = [step.completed for step in between if step.completed is not None]
        assert counts == sorted(counts)
        assert counts[-1] == len(FILE)
        [pulled] = [model for model in client.list().models if model.model == NAME]
        assert pulled.digest == digest
        assert client.pull(NAME).status == "success"
        assert client.pull(f"{NAME}:latest").status == "success"
        assert client.generate(NAME, "a", options={"num_predict": 1}).done
        assert digest in {process.digest for process in client.ps().models}
    contract.check(server.post("/api/pull", {"name": REPOSITORY}))
    assert status(server, NAME)["value"] == LOADED, "looking for models again doesn't end it"


def test_a_pulled_model_is_removed(own_server: Start, cache: dict[str, str]) -> None:
    server = own_server(router=True, variables=cache)
    with client_of(server) as client:
        for _ in range(2):
            assert client.pull(NAME).status == "success"
            assert client.generate(NAME, "a", options={"num_predict": 1}).done
            removed = server.http.request("DELETE", "/models", params={"model": NAME})
            contract.check(removed)
            assert [model.model for model in client.list().models] == [MODEL]
            assert NAME not in {process.model for process in client.ps().models}


def test_pull_a_preset(
    own_server: Start, stand_in: Hub, cache: dict[str, str], tmp_path: Any
) -> None:
    presets = tmp_path / "models.ini"
    presets.write_text(f"[mine]\nhf-repo = {NAME}\n", "utf-8")
    server = own_server("--models-preset", str(presets), router=True, variables=cache)
    with client_of(server) as client:
        assert not stand_in.downloads()
        assert client.pull("mine").status == "success"
        assert len(stand_in.downloads()) == 1
        assert client.generate("mine", "a", options={"num_predict": 1}).done
        assert client.pull("mine").status == "success"
        assert len(stand_in.downloads()) == 1


def test_impossible_pulls(own_server: Start, cache: dict[str, str]) -> None:
    server = own_server(router=True, variables=cache)
    with client_of(server) as client:
        for name, status_code in (("llama3.2", 404), ("maker/nothing", 503)):
            with pytest.raises(ResponseError) as caught:
                client.pull(name)
            assert caught.value.status_code == status_code
            assert name in caught.value.error
        with pytest.raises(ResponseError) as caught:
            list(client.pull("maker/nothing", stream=True))
        assert "maker/nothing" in caught.value.error
    for lines in (True, None):
        response = server.post("/api/pull", {"model": "maker/nothing", "stream": lines})
        *_, last = contract.check(response)
        assert "error" in last


def test_a_client_that_leaves_ends_its_download(
    own_server: Start, stand_in: Hub, cache: dict[str, str]
) -> None:
    stand_in.faults.bytes_per_second = CRAWL
    server = own_server(router=True, variables=cache)
    with client_of(server) as client:
        steps = client.pull(NAME, stream=True)
        while not next(steps).completed:
            pass
        fetching = fetchers(server)
        assert fetching
        steps.close()  # also closes its response
    wait_until(lambda: not any(map(alive, fetching)), "the download has ended")


def fetchers(server: OwnServer) -> list[psutil.Process]:
    """Returns the processes below the server that download."""
    children = psutil.Process(server.process.pid).children(recursive=True)
    module = "specllama.engine.helpers.download.download_main"
    return [each for each in children if module in each.cmdline()]
