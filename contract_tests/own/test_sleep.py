"""Idle models are unloaded: their memory is freed, nothing gets lost, and status requests neither
load them nor keep them loaded.

A model is asleep when the server reports it and its engine process is gone.
"""

import contextlib
import shutil
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import psutil
import pytest

from contract_tests.kit import contract
from contract_tests.kit.server import OwnServer, Server, Start, alive, wait_until
from contract_tests.own.servers import MODEL
from specllama.engine.shipped import model_path
from tools.models import build
from tools.models import zoo as models
from tools.models.lora import ADAPTERS

IDLE = 1  # s, the minimum
SLEEPY = ("--sleep-idle-seconds", str(IDLE))
ENDLESS = {"prompt": "def f(", "n_predict": -1, "ignore_eos": True, "temperature": 0}


@pytest.fixture(scope="module")
def sleepy(module_server: Start) -> OwnServer:
    """A server of one model that sleeps soon."""
    adapter = build.ensure_adapter(next(iter(ADAPTERS)))
    options = ("--metrics", "--context-shift", "--max-predict", "-1", "--lora", str(adapter))
    return module_server(*SLEEPY, *options, "-np", "4", "-c", "2048")


@pytest.fixture(scope="module")
def zoo(tmp_path_factory: pytest.TempPathFactory) -> models.Zoo:
    return models.write_zoo(tmp_path_factory.mktemp("zoo"))


def ask(server: Server, prompt: str = "def f(", **fields: Any) -> Any:
    """Requests a completion that is always the same."""
    request = {"prompt": prompt, "n_predict": 8, "temperature": 0, "ignore_eos": True, **fields}
    return contract.check(server.post("/completion", request))


def value(server: Server, name: str = MODEL) -> str:
    """Returns the model's status in `GET /models`."""
    [model] = [each for each in server.get("/models").json()["data"] if each["id"] == name]
    status: str = model["status"]["value"]
    return status


def wait_until_asleep(server: OwnServer, name: str = MODEL) -> None:
    wait_until(lambda: value(server, name) == "sleeping", f"{name} sleeps")


@contextlib.contextmanager
def awake(server: Server, **fields: Any) -> Iterator[None]:
    """Keeps a model awake with a running request, however slow the machine is."""
    with server.stream("/completion", {**ENDLESS, **fields}) as (_, events):
        next(events)
        yield


def memory(processes: list[psutil.Process]) -> int:
    """Returns the memory in bytes that only these processes use. Shared pages would hide what is
    freed."""
    return sum(process.memory_full_info().uss for process in processes)


def family(server: OwnServer) -> list[psutil.Process]:
    process = psutil.Process(server.process.pid)
    return [process, *process.children(recursive=True)]


# ---- sleep ---------------------------------------------------------------------------


def test_memory_comes_back_and_the_next_request_wakes_it(sleepy: OwnServer) -> None:
    before = ask(sleepy)["content"]
    with awake(sleepy):
        engine, processes = sleepy.engine(), family(sleepy)
        of_engine, loaded = memory([engine]), memory(processes)
    assert of_engine > model_path().stat().st_size
    wait_until_asleep(sleepy)
    assert not engine.is_running()
    assert not sleepy.engines()
    # Helper processes that render and check may have been started meanwhile.
    asleep = memory([each for each in family(sleepy) if each in processes])
    assert loaded - asleep > 0.8 * of_engine, (loaded, asleep, of_engine)
    answer = ask(sleepy)
    assert answer["content"] == before
    assert answer["timings"]["cache_n"] == 0, "nothing is left in the KV cache"
    with awake(sleepy):
        assert value(sleepy) == "loaded"


def test_a_router_s_models_sleep_one_by_one(module_server: Start, zoo: models.Zoo) -> None:
    options = (*zoo.arguments(), "--models-shipped", "--models-max", "1")
    server = module_server(*SLEEPY, *options, router=True)
    wait_until_asleep(server)  # the default model
    processes = family(server)
    unloaded = memory(processes)
    before = ask(server, model=models.CHAT)["content"]
    with awake(server, model=models.CHAT):
        of_engine = memory([server.engine()])
    wait_until_asleep(server, models.CHAT)
    assert not server.engines()
    asleep = memory([each for each in family(server) if each in processes])
    assert asleep - unloaded < 0.5 * of_engine, (unloaded, asleep, of_engine)
    # A sleeping model needs no room, and keeps its status when another model takes the room.
    other = ask(server, model=models.OTHER_CHAT)["content"]
    assert other != before
    assert (value(server, models.CHAT), value(server)) == ("sleeping", "sleeping")
    # Now an idle model, which will sleep soon, takes the only room.
    assert ask(server, model=models.CHAT)["content"] == before
    assert len(server.engines()) <= 1
    # A model that is unloaded while it sleeps is loaded from the start.
    wait_until_asleep(server, models.CHAT)
    contract.check(server.post("/models/unload", {"model": models.CHAT}))
    wait_until(lambda: value(server, models.CHAT) == "unloaded", "it is unloaded")
    assert ask(server, model=models.CHAT)["content"] == before


def test_kept_texts_outlast_a_sleep_on_disk(own_server: Start, tmp_path: Path) -> None:
    texts = tmp_path / "texts"
    texts.mkdir()
    server = own_server(*SLEEPY, "--cache-disk", str(texts), "-np", "1", "-c", "512")
    prompt = "class Reader:\n" + "    total += 1\n" * 25
    first = ask(server, prompt)
    wait_until_asleep(server)
    again = ask(server, prompt)
    assert again["content"] == first["content"]
    assert again["timings"]["cache_n"] > 10 * again["timings"]["prompt_n"]


