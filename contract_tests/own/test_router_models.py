"""A server of many models: loading, unloading, and the requests meanwhile."""

import json
import queue
import shutil
import signal
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx
import pytest

from contract_tests.kit import contract
from contract_tests.kit.bodies import body, path, with_query
from contract_tests.kit.events import read_events
from contract_tests.kit.routers import (
    LOADED,
    UNLOADED,
    following,
    load_engine,
    loaded,
    models,
    set_status,
    status,
    statuses,
    wait_for,
    wait_until_failed,
)
from contract_tests.kit.server import SECONDS, OwnServer, Start, alive, wait_until
from contract_tests.kit.situations import send
from contract_tests.own.launching import family, posix, wait_until_ended
from contract_tests.own.servers import MODEL
from tools.models.zoo import CHAT, EMBEDDER, FIM, NAMES, OTHER_CHAT, PRESETS, RERANKER, Zoo

LONG = 4000
"""Tokens of an answer that takes a while."""
MANY = 16000
"""Tokens of an answer that never ends during the test."""

Routers = Callable[..., OwnServer]


def presets(path: Path, **sections: str) -> str:
    """Writes presets with room for `LONG`, and further lines for single models."""
    text = PRESETS.replace("ctx-size = 512", "ctx-size = 4096")
    path.write_text(text + "".join(f"[{name}]\n{said}\n" for name, said in sections.items()))
    return str(path)


@pytest.fixture
def a_router(own_server: Start, zoo: Zoo, hub: Mapping[str, str], tmp_path: Path) -> Routers:
    """Starts routers for all models of the zoo; only the shipped one is loaded."""

    def starting(*options: str, **sections: str) -> OwnServer:
        files = ["--models-dir", str(zoo.directory), "--models-shipped"]
        files += ["--models-preset", presets(tmp_path / "models.ini", **sections)]
        server = own_server(*files, *options, router=True, variables=hub)
        wait_for(server, MODEL, LOADED)
        return server

    return starting


def long_stream(name: str, n_predict: int = LONG) -> Any:
    return body("create_completion", model=name, n_predict=n_predict, ignore_eos=True)


def n_busy(server: OwnServer, name: str) -> int:
    slots = contract.check(server.get(with_query("list_slots", model=name)))
    return sum(slot["is_processing"] for slot in slots)


def in_background(server: OwnServer, pool: ThreadPoolExecutor, name: str, **more: Any) -> Any:
    request = body("create_completion", model=name, **more)
    return pool.submit(httpx.post, f"{server.url}/completion", json=request, timeout=SECONDS)


@pytest.fixture
def pool() -> Iterator[ThreadPoolExecutor]:
    with ThreadPoolExecutor(8) as pool:
        yield pool


# ---- POST /models/load, POST /models/unload, GET /models/sse ----------------------------------


def test_load_and_unload(a_router: Routers) -> None:
    server = a_router()
    with following(server) as events:
        assert {event["model"] for event in events.documents()} == {MODEL, *NAMES}
        assert {event["event"] for event in events.documents()} == {"model_status"}
        assert events.states(MODEL) == [LOADED]
        contract.check(send(server, "load_model", model=CHAT))
        wait_for(server, CHAT, LOADED)
        refused = contract.check(send(server, "load_model", model=CHAT), 400)
        assert CHAT in refused["error"]["message"]
        n_engines = len(server.engines())
        contract.check(send(server, "unload_model", model=CHAT))
        wait_for(server, CHAT, UNLOADED)
        wait_until(lambda: len(server.engines()) == n_engines - 1, "its process has ended")
        contract.check(send(server, "unload_model", model=CHAT), 400)
        contract.check(send(server, "load_model", model="missing"), 404)
        contract.check(send(server, "unload_model", model="missing"), 400)
        events.wait_for(CHAT, [UNLOADED, "loading", LOADED, UNLOADED])
        *_, last = events.of(CHAT)
        assert last["event"] == "status_change"
        assert last["data"]["exit_code"] == 0
        progress = [event["data"]["progress"]["value"] for event in events.of(CHAT)
                    if "progress" in event["data"]]  # fmt: skip
        assert progress == sorted(progress)
        assert all(events.states(name) == [UNLOADED] for name in (OTHER_CHAT, FIM))


def test_a_request_loads_its_model_with_events(a_router: Routers) -> None:
    server = a_router()
    with following(server) as one, following(server) as other:
        assert server.ask("/completion", body("create_completion", model=FIM))["model"] == FIM
        for events in (one, other):
            events.wait_for(FIM, [UNLOADED, "loading", LOADED])


