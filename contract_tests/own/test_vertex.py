"""Vertex AI's form: paths and port from its variables, and predictions. What llama-server's own
tests of it ask is among them."""

import json
from typing import Any

import pytest

from contract_tests.kit import contract
from contract_tests.kit.server import OwnServer, Start, wait_until
from contract_tests.own.launching import one_line
from contract_tests.own.servers import free_port, run

FORMAT = "@requestFormat"
CHAT: dict[str, Any] = {
    FORMAT: "chatCompletions",
    "messages": [{"role": "user", "content": "Hello"}],
    "max_tokens": 8,
    "reasoning_effort": "none",
}
ON = {"AIP_MODE": "PREDICTION", "AIP_HTTP_PORT": "0"}
KEYS = """
[keys.all]
key = "all"

[keys.texts]
key = "texts"
operations = ["generate"]

[keys.slow]
key = "slow"
concurrency = 1

[keys.few]
key = "few"
requests_per_minute = 2
"""


@pytest.fixture(scope="module")
def server(module_server: Start) -> OwnServer:
    return module_server("-np", "2", variables=ON)


@pytest.fixture(scope="module")
def guarded(module_server: Start, tmp_path_factory: pytest.TempPathFactory) -> OwnServer:
    keys = tmp_path_factory.mktemp("keys") / "keys.toml"
    keys.write_text(KEYS, "ascii")
    keys.chmod(0o600)
    return module_server("-np", "2", "--keys-file", str(keys), variables=ON)


def predictions(server: OwnServer, *instances: Any, key: str = "", where: str = "/predict") -> Any:
    headers = {"Authorization": f"Bearer {key}"} if key else {}
    response = server.post(where, {"instances": instances}, headers=headers)
    if where == "/predict":  # the description doesn't have the paths of the variables
        contract.check(response, 200)
    return response.json()["predictions"]


def codes(found: Any) -> list[int]:
    return [each.get("error", {}).get("code", 200) for each in found]


def test_a_chat_by_its_name(server: OwnServer) -> None:
    [answer] = predictions(server, CHAT)
    [choice] = answer["choices"]
    assert choice["message"]["role"] == "assistant"
    assert choice["message"]["content"]


def test_several_chats(server: OwnServer) -> None:
    found = predictions(server, *({**CHAT, "seed": seed} for seed in range(5)))
    assert [len(each["choices"]) for each in found] == [1] * 5


def test_instances_are_answered_like_requests_in_their_order(server: OwnServer) -> None:
    asked = [
        ("/tokenize", {"content": "one"}),
        ("/apply-template", {"messages": CHAT["messages"]}),
        ("/detokenize", {"tokens": [5, 6]}),
        ("/v1/chat/completions/input_tokens", {"messages": CHAT["messages"]}),
        ("/tokenize", {"content": 5}),
        ("/v1/messages", {"messages": 5}),
        ("/v1/embeddings", {"input": "a"}),
    ]
    found = predictions(server, *({FORMAT: path, **body} for path, body in asked))
    alone = [server.post(path, body).json() for path, body in asked]
    for each in (*found, *alone):
        each.pop("request_id", None)
    assert found == alone


@pytest.mark.parametrize(
    ("name", "same"),
    [("tokenize", "/tokenize"), ("applyTemplate", "/apply-template"), ("rerank", "/v1/rerank")],
)
def test_names_and_paths(server: OwnServer, name: str, same: str) -> None:
    body = {"content": "a", "messages": CHAT["messages"], "query": "a", "documents": ["b"]}
    first, second = predictions(server, {FORMAT: name, **body}, {FORMAT: same, **body})
    assert first == second


def test_a_name_of_two_operations_means_the_one_below_v1(server: OwnServer) -> None:
    body = {"prompt": "a", "max_tokens": 1, "n_predict": 1}
    named = [{FORMAT: each, **body} for each in ("completions", "/completions", "completion")]
    found = predictions(server, *named)
    assert ["choices" in each for each in found] == [True, False, False]


@pytest.mark.parametrize("path", ["/v1/chat/completions", "/completion", "/api/chat", "/infill"])
@pytest.mark.parametrize("stream", [True, False, None, "left out"])
def test_there_are_no_streams(server: OwnServer, path: str, stream: Any) -> None:
    body: dict[str, Any] = {**CHAT, "prompt": "a", "n_predict": 4, "input_prefix": "a"}
    body |= {FORMAT: path, "input_suffix": "b"}
    if stream != "left out":
        body["stream"] = stream
    [answer] = predictions(server, body)
    assert isinstance(answer, dict)
    assert "error" not in answer


def test_a_faulty_instance_harms_no_other(server: OwnServer) -> None:
    unknown = ("no", "", "predict", "/predict", "health", "/slots/0", "/models/load", "/v1/models")
    instances = [{FORMAT: each} for each in unknown]
    found = predictions(server, *instances, {}, {**CHAT, "messages": 5}, CHAT)
    assert codes(found) == [400] * (len(unknown) + 2) + [200]
    assert all("there is no such operation" in each["error"]["message"] for each in found[:-3])


@pytest.mark.parametrize(
    "body",
    [
        {},
        {"instances": None},
        {"instances": {}},
        {"instances": [5]},
        {"instances": [{FORMAT: 5}]},
        {"instances": [{FORMAT: "tokenize"}] * 129},
    ],
)
def test_bad_requests(server: OwnServer, body: Any) -> None:
    contract.check(server.post("/predict", body), 400)


def test_as_many_as_possible(server: OwnServer) -> None:
    found = predictions(server, *[{FORMAT: "tokenize", "content": "a"}] * 128)
    assert found == [found[0]] * 128


