"""A router with the presets of a repository on the hub (`-hf`): the allowed contents of such a
file, and the errors for others."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from contract_tests.kit import contract
from contract_tests.kit.bodies import body
from contract_tests.kit.routers import models, wait_for
from contract_tests.kit.server import Start
from contract_tests.own.launching import one_line
from contract_tests.own.servers import run, start_connexion
from specllama.engine.shipped import model_path
from tests.support.hub import Hub, serving

DATA = model_path().read_bytes()
PRESETS = "maker/presets"
REPOSITORY = "maker/tiny-GGUF"
LOADED = "loaded"

FILE = f"""
version = 1
[*]
ctx-size = 512
[first]
hf-repo = {REPOSITORY}:Q8_0
alias = nickname
[odd]
hf-repo = {REPOSITORY}:Q8_0
model-url = http://127.0.0.1:9/x.gguf
[curious]
hf-repo = {REPOSITORY}:Q8_0
chat-template-file = /etc/hostname
"""

REFUSED = {"odd", "curious"}
"""Models that are listed but can't be loaded."""
Variables = dict[str, str]


@pytest.fixture
def hub() -> Iterator[Hub]:
    with serving() as hub:
        hub.add(REPOSITORY, {"tiny-Q8_0.gguf": DATA})
        hub.add(PRESETS, {"preset.ini": FILE.encode()})
        yield hub


@pytest.fixture
def variables(hub: Hub, tmp_path: Path) -> Variables:
    return {"HF_ENDPOINT": hub.url, "HF_HUB_CACHE": str(tmp_path / "hub")}


def test_its_models_are_served(own_server: Start, hub: Hub, variables: Variables) -> None:
    server = own_server("-hf", PRESETS, "-np", "1", named=True, wait=False, variables=variables)
    assert set(models(server)) == {"first", *REFUSED}
    for name in REFUSED:
        assert "be set by a file from another machine" in models(server)[name]["status"]["error"]
        refused = server.post("/completion", body("create_completion", model=name))
        assert "be set by a file" in contract.check(refused, 503)["error"]["message"]
    first = models(server)["first"]
    assert (first["source"], first["aliases"]) == ("preset", ["nickname"])
    assert server.ask("/completion", body("create_completion", model="nickname"))["stop"]
    wait_for(server, "first", LOADED)
    slots = contract.check(server.get("/slots", params={"model": "first"}))
    assert [slot["n_ctx"] for slot in slots] == [512]
    log = server.log.read_text("utf-8", "replace")
    assert f"{PRESETS} is a repository of presets" in log
    assert f"{PRESETS}/preset.ini:10: model-url can't be set by a file from another machine" in log
    assert f"{PRESETS}/preset.ini:13: chat-template-file can't be set by a file" in log
    assert server.stop() == 0

    # The model in the cache works offline; the file is read again like any other.
    n_requests = len(hub.requests)
    offline = own_server(
        "-hf", PRESETS, "--offline", named=True, wait=False, variables=variables, api_key="key"
    )
    contract.check(offline.get("/models", params={"reload": "1"}))
    assert set(models(offline)) == {f"{REPOSITORY}:Q8_0", "first", *REFUSED}
    assert len(hub.requests) == n_requests


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("[a]\napi-key = x\n", "maker/presets/preset.ini:2: api-key protects the whole server"),
        ("[a]\nallowed-hosts = x\n", "preset.ini:2: allowed-hosts protects the whole server"),
        (
            "[*]\nrpc = 127.0.0.1:9\n",
            "preset.ini:2: rpc can't be set by a file from another machine",
        ),
        ("hello", "preset.ini:1: "),
    ],
)
def test_a_file_that_cannot_be_used_ends_the_start(
    hub: Hub, variables: Variables, text: str, message: str
) -> None:
    hub.add(PRESETS, {"preset.ini": text.encode()})
    assert message in one_line(run("-hf", PRESETS, model=None, **variables))


def test_a_hub_that_does_not_answer_ends_the_start(variables: Variables) -> None:
    variables["HF_ENDPOINT"] = "http://127.0.0.1:9"  # "discard": no server listens there
    assert "127.0.0.1" in one_line(run("-hf", PRESETS, model=None, **variables))


def test_connexion_run_serves_them_too(own_server: Start, variables: Variables) -> None:
    options = {**variables, "LLAMA_ARG_HF_REPO": PRESETS, "LLAMA_ARG_MODEL": ""}
    server = own_server(how=lambda directory: start_connexion(directory, **options))
    assert set(models(server)) == {"first", *REFUSED}