def test_a_wrong_request_loads_no_model(a_router: Routers) -> None:
    server = a_router()
    choice = {"type": "function", "function": {"name": "unknown"}}
    wrong = body("create_chat_completion", model=OTHER_CHAT, tool_choice=choice)
    for at, asked in (
        ("/v1/chat/completions", wrong),
        ("/v1/embeddings", {"model": OTHER_CHAT, "input": []}),
        ("/rerank", {"model": OTHER_CHAT, "query": "a", "documents": []}),
    ):
        contract.check_envelope(server.post(at, asked), 400, "invalid_request_error")
    assert status(server, OTHER_CHAT)["value"] == UNLOADED


@posix
def test_unloaded_while_it_loads(a_router: Routers, pool: ThreadPoolExecutor) -> None:
    server = a_router()
    contract.check(send(server, "load_model", model=CHAT))
    contract.check(send(server, "load_model", model=CHAT), 400)
    [engine] = wait_until(
        lambda: (
            [each for each in server.engines() if each.pid != shipped.pid]
            if (shipped := server.engines()[0])
            else []
        ),
        "there is another engine process",
    )
    engine.suspend()
    waiting = in_background(server, pool, CHAT)
    assert status(server, CHAT)["value"] == "loading"
    contract.check(send(server, "unload_model", model=CHAT))
    wait_until(lambda: not alive(engine), "the process has ended, although it does nothing")
    response = waiting.result(SECONDS)
    # Requests from before the unloading get an error; later ones load the model again.
    assert response.status_code in (200, 503)
    contract.check(response, response.status_code)
    contract.check(server.post("/completion", body("create_completion", model=CHAT)))


@posix
def test_unloading_lets_running_requests_finish(
    a_router: Routers, pool: ThreadPoolExecutor
) -> None:
    server = a_router(**{CHAT: f"stop-timeout = {round(SECONDS)}"})
    engine = load_engine(server, CHAT)
    with server.stream("/completion", long_stream(CHAT)) as (_, events):
        seen = [next(events)]
        engine.suspend()
        contract.check(send(server, "unload_model", model=CHAT))
        behind = in_background(server, pool, CHAT)
        assert not behind.done()
        engine.resume()
        seen += events
    contract.check_stream(contract.operations()["create_completion"], seen)
    assert seen[-1].json["tokens_predicted"] == LONG
    assert contract.check(behind.result(SECONDS))["model"] == CHAT
    assert not alive(engine), "it was unloaded and loaded again"


@posix
def test_unloading_ends_what_runs_for_too_long(a_router: Routers, pool: ThreadPoolExecutor) -> None:
    server = a_router(**{CHAT: "stop-timeout = 0\nparallel = 2\nctx-size = 32768"})
    engine = load_engine(server, CHAT)
    whole = in_background(server, pool, CHAT, n_predict=MANY, ignore_eos=True)
    with server.stream("/completion", long_stream(CHAT, MANY)) as (_, events):
        seen = [next(events)]
        wait_until(lambda: n_busy(server, CHAT) == 2, "both are being served")
        engine.suspend()
        contract.check(send(server, "unload_model", model=CHAT))
        engine.resume()
        seen += events
    *_, last = contract.check_stream(contract.operations()["create_completion"], seen)
    assert last["error"]["type"] == "unavailable_error"
    assert CHAT in last["error"]["message"]
    contract.check(whole.result(SECONDS), 503)
    wait_for(server, CHAT, UNLOADED)
    assert not status(server, CHAT)["failed"]
    contract.check(server.post("/completion", body("create_completion", model=CHAT)))


# ---- models that fail ------------------------------------------------------------------------

BROKEN = ("text", "truncated-tensors", "too-many-keys", "unknown-architecture")


