"""Validates this server's answers with the schemas of its clients in their own languages: the two
newest major versions of each official library and of each provider of the AI SDK.

A member without a value may be null, empty or missing, and some clients accept only one of these.
"""

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

from contract_tests.clients import environments
from contract_tests.clients.environments import MissingError
from contract_tests.own.servers import ROOT
from tests.support.paper_server import INFO, Server, serve

SOURCES = ROOT / "contract_tests" / "clients" / "schemas"
FOLDER = ROOT / ".nox" / "schemas"
TEMPLATE = ROOT / "tests" / "support" / "templates" / "qwen_3.jinja"
CALL = '<tool_call>\n{"name": "weather", "arguments": {"city": "Lima"}}\n</tool_call>'
SAYS = {
    "text": "It is warm.",
    "nothing": "",
    "thoughts": "<think>\nHm.\n</think>\n\nIt is warm.",
    "call": f"<think>\nHm.\n</think>\n\nI look.\n{CALL}",
    "cut off": None,
}
"""The generated texts."""
PYTHON = {
    "newest": (),
    "before": ("anthropic==1.17.0", "openai==2.54.0"),
}
"""The official libraries: those of this environment, and the previous major versions."""
ONE_TYPE = "openai.types.Completion choices.0.finish_reason: Input should be 'stop', 'length'"
"""The library has one type for whole answers and for pieces, which have null there until the end,
as OpenAI's have."""


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    template = TEMPLATE.read_text(encoding="utf-8")
    yield from serve(msgspec.structs.replace(INFO, chat_template=template))


@pytest.fixture(scope="module")
def node() -> Path:
    try:
        return environments.node_modules(FOLDER / "npm", SOURCES)
    except (MissingError, subprocess.CalledProcessError) as error:
        pytest.skip(f"no providers of the AI SDK: {error}")


@pytest.mark.parametrize("kind", SAYS)
def test_the_ai_sdk_reads_all_answers(kind: str, node: Path, server: Server) -> None:
    server.engine.says = SAYS[kind]
    argv = ["node", "read.mjs", str(server.http.base_url).rstrip("/"), "any"]
    ran = subprocess.run(argv, cwd=node, capture_output=True, encoding="utf-8", check=True)
    read = json.loads(ran.stdout)
    assert len(read) == 28
    assert {name: said for name, said in read.items() if isinstance(said, str)} == {}
    for name, parts in read.items():
        if kind == "call" and "completion" not in name:
            assert "tool-call" in parts, name


TOOL = {"name": "weather", "description": "The weather", "parameters": {"type": "object"}}
ASKED = [{"role": "user", "content": "How is the weather?"}]
FUNCTION: dict[str, Any] = {"type": "function", "function": TOOL}
REQUESTS: dict[str, tuple[dict[str, Any], str, str]] = {
    "/v1/chat/completions": (
        {"messages": ASKED, "tools": [FUNCTION], "stream_options": {"include_usage": True}},
        "openai.types.chat.ChatCompletion",
        "openai.types.chat.ChatCompletionChunk",
    ),
    "/v1/completions": (
        {"prompt": "How"},
        "openai.types.Completion",
        "openai.types.Completion",
    ),
    "/v1/responses": (
        {"input": ASKED, "tools": [{"type": "function", **TOOL}]},
        "openai.types.responses.Response",
        "openai.types.responses.ResponseStreamEvent",
    ),
    "/v1/messages": (
        {
            "max_tokens": 9,
            "messages": ASKED,
            "tools": [{"name": "weather", "input_schema": TOOL["parameters"]}],
        },
        "anthropic.types.Message",
        "anthropic.types.RawMessageStreamEvent",
    ),
}
"""A request, and the types of its plain answer and of the events of its stream."""


def answers(server: Server) -> Iterator[tuple[str, Any]]:
    """Yields the answers to all requests, plain and in events, each with its type."""
    for path, (body, whole, event) in REQUESTS.items():
        plain = {name: value for name, value in body.items() if name != "stream_options"}
        yield whole, server.post(path, **plain).json()
        streamed = server.post(path, **body, stream=True).text
        for line in streamed.splitlines():
            data = line.removeprefix("data: ")
            if data not in (line, "[DONE]") and json.loads(data).get("type") != "ping":
                yield event, json.loads(data)


@pytest.mark.parametrize("version", PYTHON)
def test_the_official_libraries_read_all_answers(version: str, server: Server) -> None:
    python = Path(sys.executable)
    if packages := PYTHON[version]:
        try:
            python = environments.python(FOLDER / "python", packages)
        except subprocess.CalledProcessError as error:
            pytest.skip(f"no libraries: {error}")
    given = []
    for server.engine.says in SAYS.values():
        given += list(answers(server))
    assert len(given) > 100
    ran = subprocess.run(
        [str(python), str(SOURCES / "read.py")],
        input=json.dumps(given),
        capture_output=True,
        encoding="utf-8",
        check=True,
    )
    errors = [said for said in json.loads(ran.stdout) if not said.startswith(ONE_TYPE)]
    assert errors == []
