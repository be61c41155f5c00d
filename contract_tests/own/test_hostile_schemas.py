"""Small schemas that take very long to compile delay no other request, over real sockets."""

import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from contract_tests.kit.server import Server

ENDLESS = {"type": "integer", "allOf": [{"multipleOf": p} for p in (9973, 9967, 9949, 9941)]}
NAMES = [f"p{i}" for i in range(64)]
OPTIONAL = {"properties": {f"p{i}": {"type": "null"} for i in range(10_000)}}
GRAMMAR = 'root ::= s root?\ns ::= ((((("a"{999}){999}){999}){999}){%d})'


def itself(name: str) -> dict[str, Any]:
    properties = {each: {"$ref": f"#/$defs/{name}"} for each in NAMES}
    return {"type": "object", "required": NAMES, "properties": properties}


ITSELF = {
    "$defs": {"a": itself("a"), "b": itself("b")},
    "oneOf": [{"$ref": "#/$defs/a"}, {"$ref": "#/$defs/b"}],
}


def body(**constraint: Any) -> dict[str, Any]:
    return {"prompt": "Once upon a time", "n_predict": 8, **constraint}


def titled(schema: dict[str, Any], i: int) -> dict[str, Any]:
    """Returns the schema with a new title, so that no cache has it."""
    return {**schema, "title": f"number {i}"}


@contextmanager
def abandoned(server: Server, request: dict[str, Any], n: int) -> Iterator[None]:
    """Runs `n` clients that send the request, and leave at the end without reading."""
    data = json.dumps(request).encode()
    sockets = [server.raw(server.head("/completion", len(data)) + data) for _ in range(n)]
    try:
        yield
    finally:
        for each in sockets:
            each.close()


def test_usual_schemas_are_answered_meanwhile(server: Server) -> None:
    usual = body(json_schema={"enum": ["one", "two"]}, n_predict=20, temperature=0.0)
    expected = server.ask("/completion", usual)["content"]
    assert json.loads(expected) in ("one", "two")
    stop, answers = threading.Event(), []

    def honest() -> None:
        i = 0
        while not stop.is_set():
            answers.append(server.ask("/completion", {**usual, "json_schema": {"const": i}}))
            i += 1

    thread = threading.Thread(target=honest)
    with abandoned(server, body(json_schema=titled(ENDLESS, 1)), 4):
        thread.start()
        try:
            refused = server.post("/completion", body(grammar=GRAMMAR % 998))
            relaxed = server.post("/completion", body(json_schema=titled(ITSELF, 1)))
            optional = server.post("/completion", body(json_schema=OPTIONAL))
        finally:
            stop.set()
            thread.join()
    assert [json.loads(each["content"]) for each in answers] == list(range(len(answers)))
    assert len(answers) > 1, "the other client got no answers"
    assert refused.status_code == 400
    assert "Failed to parse grammar" in refused.json()["error"]["message"]
    assert (relaxed.status_code, relaxed.headers["x-specllama-relaxed"]) == (200, "#/oneOf")
    assert optional.status_code in (200, 400)
    assert server.ask("/completion", usual)["content"] == expected


def test_too_costly_constraints_are_left_out(server: Server) -> None:
    answer = server.post("/completion", body(json_schema=titled(ENDLESS, 2)))
    assert answer.status_code == 200, answer.text
    relaxed = answer.headers["x-specllama-relaxed"].split(", ")
    assert relaxed == [f"#/allOf/{i}/multipleOf" for i in range(4)]


def test_many_heavy_tools(server: Server) -> None:
    tools = [
        {"type": "function", "function": {"name": f"f{i}", "parameters": titled(ENDLESS, i)}}
        for i in range(128)
    ]
    request = {"messages": [{"role": "user", "content": "Go"}], "max_tokens": 4, "tools": tools}
    data = json.dumps(request).encode()
    hostile = server.raw(server.head("/v1/chat/completions", len(data)) + data)
    try:
        for i in range(3):
            answer = server.ask("/completion", body(json_schema={"const": i}))
            assert json.loads(answer["content"]) == i
    finally:
        hostile.close()
    assert server.get("/health").status_code == 200