def test_headers_apply_to_each_instance(server: OwnServer) -> None:
    headers = {"X-Request-Id": "mine", "X-Conversation-Id": "c", "X-Request-Priority": "high"}
    wrong = server.post("/predict", {"instances": [CHAT]}, headers=headers)
    assert codes(wrong.json()["predictions"]) == [400]
    headers["X-Request-Priority"] = "1"
    good = server.post("/predict", {"instances": [CHAT]}, headers=headers)
    assert codes(good.json()["predictions"]) == [200]

    def lines() -> list[str]:
        return [line for line in server.log.read_text("utf-8").splitlines() if "id=mine" in line]

    # A line is written after the end of its answer.
    wait_until(lambda: len(lines()) == 4, "all requests are in the log")
    assert [line.split()[3] for line in lines()] == ["/v1/chat/completions", "/predict"] * 2


def test_a_client_that_leaves_cancels_all(server: OwnServer) -> None:
    endless = {**CHAT, "max_tokens": -1, "ignore_eos": True}
    raw = json.dumps({"instances": [endless] * 6}).encode()
    with server.raw(server.head("/predict", len(raw)) + raw):
        server.wait_until_busy(2)
    server.wait_until_idle()


def test_each_instance_needs_its_group(guarded: OwnServer) -> None:
    tokens = {FORMAT: "tokenize", "content": "a"}
    assert codes(predictions(guarded, CHAT, tokens, key="all")) == [200, 200]
    assert codes(predictions(guarded, CHAT, tokens, key="texts")) == [200, 403]
    for wrong in ("", "Bearer no"):
        refused = guarded.post("/predict", {"instances": []}, headers={"Authorization": wrong})
        contract.check(refused, 401)


def test_a_limit_of_concurrent_requests_is_kept(guarded: OwnServer) -> None:
    assert codes(predictions(guarded, *[CHAT] * 4, key="slow")) == [200] * 4


def test_each_instance_counts(guarded: OwnServer) -> None:
    found = codes(predictions(guarded, *[CHAT] * 4, key="few"))
    assert sorted(found) == [200, 200, 429, 429]


def test_the_paths_of_the_variables(own_server: Start) -> None:
    port = free_port()
    server = own_server(
        variables={
            "AIP_MODE": "PREDICTION",
            "AIP_HTTP_PORT": str(port),
            "AIP_HEALTH_ROUTE": "v1/endpoints/1/models/2/",
            "AIP_PREDICT_ROUTE": "/v1/models/specllama-tiny:predict",
        },
    )
    assert server.url.endswith(f":{port}")
    assert server.get("/v1/endpoints/1/models/2").json() == {"status": "ok"}
    assert server.get("/health").json() == {"status": "ok"}
    for where in ("/v1/models/specllama-tiny:predict", "/predict"):
        assert codes(predictions(server, CHAT, where=where)) == [200]
        wrong = server.get(where)
        assert (wrong.status_code, wrong.headers["allow"]) == (405, "POST")
    assert server.post("/v1/endpoints/1/models/2").status_code == 405
    assert server.get("/v1/endpoints/1").status_code == 404
    assert server.get("/v1/models/specllama-tiny").json()["id"] == "specllama-tiny"
    described = server.get("/openapi.json").json()["paths"]
    assert described["/v1/models/specllama-tiny:predict"]["post"]["operationId"] == "predict"
    assert "/predict" not in described


def test_below_a_prefix(own_server: Start) -> None:
    options = ("--api-prefix", "/llm", "--aip-health-route", "/alive")
    server = own_server(*options, variables=ON)
    assert codes(predictions(server, CHAT, {FORMAT: "/tokenize", "content": "a"})) == [200, 200]
    assert server.get("/alive").json() == {"status": "ok"}


def test_a_health_route_leaves_other_operations(own_server: Start) -> None:
    server = own_server("--aip-health-route", "/props", variables=ON)
    assert "default_generation_settings" in server.get("/props").json()


@pytest.mark.parametrize("variables", [{}, {"AIP_MODE": "TRAINING"}])
def test_other_modes_have_no_effect(own_server: Start, variables: dict[str, str]) -> None:
    port = str(free_port())
    server = own_server(variables={**variables, "AIP_HTTP_PORT": port, "AIP_PREDICT_ROUTE": "/p"})
    assert not server.url.endswith(f":{port}")
    answer = server.post("/predict", {"instances": []})
    assert "--aip-mode PREDICTION" in contract.check(answer, 501)["error"]["message"]
    assert server.post("/p", {"instances": []}).status_code == 404


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--aip-predict-route", "/completion"], "/completion is the path of another operation"),
        (["--aip-predict-route", "/a", "--aip-health-route", "a/"], "are both /a"),
    ],
)
def test_a_path_can_have_one_operation(options: list[str], message: str) -> None:
    assert message in one_line(run("--aip-mode", "PREDICTION", "--port", "0", *options))


@pytest.mark.parametrize("option", ["--aip-predict-route", "--aip-health-route"])
@pytest.mark.parametrize("value", ["/a b", "/a?b", "/a#b", "/ü"])
def test_paths_that_are_none(option: str, value: str) -> None:
    assert "isn't a path" in one_line(run(option, value))


def test_the_log_shows_the_requested_path(own_server: Start) -> None:
    server = own_server("--aip-predict-route", "/p", "--aip-health-route", "/h", variables=ON)
    predictions(server, CHAT, where="/p")
    server.get("/h")

    def is_logged() -> bool:
        return "POST /p 200" in server.log.read_text("utf-8")

    wait_until(is_logged, "the line of the request")
    assert "GET /h" not in server.log.read_text("utf-8"), "health checks aren't logged"
