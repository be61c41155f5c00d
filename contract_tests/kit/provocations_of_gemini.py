"""Provokes statuses of Google's API, with the model in the path and `alt` in the query."""

from typing import Any

import httpx

from contract_tests.kit import contract
from contract_tests.kit.bodies import BODIES, CONTENTS, body, path, with_text
from contract_tests.kit.provocations_of_bodies import bad_request
from contract_tests.kit.server import Server
from contract_tests.kit.situations import Situations, send

_DATA = {"mimeType": "image/png", "data": "iVBORw0KGgo="}
_MUST: Any = {"functionCallingConfig": {"mode": "ANY"}}


def pieces(server: Server, name: str) -> list[httpx.Response]:
    """Requests the answer as an array and as events, which have to be equal."""
    queries = ("", "?alt=json", "?alt=sse")
    responses = [server.post(path(name) + query, body(name)) for query in queries]
    said = ["".join(map(_text, contract.check(each))) for each in responses]
    assert len(set(said)) == 1
    return responses


def _text(piece: Any) -> str:
    parts = piece["candidates"][0]["content"]["parts"]
    return "".join(part.get("text", "") for part in parts)


def bad_content(server: Server, name: str) -> list[httpx.Response]:
    """Sends mistakes in the body, in either spelling, and in the query."""
    wrong: list[Any] = [
        {"contents": []},
        {"contents": [{"role": "user"}]},
        {"contents": {"parts": []}},
        {"contents": [{"parts": [{"text": 5}]}]},
        {"contents": [{"parts": [{"inline_data": {"data": ""}}]}]},
        {"systemInstruction": "text"},
        {"system_instruction": {"parts": 7}},
        {"tools": [{"functionDeclarations": [{"description": "no name"}]}]},
        {"tools": [{"function_declarations": [{"name": ""}]}]},
        {"toolConfig": {"functionCallingConfig": {"mode": "SOMETIMES"}}},
    ]
    if "count" not in name:
        wrong += [
            {"generationConfig": {field: value}}
            for field, value in (
                ("temperature", "hot"),
                ("max_output_tokens", -2),
                ("stop_sequences", "a"),
                ("candidateCount", 0),
                ("responseMimeType", "text/html"),
                ("responseJsonSchema", {"type": 5}),
                ("responseSchema", {"type": "GREEN"}),
                ("thinking_config", {"thinking_budget": "much"}),
            )
        ]
    responses = [server.post(path(name), {**BODIES[name], **each}) for each in wrong]
    if "stream" in name:
        responses.append(server.post(path(name) + "?alt=proto", BODIES[name]))
    return [*responses, *bad_request(server, name)]


def too_long_content(situations: Situations, name: str) -> list[httpx.Response]:
    asked = with_text(name, "word " * 256)
    return [situations.small.post(path(name) + query, asked) for query in ("", "?alt=sse")]


def not_supported_by_gemini(server: Server, name: str) -> list[httpx.Response]:
    """Requests features that only Google's server has; the error message names them."""
    asked: list[tuple[str, dict[str, Any]]] = [
        ("image", {"contents": [{"parts": [{"inlineData": _DATA}, *CONTENTS[0]["parts"]]}]}),
        ("files", {"contents": [{"parts": [{"fileData": {"fileUri": "files/abc"}}]}]}),
        ("googleSearch", {"tools": [{"google_search": {}}], "toolConfig": _MUST}),
    ]
    if "count" not in name:
        asked += [
            ("cachedContent", {"cached_content": "cachedContents/1"}),
            ("TEXT", {"generationConfig": {"responseModalities": ["AUDIO"]}}),
        ]
    responses = [send(server, name, **changes) for _, changes in asked]
    for (word, _), response in zip(asked, responses, strict=True):
        assert word in contract.message(response)
    return responses


def unknown_model_in_path(situations: Situations, name: str) -> list[httpx.Response]:
    """Sends names that no model has: similar to a model's, with a slash, after `models/`."""
    server, method = situations.router, contract.operations()[name].method
    where = path(name)
    names = (situations.model.removesuffix("y"), "org/gpt-4o", "models/gemini-2.5-flash")
    responses = []
    for each in names:
        asked = where.replace("specllama-tiny", each)
        responses.append(server.http.request(method, asked, json=BODIES.get(name)))
    assert situations.model in contract.message(responses[0]), (
        "the message doesn't name the model with a similar name"
    )
    return responses


def pages(server: Server, name: str) -> list[httpx.Response]:
    return [server.get(path(name) + query) for query in ("", "?pageSize=1", "?pageToken=999")]


def bad_pages(server: Server, name: str) -> list[httpx.Response]:
    queries = ("pageSize=0", "pageSize=1001", "pageSize=x", "pageToken=", "pageToken=-1")
    return [server.get(f"{path(name)}?{query}") for query in queries]


def too_long_a_path(server: Server, name: str) -> list[httpx.Response]:
    return [server.get(f"/v1beta/models/{'x' * 4097}")]


def no_such_model(server: Server, name: str) -> list[httpx.Response]:
    names = ("gpt-4o", "org/gpt-4o", "org%2Fgpt-4o", "models/gpt-4o", "gpt-4o:generateContent")
    return [server.get(f"/v1beta/models/{each}") for each in names]
