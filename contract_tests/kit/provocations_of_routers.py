"""Provokes statuses of the operations on models: on the list, and on a router."""

from concurrent.futures import ThreadPoolExecutor
from urllib.parse import quote

import httpx
import pytest

from contract_tests.kit import contract
from contract_tests.kit.bodies import (
    BODIES,
    STREAMING,
    body,
    path,
)
from contract_tests.kit.provocations_of_bodies import bad_request
from contract_tests.kit.routers import lasting, set_status
from contract_tests.kit.server import SECONDS, OwnServer, Server, needs_key, wait_until
from contract_tests.kit.situations import Situations, send, send_with_query


def events_of_models(server: Server, name: str) -> list[httpx.Response]:
    """Returns the beginning of an endless stream, up to the last model's first event."""
    n_models = len(server.get("/models").json()["data"])
    read = b""
    with server.http.stream("GET", path(name)) as response:
        chunks = response.iter_raw()
        while read.count(b"\n\n") < n_models:
            read += next(chunks)
        status, headers, request = response.status_code, response.headers, response.request
    return [httpx.Response(status, headers=headers, content=read, request=request)]


def unknown_model(situations: Situations, name: str) -> list[httpx.Response]:
    """Sends an unknown model name in the body, or in the query if the body has no place for it."""
    server, definition = situations.router, contract.operations()[name].definition
    unknown = situations.model.removesuffix("y")
    responses = []
    if name == "create_ollama_chat":  # it also has OpenAI's answers
        responses.append(send(server, name, model=unknown, options={}))
    elif isinstance(BODIES.get(name), dict):
        responses.append(send(server, name, model=unknown))
        if name in STREAMING:
            responses.append(send(server, name, model=unknown, stream=True))
    if any(each["name"] == "model" for each in definition.get("parameters", ())):
        responses.append(send_with_query(server, name, model=unknown))
    for response in responses:
        message = contract.message(response)
        assert repr(unknown) in message
        assert situations.model in message.replace(repr(unknown), ""), (
            "the message doesn't name the model with a similar name"
        )
    return responses


def listed_models(server: Server, name: str) -> list[httpx.Response]:
    """Requests every model of the list under each of its names, with plain and encoded slashes."""
    responses = []
    for entry in server.get("/v1/models").json()["data"]:
        for each in {entry["id"], *entry["aliases"]}:
            responses += [server.get(f"/v1/models/{quote(each, safe=s)}") for s in ("/:", "")]
            for response in responses[-2:]:
                assert lasting(response.json()) == lasting(entry)
    return responses


def no_model(server: Server, name: str) -> list[httpx.Response]:
    names = (
        "gpt-4o",
        "org/gpt-4o",
        "org%2Fgpt-4o",
        "a/b/c",
        "%F0%9F%A6%99",
        "a%00b",
        "a%0Ab",
        "x" * 4096,
    )
    return [server.get(f"/v1/models/{each}") for each in names]


def too_long_a_name(server: Server, name: str) -> list[httpx.Response]:
    return [server.get(f"/v1/models/{'x' * 4097}")]


def in_routers_list(situations: Situations, name: str) -> list[httpx.Response]:
    return listed_models(situations.router, name)


def no_model_of_router(situations: Situations, name: str) -> list[httpx.Response]:
    return no_model(situations.router, name)


def of_no_router(server: Server, name: str) -> list[httpx.Response]:
    """Sends operations of a router to a server that is none. The model doesn't exist, so that a
    router would change nothing."""
    if server.post("/models/load", {"model": "contract-tests-missing"}).status_code != 501:
        assert not isinstance(server, OwnServer), "the server was started with one model"
        pytest.skip("the server is a router")
    return [send(server, name)]


def in_router(situations: Situations, name: str) -> list[httpx.Response]:
    set_status(
        situations.router, situations.model, "unloaded" if name == "load_model" else "loaded"
    )
    return [send(situations.router, name)]


