"""A router whose models change: downloads, removals, and reloading the list of models."""

import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from pathlib import Path
from typing import Any

import httpx
import pytest

from contract_tests.kit import contract
from contract_tests.kit.bodies import body
from contract_tests.kit.routers import (
    LOADED,
    UNLOADED,
    Following,
    following,
    lasting_list,
    models,
    set_status,
    status,
    statuses,
    wait_for,
)
from contract_tests.kit.server import SECONDS, OwnServer, Start, wait_until
from contract_tests.own.servers import MODEL
from specllama.engine.shipped import model_path
from tests.support.hub import Hub, serving

DATA = model_path().read_bytes()
CRAWL = len(DATA) // 3600  # bytes per second, for downloads that must not end
REPOSITORY = "maker/tiny-GGUF"
NAME = f"{REPOSITORY}:Q8_0"
OTHER = f"{REPOSITORY}:F16"
PRESETS = "[one]\nmodel = specllama-tiny\n[two]\nmodel = specllama-tiny\n"


@pytest.fixture
def hub() -> Iterator[Hub]:
    with serving() as hub:
        hub.add(REPOSITORY, {"tiny-Q8_0.gguf": DATA, "tiny-F16.gguf": DATA + bytes(8)})
        yield hub


Router = tuple[OwnServer, Path, Path]
"""A router, its cache, and its file of presets."""


@pytest.fixture
def router(own_server: Start, hub: Hub, tmp_path: Path) -> Router:
    cache, presets = tmp_path / "hub", tmp_path / "models.ini"
    presets.write_text(PRESETS, "utf-8")
    variables = {"HF_ENDPOINT": hub.url, "HF_HUB_CACHE": str(cache)}
    options = ("--models-preset", str(presets), "--models-shipped")
    server = own_server(*options, router=True, variables=variables, api_key="key")
    return server, cache, presets


def test_a_template_that_cant_be_parsed_fails_its_model_alone(
    own_server: Start, tmp_path: Path
) -> None:
    presets = tmp_path / "models.ini"
    presets.write_text(PRESETS + "chat-template = {% if x %}{{ x }}{% endfor %}\n", "utf-8")
    variables = {"HF_HUB_CACHE": str(tmp_path / "hub")}
    server = own_server("--models-preset", str(presets), router=True, variables=variables)
    chat = body("create_chat_completion")
    refused = contract.check(server.post("/v1/chat/completions", chat | {"model": "two"}), 503)
    assert "(line 1, column 21)" in refused["error"]["message"]
    found = status(server, "two")
    assert (found["value"], found["failed"]) == (UNLOADED, True)
    assert "(line 1, column 21)" in found["error"]
    contract.check(server.post("/v1/chat/completions", chat | {"model": "one"}))
    assert status(server, "one")["value"] == LOADED


def download(server: OwnServer, name: str, code: int = 200) -> Any:
    return contract.check(server.post("/models", {"model": name}), code)


def remove(server: OwnServer, name: str, code: int = 200) -> Any:
    response = server.http.request("DELETE", "/models", params={"model": name})
    return contract.check(response, code)


def kinds(events: Following, name: str) -> list[str]:
    return [event["event"] for event in events.of(name)]


def n_there(events: Following) -> int:
    """Returns the number of downloaded bytes."""
    progress = [e["data"]["progress"] for e in events.of(NAME) if e["event"] == "download_progress"]
    return max((each["done"] for files in progress for each in files.values()), default=0)


def files(cache: Path) -> list[str]:
    """Returns names and contents of models in the cache."""
    found = [path for path in cache.rglob("*") if path.is_file() or path.is_symlink()]
    return [path.name for path in found if {"blobs", "snapshots"} & {*path.parts}]


def complete(server: OwnServer, name: str) -> Any:
    return server.ask("/completion", body("create_completion", model=name))["stop"]


# ---- POST /models ----------------------------------------------------------------------------


def test_a_download_is_announced_and_ends_in_the_list(router: Router, hub: Hub) -> None:
    server, cache, _ = router
    hub.faults.bytes_per_second = CRAWL
    with following(server) as events:
        download(server, NAME)
        assert status(server, NAME)["value"] == "downloading"
        assert models(server)[NAME]["can_remove"] is True
        for again in (download(server, NAME, 400), download(server, "one/two:missing", 400)):
            assert again["error"]["message"]
        refused = server.post("/completion", body("create_completion", model=NAME))
        assert "is being downloaded" in contract.check(refused, 400)["error"]["message"]
        wait_until(lambda: "download_progress" in kinds(events, NAME), "the event is sent")
        hub.faults.bytes_per_second = None
        wait_until(lambda: kinds(events, "*") == ["models_reload"] * 2, "all is done")
        seen = kinds(events, NAME)
        assert seen[0] == "model_status"
        assert seen.count("download_finished") == 1
        assert "download_progress" in seen[: seen.index("download_finished")]
    found = models(server)[NAME]
    assert (found["source"], found["in_cache"], found["can_remove"]) == ("cache", True, True)
    assert found["status"]["value"] == UNLOADED
    assert Path(found["path"]).is_relative_to(cache)
    assert complete(server, NAME)