def test_models_that_cannot_be_loaded(
    own_server: Start, zoo: Zoo, hub: Mapping[str, str], tmp_path: Path
) -> None:
    from tools.models.hostile import write_hostile_files

    directory = tmp_path / "models"
    directory.mkdir()
    files = write_hostile_files(directory, zoo.path(CHAT))
    shutil.copy(zoo.path(CHAT), directory)
    options = ("--models-dir", str(directory), "--models-shipped", "--models-max", "0")
    server = own_server(*options, router=True, variables=hub)
    assert models(server).keys() <= {MODEL, CHAT, *files}
    assert models(server).keys() >= {MODEL, CHAT, *BROKEN}
    before = server.ask("/completion", body("create_completion", model=CHAT))
    engines = {engine.pid for engine in server.engines()}
    with following(server) as events:
        for name in BROKEN:
            contract.check(send(server, "load_model", model=name))
        for name in BROKEN:
            wait_until_failed(server, name)
            # The next request tries again.
            events.wait_for(name, [UNLOADED, "loading", UNLOADED])
            listed = contract.check(server.get("/models"))
            [found] = [model["status"] for model in listed["data"] if model["id"] == name]
            assert found["value"] == UNLOADED
            assert found["error"]
            assert "Traceback" not in found["error"]
            assert isinstance(found["exit_code"], int)
            response = server.post("/completion", body("create_completion", model=name))
            assert name in contract.check(response, 503)["error"]["message"]
            stream = body("create_completion", model=name, stream=True)
            contract.check(server.post("/completion", stream), 503)
            codes = [event["data"]["exit_code"] for event in events.of(name)
                     if "exit_code" in event["data"]]  # fmt: skip
            assert codes
            assert 0 not in codes
    after = server.ask("/completion", body("create_completion", model=CHAT))
    assert after["content"] == before["content"]
    assert {engine.pid for engine in server.engines()} >= engines
    assert contract.check(server.get("/health")) == {"status": "ok"}


def test_a_model_can_be_repaired(own_server: Start, zoo: Zoo, hub: Any, tmp_path: Path) -> None:
    directory = tmp_path / "models"
    directory.mkdir()
    path = directory / "mended.gguf"
    path.write_bytes(b"nothing")
    server = own_server("--models-dir", str(directory), router=True, variables=hub)
    request = body("create_completion", model="mended")
    contract.check(server.post("/completion", request), 503)
    shutil.copy(zoo.path(CHAT), path)
    wait_until(lambda: server.post("/completion", request).status_code == 200, "it is loaded")
    assert not status(server, "mended")["failed"]


@posix
def test_one_killed_engine_disturbs_no_other_model(
    a_router: Routers, pool: ThreadPoolExecutor
) -> None:
    server = a_router()
    victim = load_engine(server, CHAT)
    others = [OTHER_CHAT, FIM]
    for name in others:
        set_status(server, name, LOADED)
    running = [in_background(server, pool, name, n_predict=LONG, ignore_eos=True)
               for name in others]  # fmt: skip
    with server.stream("/completion", long_stream(CHAT)) as (_, events):
        seen = [next(events)]
        victim.suspend()
        victim.kill()
        seen += events
    *_, last = contract.check_stream(contract.operations()["create_completion"], seen)
    assert last["error"]["type"] == "server_error"
    for response in running:
        assert contract.check(response.result(SECONDS))["tokens_predicted"] == LONG
    contract.check(server.post("/completion", body("create_completion", model=CHAT)))
    assert set(others) <= loaded(server)


def test_a_stream_goes_on_without_its_client_while_its_model_loads(a_router: Routers) -> None:
    server = a_router("--models-max", "1")
    where = "/v1/stream?conv_id=c"
    data = json.dumps({**long_stream(OTHER_CHAT, 20), "stream": True}).encode()
    headers = {"X-Conversation-Id": "c", "Content-Type": "application/json"}
    set_status(server, CHAT, LOADED)
    engine = server.engine()
    with server.stream("/completion", long_stream(CHAT)) as (_, events):
        next(events)
        engine.suspend()  # so the other model has to wait for its place
        connection = server.raw(server.head("/completion", len(data), **headers) + data)
        wait_until(lambda: server.get(where).status_code == 503, "the request waits for its model")
        connection.close()
        engine.resume()
        list(events)
    wait_until(lambda: server.get(where).status_code == 200, "the stream has begun")
    *_, last = read_events([server.get(where).content])
    assert last.json["tokens_predicted"] == 20


# ---- --models-max ----------------------------------------------------------------------------


