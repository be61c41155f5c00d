"""A router whose memory has room for some of its models."""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest

from contract_tests.kit import contract
from contract_tests.kit.bodies import body
from contract_tests.kit.routers import (
    LOADED,
    UNLOADED,
    loaded,
    models,
    set_status,
    status,
    wait_for,
)
from contract_tests.kit.server import OwnServer, Start
from contract_tests.kit.situations import send
from tools.models.zoo import CHAT, FIM, OTHER_CHAT, PRESETS, Zoo

MIB = 1 << 20

Routers = Callable[..., OwnServer]


@pytest.fixture
def a_router(own_server: Start, zoo: Zoo, hub: Mapping[str, str], tmp_path: Path) -> Routers:
    """Starts routers for the models of the zoo, with a limit of memory, and further lines for
    single models."""

    def starting(*options: str, **sections: str) -> OwnServer:
        text = PRESETS + "".join(f"[{name}]\n{said}\n" for name, said in sections.items())
        presets = tmp_path / "models.ini"
        presets.write_text(text, "utf-8")
        files = ["--models-dir", str(zoo.directory), "--models-preset", str(presets)]
        return own_server(*files, *options, router=True, variables=hub)

    return starting


def on_host(sizes: Any) -> int:
    [size] = [each["n_bytes"] for each in sizes if each["device"] == "host"]
    return int(size)


@pytest.fixture
def room_for_two(a_router: Routers) -> str:
    """A limit, in MiB, for two of the chat models, which have the same size."""
    server = a_router("--models-memory", "90%")
    assert models(server)[CHAT]["memory"] == {"need": [], "use": []}
    set_status(server, CHAT, LOADED)
    memory = models(server)[CHAT]["memory"]
    need, use = on_host(memory["need"]), on_host(memory["use"])
    assert 0 < need <= use, "the process takes at least what was planned"
    [process] = contract.check(server.get("/api/ps"))["models"]
    assert on_host(process["memory"]["need"]) == need
    server.stop()
    return str(round(2.5 * max(need, use) / MIB))


def ask(server: OwnServer, name: str, **more: Any) -> None:
    request = body("create_ollama_generation", model=name, stream=False, **more)
    contract.check(server.post("/api/generate", request))


def test_models_make_room_for_each_other(a_router: Routers, room_for_two: str) -> None:
    server = a_router("--models-memory", room_for_two, "--models-max", "0")
    ask(server, CHAT)
    ask(server, OTHER_CHAT)
    assert loaded(server) == {CHAT, OTHER_CHAT}
    ask(server, CHAT)
    ask(server, FIM)
    assert loaded(server) == {CHAT, FIM}, "the least recently used one has made room"
    # The time of keep_alive is longer than the test.
    ask(server, CHAT, keep_alive="1h")
    ask(server, FIM)
    ask(server, OTHER_CHAT)
    assert loaded(server) == {CHAT, OTHER_CHAT}
    contract.check(send(server, "unload_model", model=CHAT))
    wait_for(server, CHAT, UNLOADED)


def test_a_model_that_never_fits_is_refused(a_router: Routers, room_for_two: str) -> None:
    large = "ctx-size = 1000000"
    server = a_router("--models-memory", room_for_two, **{CHAT: large, FIM: "pin = on"})
    ask(server, FIM)
    refused = server.post("/completion", body("create_completion", model=CHAT))
    message = contract.check(refused, 503)["error"]["message"]
    for part in (CHAT, "MiB of the host's memory", "--ctx-size", "--models-memory"):
        assert part in message
    shown = status(server, CHAT)
    assert (shown["failed"], shown["error"]) == (True, message)
    need = on_host(models(server)[CHAT]["memory"]["need"])
    assert need > int(room_for_two) * MIB
    assert loaded(server) == {FIM}
    contract.check(send(server, "load_model", model=CHAT))
    wait_for(server, CHAT, UNLOADED)
    ask(server, OTHER_CHAT)
    assert loaded(server) == {FIM, OTHER_CHAT}