def test_unknown_names_are_reported_at_once(router: Router, hub: Hub) -> None:
    server, _, _ = router
    for name in (f"{REPOSITORY}:Q2_K", "maker/nothing", "x", "/etc/passwd", "../../x", "one"):
        assert download(server, name, 400)["error"]["message"]
    wait_until(lambda: statuses(server).keys() == {MODEL, "one", "two"}, "nothing is left")
    assert not hub.downloads()


def test_unloading_breaks_a_download_off_and_it_goes_on(router: Router, hub: Hub) -> None:
    server, _, _ = router
    hub.faults.bytes_per_second = CRAWL
    with following(server) as events:
        download(server, NAME)
        wait_until(lambda: n_there(events) > 0, "some of it is there")
        contract.check(server.post("/models/unload", {"model": NAME}))
        wait_until(lambda: "download_failed" in kinds(events, NAME), "the event is sent")
    wait_until(lambda: NAME not in models(server), "it is no model")
    hub.faults.bytes_per_second = None
    download(server, NAME)
    wait_until(lambda: models(server).get(NAME, {}).get("in_cache"), "it is there")
    assert hub.downloads()[-1].range, "it went on"


# ---- DELETE /models --------------------------------------------------------------------------


def test_a_loaded_model_is_removed_and_the_others_stay(router: Router) -> None:
    server, cache, _ = router
    for name in (NAME, OTHER):
        download(server, name)
    wait_until(
        lambda: all(models(server).get(name, {}).get("in_cache") for name in (NAME, OTHER)),
        "they are there",
    )
    complete(server, NAME)
    n_files, n_engines = len(files(cache)), len(server.engines())
    with following(server) as events:
        remove(server, NAME)
        wait_until(lambda: kinds(events, NAME)[-1] == "model_remove", "the event is sent")
    assert NAME not in models(server)
    assert len(server.engines()) == n_engines - 1
    assert len(files(cache)) == n_files - 2, "a link and its content"
    contract.check(server.post("/completion", body("create_completion", model=NAME)), 400)
    assert complete(server, OTHER)
    remove(server, NAME, 404)


def test_removing_breaks_a_download_off(router: Router, hub: Hub) -> None:
    server, _, _ = router
    hub.faults.bytes_per_second = CRAWL
    download(server, NAME)
    remove(server, NAME)
    assert NAME not in models(server)
    contract.check(server.get("/health"))


def test_nothing_else_can_be_removed(router: Router) -> None:
    server, _, presets = router
    before = presets.read_bytes(), model_path().stat().st_size
    for name in (MODEL, "one", "two"):
        assert models(server)[name]["can_remove"] is False
        remove(server, name, 400)
    for name in ("../models.ini", str(presets), "/", "*", "."):
        remove(server, name, 404)
    assert (presets.read_bytes(), model_path().stat().st_size) == before


def test_a_download_with_a_preset_stays(router: Router) -> None:
    server, cache, presets = router
    download(server, NAME)
    wait_until(lambda: models(server).get(NAME, {}).get("in_cache"), "it is there")
    presets.write_text(PRESETS + f"[{NAME}]\nc = 64\n", "utf-8")
    contract.check(server.get("/models?reload=1"))
    found = models(server)[NAME]
    assert (found["source"], found["can_remove"]) == ("preset", False)
    remove(server, NAME, 400)
    assert len(files(cache)) == 2


def test_changes_need_the_key(router: Router) -> None:
    server, _, _ = router
    wrong: dict[str, Any] = {"headers": {"Authorization": "Bearer no"}}
    for response in (
        server.http.post("/models", json={"model": NAME}, **wrong),
        server.http.request("DELETE", "/models", params={"model": "one"}, **wrong),
        server.http.get("/models?reload=1", **wrong),
        server.http.get("/v1/models?reload=1", **wrong),
    ):
        contract.check(response, 401)
    contract.check(server.http.get("/models", **wrong))
    assert statuses(server).keys() == {MODEL, "one", "two"}


# ---- GET /models?reload=1 --------------------------------------------------------------------


