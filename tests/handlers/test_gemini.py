"""Google's Gemini API with an engine made of paper."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import msgspec
import pytest

from contract_tests.kit.contract import answers, find
from contract_tests.kit.events import check_events, read_events
from contract_tests.kit.lint import EVENT_STREAM, errors
from specllama.engine.wire.media import Media
from specllama.handlers.http.bodies import FEW, LARGE
from tests.support.paper_server import INFO, WORDS, Server, serve

pytestmark = pytest.mark.slow

USER = {"role": "user", "parts": [{"text": "u"}]}
BODY: dict[str, Any] = {"systemInstruction": {"parts": [{"text": "s"}]}, "contents": [USER]}
PROMPT = "[system]s[user]u[assistant]"
TEMPLATE = Path(__file__).parents[1] / "support" / "templates" / "qwen_3.jinja"
PATHS = ["/v1beta/models/a", "/v1/models/a", "/v1beta/models/models/a", "/v1beta/models/x/y:Q4"]


@pytest.fixture(scope="module")
def locked() -> Iterator[Server]:
    yield from serve(alias="a", api_key=("secret",))


def post(server: Server, path: str, body: Any, **options: Any) -> httpx.Response:
    """The answer, as described."""
    response = server.http.post(path, json=body, **options)
    described = answers(find("POST", path), response.status_code)
    kind = response.headers["content-type"].partition(";")[0]
    if kind == EVENT_STREAM:
        check_events(described[kind], list(read_events([response.content])))
    else:
        assert not list(errors(described[kind]["schema"], response.json()))
    return response


def text_of(pieces: list[Any]) -> str:
    return "".join(piece["candidates"][0]["content"]["parts"][0]["text"] for piece in pieces)


# ---- answers -------------------------------------------------------------------------------


@pytest.mark.parametrize("path", PATHS)
def test_an_answer(server: Server, path: str) -> None:
    answer = post(server, f"{path}:generateContent", BODY).json()
    [candidate] = answer["candidates"]
    assert candidate["content"] == {"parts": [{"text": "".join(WORDS)}], "role": "model"}
    assert (candidate["finishReason"], answer["modelVersion"]) == ("MAX_TOKENS", "a")
    assert answer["usageMetadata"]["totalTokenCount"] == 12
    assert server.engine.generations[0].prompt == [PROMPT]


@pytest.mark.parametrize("path", PATHS)
def test_streams(server: Server, path: str) -> None:
    events = post(server, f"{path}:streamGenerateContent?alt=sse", BODY)
    assert events.headers["content-type"].startswith(EVENT_STREAM)
    found = [json.loads(each.data) for each in read_events([events.content])]
    for query in ("", "?alt=json"):
        array = post(server, f"{path}:streamGenerateContent{query}", BODY)
        assert array.headers["content-type"] == "application/json"
        pieces = array.json()
        assert text_of(pieces) == text_of(found) == "".join(WORDS)
        assert pieces[-1]["candidates"][0]["finishReason"] == "MAX_TOKENS"
        assert pieces[-1]["usageMetadata"]["totalTokenCount"] == 12


@pytest.mark.parametrize("path", PATHS)
def test_counts(server: Server, path: str) -> None:
    n = len(PROMPT) + 2
    assert post(server, f"{path}:countTokens", BODY).json() == {"totalTokens": n}
    whole = {"generate_content_request": {"model": "models/a", **BODY}}
    assert post(server, f"{path}:countTokens", whole).json() == {"totalTokens": n}


def test_several_candidates(server: Server) -> None:
    body = {**BODY, "generationConfig": {"candidateCount": 2}}
    answer = post(server, "/v1beta/models/a:generateContent", body).json()
    assert [each["index"] for each in answer["candidates"]] == [0, 1]
    *_, last = post(server, "/v1beta/models/a:streamGenerateContent", body).json()
    assert len(last["candidates"]) == 2


def test_both_spellings(server: Server) -> None:
    part = {"text": "u", "thought_signature": "x"}
    body = {
        "system_instruction": {"parts": [{"text": "s"}]},
        "contents": [{"role": "user", "parts": [part]}],
        "generation_config": {"max_output_tokens": 3, "stop_sequences": ["END"]},
    }
    post(server, "/v1beta/models/a:generateContent", body)
    [generation] = server.engine.generations
    assert generation.prompt == [PROMPT]
    assert (generation.params.n_predict, generation.params.stop) == (3, ["END"])


@pytest.mark.parametrize("n", [FEW, LARGE])
def test_many_values(server: Server, n: int) -> None:
    parts = [{"text": "", "thought_signature": "x"}] * n
    body = {**BODY, "contents": [{"parts": parts}], "generation_config": {"top_k": 7}}
    post(server, "/v1beta/models/a:generateContent", body)
    assert server.engine.generations[0].params.top_k == 7
    body["generation_config"] = {"top_k": "seven"}
    error = post(server, "/v1beta/models/a:generateContent", body).json()["error"]
    assert error["message"] == 'generationConfig.topK: "seven" is not a number or null'


def test_calls_and_thoughts() -> None:
    template = TEMPLATE.read_text(encoding="utf-8")
    info = msgspec.structs.replace(INFO, chat_template=template)
    call = '<tool_call>\n{"name": "f", "arguments": {"a": 1}}\n</tool_call>'
    tools = [{"functionDeclarations": [{"name": "f", "parameters": {"type": "OBJECT"}}]}]
    shown = {"thinkingConfig": {"includeThoughts": True}}
    body = {**BODY, "tools": tools, "generationConfig": shown}
    for server in serve(info):
        server.engine.says = f"<think>\nhm\n</think>\n\nI call.\n{call}"
        whole = post(server, "/v1beta/models/a:generateContent", body).json()
        pieces = post(server, "/v1beta/models/a:streamGenerateContent", body).json()
        thought, said, called = whole["candidates"][0]["content"]["parts"]
        assert (thought["text"].strip(), thought["thought"]) == ("hm", True)
        assert said["text"].strip() == "I call."
        assert (called["functionCall"]["name"], called["functionCall"]["args"]) == ("f", {"a": 1})
        assert whole["candidates"][0]["finishReason"] == "STOP"
        assert whole["usageMetadata"]["thoughtsTokenCount"] > 0
        [last] = pieces[-1]["candidates"][0]["content"]["parts"]
        assert last["functionCall"]["args"] == {"a": 1}
        hidden = post(server, "/v1beta/models/a:generateContent", {**body, "generationConfig": {}})
        assert len(hidden.json()["candidates"][0]["content"]["parts"]) == 2


def test_media() -> None:
    part = {"inline_data": {"mime_type": "image/png", "data": "YQ=="}}
    body = {"contents": [{"parts": [part, {"text": "u"}]}]}
    for server in serve():
        error = post(server, "/v1beta/models/a:generateContent", body).json()["error"]
        assert error["status"] == "UNIMPLEMENTED"
        assert "contents[0].parts[0].inlineData: image input" in error["message"]
    for server in serve(msgspec.structs.replace(INFO, modalities=["vision"])):
        assert post(server, "/v1beta/models/a:generateContent", body).status_code == 200
        image = Media("image", b"", b"a", 1, 1)
        assert server.engine.generations[0].prompt == ["[user]", image, "u[assistant]"]


# ---- models --------------------------------------------------------------------------------


def test_models(server: Server) -> None:
    listed = server.get("/v1beta/models").json()
    [model] = listed["models"]
    assert model["name"] == "models/a"
    assert model["inputTokenLimit"] == 64
    for name in ("a", "b", "models/a"):
        response = server.http.get(f"/v1beta/models/{name}")
        assert server.checked(response, "/v1beta/models/{model_id}").json() == model
    unknown = server.checked(server.http.get("/v1beta/models/x/y"), "/v1beta/models/{model_id}")
    assert unknown.json()["error"]["status"] == "NOT_FOUND"


def test_pages(server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    [entry] = server.runtime.catalog.listed()
    entries = [entry] * 5
    monkeypatch.setattr(type(server.runtime.catalog), "listed", lambda self: entries)
    sizes = []
    token = "0"
    while token:
        page = server.get("/v1beta/models", pageSize=2, pageToken=token).json()
        sizes.append(len(page["models"]))
        token = page.get("nextPageToken", "")
    assert sizes == [2, 2, 1]
    assert len(server.get("/v1beta/models").json()["models"]) == 5
    assert server.get("/v1beta/models", pageToken="7").json() == {"models": []}
    for wrong in ({"pageSize": 0}, {"pageSize": "x"}, {"pageToken": "x"}):
        assert server.get("/v1beta/models", **wrong).status_code == 400


# ---- errors --------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("body", "status"),
    [
        ({}, "INVALID_ARGUMENT"),
        ({"contents": []}, "INVALID_ARGUMENT"),
        ({"contents": [{"role": "user"}]}, "INVALID_ARGUMENT"),
        ({"contents": [USER], "generationConfig": {"topK": "x"}}, "INVALID_ARGUMENT"),
        ({"contents": [USER], "generationConfig": {"responseMimeType": "a"}}, "INVALID_ARGUMENT"),
        ({"contents": [USER], "tool_config": {"function_calling_config": {"mode": "X"}}},
         "INVALID_ARGUMENT"),
        ({"contents": [USER], "cachedContent": "x"}, "UNIMPLEMENTED"),
        ({"contents": [USER], "generationConfig": {"responseModalities": ["IMAGE"]}},
         "UNIMPLEMENTED"),
    ],
)  # fmt: skip
def test_refusals(server: Server, body: Any, status: str) -> None:
    for method in ("generateContent", "streamGenerateContent", "streamGenerateContent?alt=sse"):
        for version in ("v1", "v1beta"):
            error = post(server, f"/{version}/models/a:{method}", body).json()["error"]
            assert error["status"] == status


def test_errors_of_streams(server: Server) -> None:
    def said(text: str) -> Any:
        return {"contents": [{"parts": [{"text": text}]}]}

    for path in ("a:streamGenerateContent", "a:streamGenerateContent?alt=sse"):
        wrong = post(server, f"/v1beta/models/{path}", said("u") | {"contents": 5})
        assert wrong.json()["error"]["code"] == 400
    assert post(server, "/v1beta/models/a:streamGenerateContent?alt=x", BODY).status_code == 400


@pytest.mark.parametrize(
    ("method", "path", "code", "status"),
    [
        ("GET", "/v1beta", 404, "NOT_FOUND"),
        ("GET", "/v1beta/files", 404, "NOT_FOUND"),
        ("PUT", "/v1beta/models", 405, "INVALID_ARGUMENT"),
        ("POST", "/v1beta/models/a:embedContent", 405, "INVALID_ARGUMENT"),
        ("PUT", "/v1/models/a:generateContent", 405, "INVALID_ARGUMENT"),
        ("PUT", "/v1/models/a/b:countTokens", 405, "INVALID_ARGUMENT"),
    ],
)
def test_paths_that_are_not_there(
    server: Server, method: str, path: str, code: int, status: str
) -> None:
    error = server.http.request(method, path).json()["error"]
    assert (error["code"], error["status"]) == (code, status)


def test_no_name(server: Server) -> None:
    assert post(server, "/v1beta/models/:generateContent", BODY).status_code == 400
    for name in ("models/", "models/models/"):
        response = server.checked(
            server.http.get(f"/v1beta/models/{name}x"), "/v1beta/models/{model_id}"
        )
        assert response.status_code == 404


def test_other_paths_have_their_own_form(server: Server) -> None:
    for path in ("/v1/models/x", "/v1betas", "/v1/models/a:other"):
        assert server.http.get(path).json()["error"]["type"] == "not_found_error"


# ---- keys ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("headers", "query"),
    [
        ({"x-goog-api-key": "secret"}, ""),
        ({"x-api-key": "secret"}, ""),
        ({"Authorization": "Bearer secret"}, ""),
        ({}, "?key=secret"),
        ({}, "?alt=sse&key=secret"),
    ],
)
def test_keys(locked: Server, headers: dict[str, str], query: str) -> None:
    for path in ("/v1beta/models", "/v1beta/models/a", "/v1beta/nothing"):
        known = 404 if path.endswith("nothing") else 200
        assert locked.http.get(path + query, headers=headers).status_code == known
    for method in ("generateContent", "streamGenerateContent", "countTokens"):
        for version in ("v1", "v1beta"):
            path = f"/{version}/models/a:{method}{query}"
            assert post(locked, path, BODY, headers=headers).status_code == 200


@pytest.mark.parametrize(
    ("headers", "query"),
    [({}, ""), ({"x-goog-api-key": "wrong"}, ""), ({}, "?key=wrong"), ({"x-goog-api-key": ""}, "")],
)
def test_wrong_keys(locked: Server, headers: dict[str, str], query: str) -> None:
    for path in ("/v1beta/models", "/v1beta/models/a", "/v1beta/nothing"):
        response = locked.http.get(path + query, headers=headers)
        assert response.json()["error"]["status"] == "UNAUTHENTICATED"
    for path in ("/v1/models/a:generateContent", "/v1beta/models/a:streamGenerateContent"):
        assert post(locked, path + query, BODY, headers=headers).status_code == 401


def test_keys_of_google_are_of_its_paths_alone(locked: Server) -> None:
    for headers, query in (({"x-goog-api-key": "secret"}, ""), ({}, "?key=secret")):
        response = locked.http.post(f"/tokenize{query}", json={"content": "a"}, headers=headers)
        assert response.status_code == 401


def test_a_stream_is_kept_for_its_key(locked: Server) -> None:
    headers = {"x-goog-api-key": "secret", "X-Conversation-Id": "c"}
    path = "/v1beta/models/a:streamGenerateContent?alt=sse"
    sent = locked.http.post(path, json=BODY, headers=headers).content
    bearer = {"Authorization": "Bearer secret"}
    kept = locked.http.get("/v1/stream", params={"conv_id": "c"}, headers=bearer)
    assert kept.content == sent