def bad_model_change(situations: Situations, name: str) -> list[httpx.Response]:
    """Requests changes to the state that a model already has, and invalid changes."""
    server = situations.router
    set_status(server, situations.model, "loaded" if name == "load_model" else "unloaded")
    wrong = [
        send(server, name, model=value) for value in ("", "x" * 4097, None, 7, [situations.model])
    ]
    return [send(server, name), *wrong, *bad_request(server, name)]


def ok_with_cache(situations: Situations, name: str) -> list[httpx.Response]:
    """Requests a model that came into the cache while the router ran."""
    server = situations.router
    situations.put_into_cache()
    if name == "remove_model":
        contract.check(server.get("/models?reload=1"))
        return [send(server, name)]
    begun = send(server, name)
    assert server.http.request("DELETE", path("remove_model")).status_code == 200
    return [begun]


def bad_download(situations: Situations, name: str) -> list[httpx.Response]:
    server = situations.router
    names = ("", "x", "../x", "a/..", "/etc/passwd", "a/b/c", "a/b:", "a b/c", "x" * 4097, None, 7)
    wrong = [send(server, name, model=each) for each in (*names, "contract/tests-missing")]
    situations.put_into_cache()
    contract.check(server.get("/models?reload=1"))
    there = send(server, name)
    assert server.http.request("DELETE", path("remove_model")).status_code == 200
    return [*wrong, there, *bad_request(server, name)]


def not_removable(situations: Situations, name: str) -> list[httpx.Response]:
    server = situations.router
    names = (situations.model, "z-one", "", "x" * 4097)
    responses = [server.http.request("DELETE", "/models", params={"model": m}) for m in names]
    return [*responses, server.http.request("DELETE", "/models")]


def nothing_to_remove(situations: Situations, name: str) -> list[httpx.Response]:
    names = ("missing", "a/b:Q8_0", "../../etc", "%2e%2e", "/", "contract/tests-GGUF")
    wrong = [{"model": each} for each in names]
    return [situations.router.http.request("DELETE", "/models", params=each) for each in wrong]


def models_fail(situations: Situations, name: str) -> list[httpx.Response]:
    """Requests changes while the presets can't be read, or a folder replaces a file to remove."""
    if name == "remove_model":
        server, folder = situations.router, situations.put_into_cache()
        contract.check(server.get("/models?reload=1"))
        obstacle = folder / "snapshots" / ("1" * 40) / "tiny-Q8_0.gguf"
        obstacle.mkdir(parents=True)
        failed = send(server, name)
        obstacle.rmdir()
        return [failed]
    with situations.broken_presets() as server:
        if name == "download_model":
            return [send(server, name)]
        if name == "pull_ollama_model":
            situations.put_into_cache()
            model = BODIES["download_model"]["model"]
            failed = send(server, name, model=model)
            *_, end = contract.check(send(server, name, model=model, stream=True))
            assert end == failed.json()
            return [failed]
        return [server.get(path(name) + "?reload=1")]


def without_key(server: Server, name: str) -> list[httpx.Response]:
    """Sends a public operation with a parameter that needs a key."""
    needs_key(server)
    assert server.http.get(path(name), headers={"Authorization": ""}).status_code == 200
    wrong = ({"Authorization": ""}, {"Authorization": "Bearer no"}, {"Authorization": "Basic no"})
    headers = [*wrong, {"Authorization": "", "x-api-key": "no"}]
    return [server.http.get(path(name) + "?reload=1", headers=each) for each in headers]


def stream_of_loading_model(situations: Situations, name: str) -> list[httpx.Response]:
    """Reads the stream of a request whose model is still loading, and deletes it, which ends the
    request."""
    where, chat = "/v1/stream?conv_id=contract+tests", body("create_chat_completion", stream=True)
    headers = {"X-Conversation-Id": "contract tests"}
    with situations.loading_router() as server, ThreadPoolExecutor(1) as pool:
        address = path("create_chat_completion")
        asked = pool.submit(server.http.post, address, json=chat, headers=headers)
        wait_until(lambda: server.get(where).status_code == 503, "the model is loading")
        loading = server.get(where)
        assert server.http.delete(where).status_code == 204
        stopped = contract.check(asked.result(SECONDS), 400)["error"]["message"]
        assert "cancelled" in stopped
        assert server.get(where).status_code == 404
    return [loading]