@posix
def test_no_running_stream_is_interrupted(a_router: Routers, pool: ThreadPoolExecutor) -> None:
    server = a_router("--models-max", "1")
    set_status(server, CHAT, LOADED)
    assert loaded(server) == {CHAT}, "the shipped model made room"
    engine = server.engine()
    with server.stream("/completion", long_stream(CHAT)) as (_, events):
        seen = [next(events)]
        engine.suspend()
        waiting = in_background(server, pool, OTHER_CHAT)
        wait_until(lambda: statuses(server)[OTHER_CHAT] == "loading", "the request waits for it")
        contract.check(send(server, "load_model", model=FIM))
        assert statuses(server)[CHAT] == LOADED
        assert server.engines() == [engine]
        assert not waiting.done()
        engine.resume()
        seen += events
    assert seen[-1].json["tokens_predicted"] == LONG
    assert contract.check(waiting.result(SECONDS))["model"] == OTHER_CHAT
    wait_for(server, FIM, LOADED)
    assert loaded(server) == {FIM}


def test_the_least_recently_used_model_makes_room(a_router: Routers) -> None:
    server = a_router("--models-max", "2")

    def use(name: str) -> set[str]:
        server.ask("/tokenize", {"content": "a", "model": name})
        return loaded(server)

    assert use(CHAT) == {MODEL, CHAT}
    assert use(MODEL) == {MODEL, CHAT}
    assert use(FIM) == {MODEL, FIM}
    # Reading a model's status doesn't use it.
    for where in ("/models", "/health", "/props", with_query("get_props", model=MODEL)):
        contract.check(server.get(where))
    assert use(FIM) == {MODEL, FIM}
    assert use(EMBEDDER) == {FIM, EMBEDDER}
    assert len(server.engines()) == 2


ASKED: dict[str, tuple[str, dict[str, Any]]] = {
    **{
        name: ("create_completion", {"n_predict": 8, "temperature": 0, "ignore_eos": True})
        for name in (MODEL, CHAT, OTHER_CHAT, FIM)
    },
    EMBEDDER: ("create_openai_embeddings", {}),
    RERANKER: ("create_rerank", {}),
}


def answers_of(server: OwnServer, name: str) -> Any:
    operation, changes = ASKED[name]
    response = server.post(path(operation), body(operation, model=name, **changes))
    answer = contract.check(response)
    assert answer["model"] == name
    if operation == "create_completion":
        return answer["content"]
    return [sorted(each.items()) for each in answer.get("data", answer.get("results"))]


def test_many_requests_for_more_models_than_there_is_room(a_router: Routers) -> None:
    server = a_router("--models-max", "2")
    expected = {name: answers_of(server, name) for name in ASKED}
    assert len({str(answer) for answer in expected.values()}) == len(ASKED)
    n_threads, n_each, run_length = 8, 25, 13  # loading takes much longer than a request
    names = list(ASKED)
    wrong: queue.Queue[str] = queue.Queue()
    peak = 0

    def ask(number: int) -> int:
        nonlocal peak
        for i in range(n_each):
            name = names[(number // 2 + 2 * (i // run_length)) % len(names)]
            if (answer := answers_of(server, name)) != expected[name]:
                wrong.put(f"{name}: {answer}")
            peak = max(peak, len(loaded(server)))
        return n_each

    with ThreadPoolExecutor(n_threads) as pool:
        assert sum(pool.map(ask, range(n_threads))) == 200
    assert wrong.empty(), list(wrong.queue)
    assert 1 <= peak <= 2
    assert not any(model["status"]["failed"] for model in models(server).values())


# ---- the end ---------------------------------------------------------------------------------


@posix
def test_the_end_in_the_middle_of_everything(a_router: Routers, pool: ThreadPoolExecutor) -> None:
    server = a_router("--models-max", "2", "--drain-timeout", "0")
    with following(server) as events:
        contract.check(send(server, "load_model", model=CHAT))
        waiting = [in_background(server, pool, name) for name in (OTHER_CHAT, FIM)]
        wait_until(lambda: len(server.engines()) > 1, "another engine process has begun")
        processes = family(server)
        assert server.stop(signal.SIGTERM) == 0
        assert events.ended.wait(SECONDS)
    wait_until_ended(processes)
    for each in waiting:
        if (error := each.exception(SECONDS)) is None:
            contract.check(each.result(), 200 if each.result().is_success else 503)
        else:
            assert isinstance(error, httpx.TransportError)
    assert "Traceback" not in server.log.read_text()


@posix
def test_followers_do_not_delay_the_end(a_router: Routers) -> None:
    server = a_router("--drain-timeout", "600")
    processes = family(server)
    with following(server) as events:
        assert server.stop(signal.SIGTERM) == 0
        assert events.ended.wait(SECONDS)
    wait_until_ended(processes)
