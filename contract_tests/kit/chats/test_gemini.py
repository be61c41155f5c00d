"""Google's Gemini API: prompts and answers, plain and streamed."""

import json
from typing import Any

import pytest

from contract_tests.kit import contract, lint
from contract_tests.kit.bodies import CONTENTS, path
from contract_tests.kit.events import read_events
from contract_tests.kit.server import Server, Start, needs_key

GENERATE = "generate_gemini_content"
STREAM = "stream_gemini_content"
COUNT = "count_gemini_tokens"
UNTHINKING: Any = {"thinkingConfig": {"thinkingBudget": 0}}
"""Turns reasoning off, because it may be as long as the answer's limit."""
SCHEMA: Any = {
    "type": "OBJECT",
    "properties": {
        "on": {"type": "BOOLEAN"},
        "room": {"type": "STRING", "enum": ["kitchen", "hall"]},
    },
    "required": ["on", "room"],
    "propertyOrdering": ["room", "on"],
}
AS_JSON: Any = {
    "type": "object",
    "properties": {"on": {"type": "boolean"}, "room": {"enum": ["kitchen", "hall"]}},
    "required": ["on", "room"],
}
FUNCTION: Any = {"name": "set_light", "description": "Switches a light.", "parameters": SCHEMA}
TOOLS: Any = [{"functionDeclarations": [FUNCTION]}]


def asking(text: str = "Tell me about llamas.", **config: Any) -> dict[str, Any]:
    return {
        "contents": [{"role": "user", "parts": [{"text": text}]}],
        "generationConfig": {"maxOutputTokens": 8, "seed": 1, **UNTHINKING, **config},
    }


def calling(mode: str, **more: Any) -> dict[str, Any]:
    asked = asking("Light in the kitchen, please.", maxOutputTokens=256)
    return {
        **asked,
        "tools": TOOLS,
        "toolConfig": {"functionCallingConfig": {"mode": mode, **more}},
    }


def answer(server: Server, body: Any) -> Any:
    return contract.check(server.post(path(GENERATE), body))


def events(server: Server, body: Any) -> list[Any]:
    response = server.post(path(STREAM) + "?alt=sse", body)
    documents: list[Any] = contract.check(response)
    assert len(documents) == len(list(read_events([response.content])))
    return documents


def parts_of(document: Any) -> list[Any]:
    found: list[Any] = document["candidates"][0]["content"]["parts"]
    return found


def text_of(document: Any) -> str:
    return "".join(part.get("text", "") for part in parts_of(document) if "thought" not in part)


def calls_of(*documents: Any) -> list[Any]:
    parts = [part for document in documents for part in parts_of(document)]
    return [part["functionCall"] for part in parts if "functionCall" in part]


def reason_of(document: Any) -> Any:
    return document["candidates"][0].get("finishReason")


# ---- texts -----------------------------------------------------------------------------------


def test_pieces_add_up_to_the_whole_answer(server: Server) -> None:
    whole = answer(server, asking())
    *pieces, last = events(server, asking())
    assert text_of(whole)
    assert "".join(map(text_of, [*pieces, last])) == text_of(whole)
    assert all(reason_of(each) is None for each in pieces)
    assert reason_of(last) == reason_of(whole)
    assert {each["responseId"] for each in pieces} == {last["responseId"]} != {whole["responseId"]}
    array = contract.check(server.post(path(STREAM), asking()))
    assert "".join(map(text_of, array)) == text_of(whole)


def test_tokens_are_counted_as_they_are_used(server: Server) -> None:
    body = {**asking(), "systemInstruction": {"parts": [{"text": "Be short."}]}, "tools": TOOLS}
    counted = contract.check(server.post(path(COUNT), {"generateContentRequest": body}))
    for usage in (answer(server, body)["usageMetadata"], events(server, body)[-1]["usageMetadata"]):
        assert usage["promptTokenCount"] == counted["totalTokens"]
        said = usage["candidatesTokenCount"] + usage.get("thoughtsTokenCount", 0)
        assert 0 < said <= 8
        assert usage["totalTokenCount"] == usage["promptTokenCount"] + said
    assert usage["cachedContentTokenCount"] == counted["totalTokens"] - 1


def test_both_spellings_are_equal(server: Server) -> None:
    config = {"max_output_tokens": 8, "seed": 1, "thinking_config": {"thinking_budget": 0}}
    spelled = {"contents": CONTENTS, "generation_config": config}
    assert text_of(answer(server, spelled)) == text_of(answer(server, asking()))


def test_the_conversation_reaches_the_prompt(server: Server) -> None:
    contents = [
        {"role": "user", "parts": [{"text": "Hello."}]},
        {"role": "model", "parts": [{"text": "Seen."}]},
        {"parts": [{"text": "Good."}]},
    ]
    asked = {"systemInstruction": {"parts": [{"text": "Be short."}]}, "contents": contents}
    counted = contract.check(server.post(path(COUNT), asked))
    messages = [
        {"role": "system", "content": "Be short."},
        {"role": "user", "content": "Hello."},
        {"role": "assistant", "content": "Seen."},
        {"role": "user", "content": "Good."},
    ]
    rendered = server.ask("/apply-template", {"messages": messages})["prompt"]
    tokens = server.ask("/tokenize", {"content": rendered, "add_special": True})["tokens"]
    assert counted["totalTokens"] == len(tokens)


