"""Checks of everything around generation: keys, foreign pages, HEAD, unsupported operations,
properties, slots, metrics, adapters. See `checks`."""

import json
import re
from typing import Any

import httpx
import pytest

from contract_tests.kit import contract
from contract_tests.kit.bodies import BODIES, ENDLESS, REFUSED, body, path
from contract_tests.kit.server import SECONDS, OwnServer, Server, needs_key

FOREIGN = {"Origin": "https://foreign.example"}


def _harmless(server: Server, name: str) -> Any:
    """Returns a body that changes nothing, in case the server accepts it."""
    if name != "set_lora_adapters":
        return BODIES.get(name)
    if not server.offers("list_lora_adapters"):
        return []
    return _scales(server.get(path("list_lora_adapters")))


def _scales(response: httpx.Response) -> list[dict[str, Any]]:
    """Returns a body that sets the adapters' scales to their present values."""
    adapters = response.json() if response.is_success else []
    return [{"id": adapter["id"], "scale": adapter["scale"]} for adapter in adapters]


def _asked(server: Server, name: str, headers: dict[str, str]) -> httpx.Response:
    """Returns the answer to a harmless request."""
    method = contract.operations()[name].method.upper()
    return server.http.request(method, path(name), json=_harmless(server, name), headers=headers)


def keys_are_wanted_everywhere(server: Server) -> None:
    """Every operation that is not described as public needs a key."""
    needs_key(server)
    wrong = {"Authorization": "Bearer wrong"}
    for name, operation in contract.operations().items():
        if contract.is_public(operation) or name in ENDLESS or not server.offers(name):
            continue
        response = _asked(server, name, wrong)
        got = f"{response.status_code}: {response.text:.200}"
        assert response.status_code == 401, f"{operation.name} needs no key: {got}"


STATES = ("get_metrics", "list_slots", "list_queue", "get_props", "get_loads", "get_usage")


def keys_are_never_shown(server: Server) -> None:
    """Metrics, slots and the like have names of keys at most, after a request with the key."""
    key = needs_key(server)
    server.ask("/completion", body("create_completion"))
    shown = [name for name in STATES if key in server.get(path(name)).text]
    assert not shown, f"the key is shown by {shown}"


def public_operations_want_no_key(server: Server) -> None:
    without = {"Authorization": ""}
    for name in (
        "get_health",
        "get_liveness",
        "get_health_alias",
        "list_models",
        "list_openai_models",
    ):
        if contract.is_public(contract.operations()[name]):
            contract.check(server.get(path(name), headers=without))


def foreign_pages_change_nothing(server: Server) -> None:
    """Operations described as closed to foreign pages refuse them before anything else."""
    n_offered = 0
    for name, operation in contract.operations().items():
        refuses = operation.definition.get("x-refuses-foreign-origins")
        if not refuses or not server.offers(name):
            continue
        response = _asked(server, name, FOREIGN)
        got = f"{response.status_code}: {response.text:.200}"
        offered = response.status_code not in (404, 501)
        assert response.status_code == 403 or not offered, (
            f"{operation.name} serves a foreign page: {got}"
        )
        n_offered += offered
    if not n_offered:
        assert not isinstance(server, OwnServer), "our server has such operations"
        pytest.skip("the server has no operation that foreign pages may not use")


def heads_have_no_body(server: Server) -> None:
    """The answer to HEAD has the head of the answer to GET, and no body."""
    for name in ("get_health", "list_openai_models", "get_props"):
        expected = server.get(path(name))
        said = _read_to_the_end(server, "HEAD", path(name))
        head, _, rest = said.partition(b"\r\n\r\n")
        status = int(head.split()[1])
        assert status == expected.status_code, f"HEAD {path(name)}: {said[:300]!r}"
        assert not rest, f"HEAD {path(name)} has a body: {rest[:300]!r}"


def _read_to_the_end(server: Server, method: str, where: str) -> bytes:
    lines = [f"{method} {where} HTTP/1.1", f"Host: {server.address[0]}:{server.address[1]}"]
    lines += [f"{name}: {value}" for name, value in {**server.auth, "Connection": "close"}.items()]
    with server.raw("\r\n".join([*lines, "", ""]).encode()) as connection:
        connection.settimeout(SECONDS)
        return b"".join(iter(lambda: connection.recv(65536), b""))


def unsupported_operations_say_so(server: Server) -> None:
    """Operations that are described as unsupported answer with their documented error."""
    for name in REFUSED:
        operation = contract.operations()[name]
        response = server.http.request(operation.method.upper(), path(name), json={})
        status = response.status_code
        assert status >= 400, f"{operation.name} answers {status}"
        if status != 404 or "404" in operation.definition["responses"]:
            contract.check(response, status)


def allowed_methods_are_listed(server: Server) -> None:
    for name in ("get_health", "tokenize"):
        response = server.http.put(path(name), json={})
        assert response.status_code == 405, f"PUT {path(name)}: {response.status_code}"
        allowed = re.split(r",\s*", response.headers.get("allow", ""))
        method = contract.operations()[name].method.upper()
        assert method in allowed, f"PUT {path(name)} is not allowed, only {allowed}"