# ---- requests that wake it or keep it awake ----------------------------------------------------


LOOKS = (
    "/health",
    "/v1/health",
    "/props",
    "/models",
    "/v1/models",
    "/api/tags",
    "/metrics",
    "/slots",
)


def test_status_requests_neither_wake_it_nor_keep_it_awake(sleepy: OwnServer) -> None:

    def look() -> bool:
        for path in LOOKS:
            contract.check(sleepy.get(path))
        sleeps: bool = sleepy.get("/props").json()["is_sleeping"]
        return sleeps

    with awake(sleepy):
        assert look() is False
    wait_until(look, "it sleeps in spite of the status requests")
    for _ in range(5):
        assert look()
    asleep = {path: sleepy.get(path).text for path in ("/metrics", "/slots")}
    assert "tokens_predicted_total 0.0" not in asleep["/metrics"], "it had generated something"
    assert len(contract.check(sleepy.get("/slots"))) == 4
    assert not sleepy.engines()
    props = sleepy.get("/props").json()
    with awake(sleepy):
        again = sleepy.get("/props").json()
        assert again == {**props, "is_sleeping": False}, "sleep changes no property"
        assert sleepy.get("/metrics").text != asleep["/metrics"]
        assert sleepy.get("/slots").text != asleep["/slots"]


def test_a_stream_is_no_idleness(sleepy: OwnServer) -> None:
    with sleepy.stream("/completion", ENDLESS) as (response, events):
        assert response.status_code == 200
        assert next(events)
        engine = sleepy.engine().pid
        end = time.monotonic() + 2.2 * IDLE
        while time.monotonic() < end:
            assert next(events)
        assert sleepy.engine().pid == engine
    wait_until_asleep(sleepy)


def test_requests_at_the_moment_of_falling_asleep(sleepy: OwnServer) -> None:
    """The requests of each round come closer to the moment at which the model falls asleep, which
    takes some milliseconds."""
    expected = ask(sleepy)["content"]
    delay, step = float(IDLE), 0.008  # s
    n, slept = 0, 0
    with ThreadPoolExecutor(8) as pool:
        while n < 9 or not slept:
            n += 1
            with awake(sleepy):
                engine = sleepy.engine()
            ask(sleepy)
            time.sleep(delay)
            was_there = alive(engine)
            answers = list(pool.map(lambda _: ask(sleepy), range(8)))
            assert {answer["content"] for answer in answers} == {expected}
            stayed = alive(engine)
            slept += not stayed
            if stayed:
                delay += step
            elif not was_there:
                delay -= step
            # On a slow machine the model sleeps late: the rounds continue until it does.
            step = max(0.001, step * 0.7) if slept or n < 9 else step * 2


def test_requests_that_wake_it_and_go(sleepy: OwnServer) -> None:
    """A client that doesn't wait for the model leaves nothing behind that keeps it awake."""
    wait_until_asleep(sleepy)
    body = b'{"prompt": "a", "n_predict": 4}'
    with contextlib.closing(sleepy.raw(sleepy.head("/completion", len(body)) + body)):
        wait_until(lambda: value(sleepy) != "sleeping", "it wakes")
    wait_until_asleep(sleepy)
    assert not sleepy.engines()


# ---- after waking -----------------------------------------------------------------


def test_a_client_s_adapter_scales_survive(sleepy: OwnServer) -> None:
    def scales() -> list[float]:
        return [each["scale"] for each in contract.check(sleepy.get("/lora-adapters"))]

    [before] = scales()
    plain = ask(sleepy)["content"]
    try:
        contract.check(sleepy.post("/lora-adapters", [{"id": 0, "scale": 0.0}]))
        without = ask(sleepy)["content"]
        assert without != plain
        wait_until_asleep(sleepy)
        assert ask(sleepy)["content"] == without
        assert scales() == [0.0]
    finally:
        contract.check(sleepy.post("/lora-adapters", [{"id": 0, "scale": before}]))


def test_waking_without_the_file(own_server: Start, tmp_path: Path) -> None:
    file = tmp_path / "model.gguf"
    shutil.copy(model_path(), file)
    server = own_server(*SLEEPY, "-m", str(file), named=True)
    expected = ask(server)["content"]
    wait_until(lambda: server.get("/props").json()["is_sleeping"], "it sleeps")
    aside = file.rename(tmp_path / "aside")
    error = contract.check(server.post("/completion", {"prompt": "a"}), 503)["error"]
    assert "could not be loaded" in error["message"]
    assert str(file) in error["message"]
    assert str(file) in contract.check(server.get("/health"), 503)["error"]["message"]
    aside.rename(file)
    server.wait_until_ready()
    assert ask(server)["content"] == expected


def test_a_router_s_model_wakes_without_its_file(own_server: Start, zoo: models.Zoo) -> None:
    server = own_server(*SLEEPY, *zoo.arguments(), "--models-shipped", router=True)
    ask(server, model=models.CHAT)
    wait_until_asleep(server, models.CHAT)
    file = zoo.path(models.CHAT)
    aside = file.rename(file.with_suffix(".aside"))
    try:
        request = {"prompt": "a", "n_predict": 4, "model": models.CHAT}
        error = contract.check(server.post("/completion", request), 503)["error"]
        assert str(file) in error["message"]
        [model] = [each for each in server.get("/models").json()["data"] if each["id"] == "chat"]
        assert model["status"]["failed"]
        assert str(file) in model["status"]["error"]
        assert ask(server)["content"], "the other models work"
    finally:
        aside.rename(file)
    wait_until(lambda: server.post("/completion", request).status_code == 200, "it loads again")