def test_stop_sequences_are_never_shown(server: Server) -> None:
    whole = text_of(answer(server, asking(maxOutputTokens=30)))
    word = whole[len(whole) // 2 :][:4]
    body = asking(maxOutputTokens=30, stopSequences=["\x00", word])
    stopped = answer(server, body)
    assert (text_of(stopped), reason_of(stopped)) == (whole[: whole.index(word)], "STOP")
    assert "".join(map(text_of, events(server, body))) == text_of(stopped)


def test_the_limit_of_tokens(server: Server) -> None:
    for body in (asking(maxOutputTokens=1), asking(maxOutputTokens=0)):
        assert reason_of(answer(server, body)) == "MAX_TOKENS"
        assert reason_of(events(server, body)[-1]) == "MAX_TOKENS"


def test_several_candidates(server: Server) -> None:
    body = asking(candidateCount=3, temperature=2)
    candidates = answer(server, body)["candidates"]
    assert [each["index"] for each in candidates] == [0, 1, 2]
    pieces = events(server, body)
    for candidate in candidates:
        said = [
            part.get("text", "")
            for piece in pieces
            for each in piece["candidates"]
            if each["index"] == candidate["index"]
            for part in each["content"]["parts"]
        ]
        assert "".join(said) == "".join(part["text"] for part in candidate["content"]["parts"])


def test_probabilities(server: Server) -> None:
    body = asking(responseLogprobs=True, logprobs=2, temperature=0)
    [candidate] = answer(server, body)["candidates"]
    chosen = candidate["logprobsResult"]["chosenCandidates"]
    assert "".join(each["token"] for each in chosen) == candidate["content"]["parts"][-1]["text"]
    for each, top in zip(chosen, candidate["logprobsResult"]["topCandidates"], strict=True):
        assert top["candidates"][0] == each
        assert len(top["candidates"]) == 2
    pieces = [each["candidates"][0] for each in events(server, body)]
    streamed = [
        token
        for each in pieces
        for token in each.get("logprobsResult", {}).get("chosenCandidates", ())
    ]
    assert [each["tokenId"] for each in streamed] == [each["tokenId"] for each in chosen]


# ---- forms -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "form",
    [
        {"responseMimeType": "application/json", "responseSchema": SCHEMA},
        {"responseMimeType": "application/json", "responseJsonSchema": AS_JSON},
        {"responseSchema": SCHEMA},
    ],
)
def test_an_answer_that_follows_a_schema(form: Any, server: Server) -> None:
    said = answer(server, asking(**{**form, "maxOutputTokens": 128}))
    document = json.loads(text_of(said))
    assert not list(lint.errors(AS_JSON, document))
    if "responseSchema" in form:
        assert list(document) == ["room", "on"]


def test_one_of_several_texts(server: Server) -> None:
    form = {"responseMimeType": "text/x.enum", "responseSchema": SCHEMA["properties"]["room"]}
    assert text_of(answer(server, asking(**form))) in ("kitchen", "hall")


# ---- functions -------------------------------------------------------------------------------


@pytest.mark.parametrize("more", [{}, {"allowedFunctionNames": ["set_light"]}])
def test_a_forced_call(more: Any, server: Server) -> None:
    body = calling("ANY", **more)
    whole, pieces = answer(server, body), events(server, body)
    for calls in (calls_of(whole), calls_of(*pieces)):
        assert calls
        for call in calls:
            assert call["name"] == "set_light"
            assert not list(lint.errors(AS_JSON, call["args"]))
    assert reason_of(whole) in ("STOP", "MAX_TOKENS")


def test_no_call(server: Server) -> None:
    body = calling("NONE")
    body["generationConfig"]["maxOutputTokens"] = 16
    assert not calls_of(answer(server, body))


def test_a_conversation_with_a_function(server: Server) -> None:
    body = calling("ANY")
    n = 0
    for _ in range(2):
        said = answer(server, body)
        results = [
            {"functionResponse": {"name": call["name"], "id": call["id"], "response": {"ok": 1}}}
            for call in calls_of(said)
        ]
        assert results
        assert said["usageMetadata"]["promptTokenCount"] > n
        n = said["usageMetadata"]["promptTokenCount"]
        content = said["candidates"][0]["content"]
        returned = {"role": "user", "parts": results}
        body["contents"] = [*body["contents"], content, returned]


# ---- errors ----------------------------------------------------------------------------------


def test_too_long_a_prompt(own_server: Start) -> None:
    server = own_server("-c", "256")
    for where in (path(GENERATE), path(STREAM), path(STREAM) + "?alt=sse"):
        response = server.post(where, asking("word " * 256))
        error = contract.check(response, 400)["error"]
        assert "exceeds the maximum number of tokens allowed (256)" in error["message"]


def test_keys(server: Server) -> None:
    needs_key(server)
    key = str(server.api_key)
    for where in (path(GENERATE), path(STREAM), path(COUNT)):
        for headers, query in (({"x-goog-api-key": key}, ""), ({}, f"?key={key}")):
            only_this = {"Authorization": "", **headers}
            right = server.http.post(where + query, json=asking(), headers=only_this)
            contract.check(right)
            wrong = server.http.post(
                where, json=asking(), headers={"Authorization": "", "x-goog-api-key": "no"}
            )
            contract.check(wrong, 401)


@pytest.mark.parametrize(
    ("method", "where", "status"),
    [
        ("GET", "/v1beta/files", 404),
        ("POST", "/v1beta/models/any:embedContent", 405),
        ("DELETE", "/v1beta/models", 405),
        ("PUT", "/v1/models/any:countTokens", 405),
    ],
)
def test_paths_that_are_not_there(method: str, where: str, status: int, server: Server) -> None:
    response = server.http.request(method, where)
    error = response.json()["error"]
    assert (response.status_code, error["code"]) == (status, status)
    assert error.keys() == {"code", "message", "status"}