def test_looking_again_adds_changes_and_removes(router: Router) -> None:
    server, _, presets = router
    for name in ("one", "two"):
        set_status(server, name, LOADED)
    set_status(server, MODEL, LOADED)
    presets.write_text("[one]\nmodel = specllama-tiny\nc = 77\n[new]\nmodel = specllama-tiny\n"
                       "load-on-startup = on\n", "utf-8")  # fmt: skip
    with following(server) as events:
        listed = contract.check(server.get("/models?reload=1"))
        wait_until(lambda: kinds(events, "*") == ["models_reload"], "the event is sent")
    found = {model["id"]: model["status"]["value"] for model in listed["data"]}
    # load-on-startup is no longer applied.
    assert found == {MODEL: LOADED, "one": UNLOADED, "new": UNLOADED}
    assert complete(server, "one")
    assert models(server)["one"]["meta"]["n_ctx"] < 512
    contract.check(server.post("/completion", body("create_completion", model="two")), 400)
    assert lasting_list(server, "/v1/models?reload=") == lasting_list(server, "/models")


@pytest.mark.parametrize("text", ["what?", "[two]\napi-key = x", "[*]\nc = many", "[*]\nqq = 1"])
def test_an_unreadable_file_changes_nothing(router: Router, text: str) -> None:
    server, _, presets = router
    set_status(server, "two", LOADED)
    presets.write_text(text, "utf-8")
    error = contract.check(server.get("/models?reload=1"), 500)["error"]
    assert str(presets) in error["message"]
    assert statuses(server).keys() == {MODEL, "one", "two"}
    assert complete(server, "two")


# ---- models that are waited for --------------------------------------------------------------


def test_a_model_is_loaded_though_its_client_has_gone(router: Router) -> None:
    server, _, _ = router
    request = b'{"prompt": "a", "n_predict": 4, "model": "two"}'
    with closing(server.raw(server.head("/completion", len(request)) + request)):
        wait_until(lambda: statuses(server)["two"] != UNLOADED, "it is loading")
    wait_for(server, "two", LOADED)
    assert complete(server, "two")


def test_reloads_downloads_and_requests_at_the_same_time(router: Router, hub: Hub) -> None:
    server, _, presets = router
    stop = threading.Event()

    def again(action: Callable[[], httpx.Response], *allowed: int) -> int:
        n = 0
        while not stop.is_set():
            response = action()
            assert response.status_code in allowed, response.text
            contract.check(response, response.status_code)
            n += 1
        return n

    def change() -> httpx.Response:
        more = "c = 64\n" if "c = " not in presets.read_text("utf-8") else ""
        # Written at once, because the end of a download makes the router read the file, too.
        fresh = presets.with_suffix(".new")
        fresh.write_text(PRESETS + more, "utf-8")
        fresh.replace(presets)
        return server.get("/models?reload=1")

    request = body("create_completion", model="two", n_predict=2)
    with ThreadPoolExecutor(4) as pool:
        running = [
            pool.submit(again, change, 200),
            pool.submit(again, lambda: server.get("/models"), 200),
            # A request for a model that is unloaded because its options changed gets an error.
            pool.submit(again, lambda: server.post("/completion", request), 200, 503),
        ]
        try:
            for _ in range(3):
                download(server, NAME)
                wait_until(lambda: models(server).get(NAME, {}).get("in_cache"), "it is there")
                remove(server, NAME)
        finally:
            stop.set()
        assert all(each.result(SECONDS) for each in running)
    assert complete(server, "two")


# ---- presets that can't be used --------------------------------------------------------------


def test_a_stale_preset_is_a_model_that_failed(router: Router) -> None:
    """A missing file affects neither the start nor a reload nor the other models."""
    server, _, presets = router
    missing = presets.with_name("gone.gguf")
    stale = (
        f"[gone]\nmodel = {missing}\n[odd]\nmodel = specllama-tiny\nctx-size = many\n[nowhere]\n"
    )
    presets.write_text(PRESETS + stale, "utf-8")
    contract.check(server.get("/models?reload=1"))
    for name, reason in (("gone", str(missing)), ("odd", "ctx-size"), ("nowhere", "no such model")):
        found = status(server, name)
        assert found["failed"], found
        assert reason in found["error"]
        refused = server.post("/completion", body("create_completion", model=name))
        assert reason in contract.check(refused, 503)["error"]["message"]
        loading = server.post("/models/load", {"model": name})
        assert reason in contract.check(loading, 400)["error"]["message"]
    assert status(server, "gone")["args"][1:3] == ["--model", str(missing)]
    assert complete(server, "one")
    missing.write_bytes(DATA)
    presets.write_text(PRESETS + stale.replace("many", "256").replace("[nowhere]\n", ""), "utf-8")
    contract.check(server.get("/models?reload=1"))
    assert "nowhere" not in models(server)
    for name in ("gone", "odd"):
        assert not status(server, name)["failed"]
        assert complete(server, name)