def properties_agree(server: Server) -> None:
    """The server's properties are the same in all its answers."""
    props = server.get("/props").json()
    slots = server.slots()
    assert props["total_slots"] == len(slots), "total_slots"
    assert [slot["id"] for slot in slots] == list(range(len(slots))), "the ids of slots"
    n_ctx = props["default_generation_settings"]["n_ctx"]
    assert {slot["n_ctx"] for slot in slots} == {n_ctx}, "n_ctx"
    names = [model["id"] for model in server.get("/v1/models").json()["data"]]
    assert props["model_alias"] in names, "model_alias"
    for name in names:
        assert contract.check(server.get(f"/v1/models/{name}"))["id"] == name
    contract.check(server.get("/v1/models/contract-tests-missing"), 404)
    assert server.ask("/completion", body("create_completion"))["model"] == props["model_alias"]


def slots_come_to_rest(server: Server) -> None:
    """Slots become idle once their request and later ones are answered."""
    seen: list[Any] = []
    for _ in range(20):
        server.ask("/completion", body("create_completion", n_predict=1))
        seen = [slot["id"] for slot in server.slots() if slot["is_processing"]]
        if not seen:
            return
    raise AssertionError(f"slots {seen} work, though every request has been answered")


def counters_never_go_down(server: Server) -> None:
    """Counters grow by the work between two scrapes."""
    first = _counters(server)
    answer = server.ask("/completion", body("create_completion", n_predict=5, ignore_eos=True))
    then = _counters(server)
    for name, value in first.items():
        assert then.get(name, 0) >= value, f"{name} went down, from {value} to {then.get(name)}"
    name = "llamacpp:tokens_predicted_total"
    assert then[name] - first[name] >= answer["tokens_predicted"], name


def _counters(server: Server) -> dict[str, float]:
    response = server.get("/metrics")
    if response.status_code == 501:
        pytest.skip("the server has no metrics")
    text = contract.check(response).decode()
    counters = re.findall(r"^# TYPE (\S+) counter$", text, re.MULTILINE)
    values = re.findall(r"^(\S+) ([-+.\deE]+)$", text, re.MULTILINE)
    found = {name: float(value) for name, value in values if name in counters}
    assert found, f"no counters in {text:.500}"
    return found


def adapters_keep_their_scales(server: Server) -> None:
    """Adapters' scales can be set; at the end they are as before."""
    response = server.get(path("list_lora_adapters"))
    before, old = contract.check(response), _scales(response)
    if not before:
        pytest.skip("the server has no adapters")
    assert [adapter["id"] for adapter in before] == list(range(len(before)))
    try:
        for scale in (0.25, 0.75):
            wanted = [{"id": before[-1]["id"], "scale": scale}]
            contract.check(server.post(path("set_lora_adapters"), wanted))
            after = contract.check(server.get(path("list_lora_adapters")))
            assert after[-1]["scale"] == scale, f"{after[-1]} in the place of {scale}"
            assert not any(adapter["scale"] for adapter in after[:-1]), after
    finally:
        server.post(path("set_lora_adapters"), old)


def the_description_is_served(server: Server) -> None:
    """The served description has every operation of the kit's description."""
    response = server.get("/openapi.json")
    if response.status_code == 404:
        assert not isinstance(server, OwnServer), "our server serves it"
        pytest.skip("the server doesn't serve its description")
    served = json.loads(response.content)["paths"]
    described = {(each.path, each.method) for each in contract.operations().values()}
    missing = [f"{m} {p}" for p, m in described if m not in served.get(p, {})]
    assert not missing, f"the served description is without {missing}"


def requests_have_ids(server: Server) -> None:
    """A client's own id is returned; requests without one get an id each."""
    mine = server.get("/health", headers={"X-Request-Id": "contract-tests-5519"})
    assert mine.headers.get("x-request-id") == "contract-tests-5519"
    given = [server.get("/health").headers.get("x-request-id") for _ in range(2)]
    assert all(given), "an answer without X-Request-Id"
    assert given[0] != given[1], "two requests with one X-Request-Id"


def tools_run_in_their_directory(server: Server) -> None:
    """Tools have the names of their definitions, and the built-in ones see no file outside."""
    response = server.get(path("list_server_tools"))
    if response.status_code == 403:
        pytest.skip("the server was started without tools")
    tools = {each["tool"]: each for each in contract.check(response)}
    for name, tool in tools.items():
        called = tool["definition"]["function"]["name"]
        assert called == name, f"the definition of the tool {name} is called {called}"
    run = path("run_server_tool")
    contract.check(server.post(run, {"tool": "contract-tests-missing", "params": {}}), 404)
    if tools.get("read_file", {}).get("type") != "server":
        assert not isinstance(server, OwnServer), "it was started without this tool"
        pytest.skip("the server has no built-in tool that reads files")
    for outside in ("/etc/hosts", "../../../../../../../../etc/hosts", "/proc/self/environ"):
        result = contract.check(server.post(run, _reading(outside)))
        assert "error" in result, f"read_file shows {outside}: {result}"


def _reading(file: str) -> dict[str, Any]:
    return {"tool": "read_file", "params": {"path": file}}


OF_SERVERS = (
    keys_are_wanted_everywhere,
    keys_are_never_shown,
    public_operations_want_no_key,
    foreign_pages_change_nothing,
    heads_have_no_body,
    unsupported_operations_say_so,
    allowed_methods_are_listed,
    properties_agree,
    slots_come_to_rest,
    counters_never_go_down,
    adapters_keep_their_scales,
    the_description_is_served,
    requests_have_ids,
    tools_run_in_their_directory,
)
