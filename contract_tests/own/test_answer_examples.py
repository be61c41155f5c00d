"""Every example of an answer is a real answer to an example of a request.

`pytest contract_tests/own/test_answer_examples.py -n0 --record` replaces the examples that differ
by real answers.
"""

import json
import shutil
from collections.abc import Iterator
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple

import httpx
import pytest
import yaml

from contract_tests.kit import contract, lint
from contract_tests.kit.bodies import KEPT, STREAMING, body
from contract_tests.kit.events import read_events
from contract_tests.kit.routers import set_status
from contract_tests.kit.server import Launcher, OwnServer, Start
from contract_tests.own import answer_examples
from contract_tests.own.answer_examples import closest, differences, parsed, words
from contract_tests.own.test_request_examples import address, stored
from tools.models.build import ensure_adapter

JSON, TEXT = contract.JSON, "text/plain"
OLLAMA = ("create_ollama_chat", "create_ollama_generation", "pull_ollama_model")
"""The operations that stream unless a request says otherwise."""
ASKED = {
    "text": "question",
    "call": "tools",
    "arguments": "tools",
    "finish": "tools",
    "first": "streamed",
    "piece": "streamed",
    "usage": "streamed",
    "restored": "file",
    "saved": "file",
    "erased": "none",
}
"""The example of a request that belongs to an example of an answer, if their names differ and it
isn't the first."""
LISTS = (
    *("get_model", "list_models", "list_openai_models"),
    *("get_gemini_model", "list_gemini_models"),
    *("get_load", "get_loads"),
)
"""Operations whose answers have more fields for a loaded model."""
ONLY_OPENAI = {"create_ollama_chat": "openai"}
"""The example of a request that is answered with events."""
ACTIONS = {"saved": "save", "restored": "restore", "erased": "erase"}
ELSEWHERE = {
    ("download_model", "example"): "needs a hub: test_router_changes.py",
    ("remove_model", "example"): "needs what was downloaded: test_router_changes.py",
    ("pull_ollama_model", "lines"): "needs a hub: test_ollama_router.py",
    ("control_chat_completion", "done"): "needs thoughts that go on: test_kept_streams.py",
    ("stream_model_events", "example"): "has no end: test_router_models.py",
    ("list_server_tools", "example"): "needs an MCP server: test_server_tools.py",
    ("run_server_tool", "text"): "depends on files: test_server_tools.py",
    ("run_server_tool", "failed"): "depends on files: test_server_tools.py",
    ("run_server_tool", "chunk"): "needs a sandbox: test_server_tools.py",
    ("run_server_tool", "done"): "needs a sandbox: test_server_tools.py",
    ("create_chat_completion", "thought"): "depends on chance here: test_tools.py",
    ("create_response", "error"): "an engine that dies: test_responses_client.py",
    ("create_ollama_chat", "error"): "an engine that dies: test_ollama.py",
    ("create_ollama_generation", "error"): "an engine that dies: test_ollama_paths.py",
}
SEED = 1
"""A seed with which the shipped model reasons, as in the examples."""
EXACT = ("tokenize", "detokenize", "apply_template", "count_")
"""Operations whose answer depends only on the model."""


class Example(NamedTuple):
    """An example of an answer, with its operation, status and content type."""

    operation: str
    status: int
    kind: str
    name: str
    value: Any

    def __str__(self) -> str:
        return f"{self.operation}-{self.kind.partition('/')[2]}-{self.name}"


def examples() -> Iterator[Example]:
    for name, operation in contract.operations().items():
        if contract.is_form(operation):
            continue  # the text of a recording: test_media.py
        for media in lint.media(operation):
            if media.status in ("200", "204"):
                for label, value in lint.examples(media.definition):
                    if (name.removesuffix("_alias"), label) not in ELSEWHERE:
                        yield Example(name, int(media.status), media.content_type, label, value)


def asked(example: Example) -> Any:
    """Returns the body of the documented request for this answer; None if there is no body."""
    operation = contract.operations()[example.operation]
    bodies = [each for each in lint.media(operation) if each.status is None]
    found = {name: value for each in bodies for name, value in lint.examples(each.definition)}
    if not found:
        return None
    streamed = example.kind == lint.EVENT_STREAM
    only = ONLY_OPENAI.get(example.operation) if streamed else None
    names = [only, example.name, ASKED.get(example.name), *found]
    content = next(found[name] for name in names if name in found)
    if streamed:
        return {**content, "stream": True}
    if example.operation in OLLAMA or content_streams(content):
        return {**content, "stream": example.kind == lint.LINES}
    return content


def seeded(content: dict[str, Any]) -> dict[str, Any]:
    """Returns the request with a seed and settings that make its answer the same each time."""
    if "options" in content:
        return {**content, "options": {"seed": SEED, **content["options"]}}
    return {"seed": SEED, **content}


def content_streams(content: Any) -> bool:
    return isinstance(content, dict) and bool(content.get("stream"))


class Servers:
    """The servers for the documented answers, each started on first use."""

    def __init__(
        self, start: Start, launcher: Launcher, hub: dict[str, str], directory: Path
    ) -> None:
        self._start, self._launcher, self._hub = start, launcher, hub
        self._directory = directory

    def of(self, name: str) -> OwnServer:
        definition = contract.operations()[name].definition
        match definition.get("x-option"):
            case "--embeddings":
                return self.embedder
            case "--reranking":
                return self.reranker
            case None:
                return self._without_option(name)
        return self.open

    def _without_option(self, name: str) -> OwnServer:
        if "lora" in name:
            return self.open
        used = ("list_slots", "get_props", "get_usage")
        return self.of_one_model if name in used else self.plain

    @cached_property
    def plain(self) -> OwnServer:
        return self._start(router=True, variables=self._hub)

    @cached_property
    def embedder(self) -> OwnServer:
        options = ("--embeddings", "--pooling", "mean")
        return self._start(*options, router=True, variables=self._hub)

    @cached_property
    def reranker(self) -> OwnServer:
        model = self._launcher.model_file("tiny-rerank")
        return self._start("-m", model, "--alias", "specllama-tiny", "--reranking", named=True)

    @cached_property
    def open(self) -> OwnServer:
        """A server with everything switched on, and two adapters."""
        adapters = [str(ensure_adapter(each, self._directory)) for each in ("lora-a", "lora-b")]
        return self._start(
            *("--metrics", "--props", "--slot-save-path", str(self._directory)),
            *("--aip-mode", "PREDICTION", "--aip-http-port", "0"),
            *(each for adapter in adapters for each in ("--lora", adapter)),
        )

    @cached_property
    def of_one_model(self) -> OwnServer:
        """A server with two slots that have been used."""
        server = self._start("--parallel", "2")
        for slot in (0, 1):
            server.ask("/completion", body("create_completion", id_slot=slot))
        return server


@pytest.fixture(scope="module")
def servers(
    module_server: Start,
    launcher: Launcher,
    hub: dict[str, str],
    tmp_path_factory: pytest.TempPathFactory,
) -> Servers:
    return Servers(module_server, launcher, hub, tmp_path_factory.mktemp("files"))


def answer(example: Example, servers: Servers) -> httpx.Response:
    """Returns the answer to the documented request, after the requests that it depends on."""
    server, operation = servers.of(example.operation), contract.operations()[example.operation]
    content = asked(example)
    if example.operation in STREAMING:
        content = seeded(content)

    def question(name: str) -> Any:
        found = asked(example._replace(operation=name))
        return seeded(found) if name in STREAMING else found

    kept = stored(server, example.operation, question)
    where, query = address(operation, kept)
    if example.operation in (*KEPT, "lookup_streams"):
        id_ = query.get("conv_id") or content["conversation_ids"][0]
        talk, headers = (
            {**question("create_chat_completion"), "stream": True},
            {"X-Conversation-Id": id_},
        )
        assert server.post("/v1/chat/completions", talk, headers=headers).status_code == 200
    if example.operation in ("load_model", "unload_model"):
        other = "unloaded" if example.operation == "load_model" else "loaded"
        set_status(server, content["model"], other)
    if example.kind != lint.EVENT_STREAM:
        query.pop("alt", None)
    if example.operation in LISTS:
        set_status(server, "specllama-tiny", "loaded")
    if example.operation == "act_on_slot":
        query["action"] = ACTIONS[example.name]
    response = server.http.request(operation.method, where, params=query, json=content)
    contract.check(response, example.status)
    return response


def shown(example: Example, response: httpx.Response) -> tuple[Any, Any]:
    """Returns the document of the example, and the real one."""
    if example.kind == lint.EVENT_STREAM:
        wanted = parsed(example.value["data"])
        return wanted, closest(wanted, [parsed(e.data) for e in read_events([response.content])])
    if example.kind == lint.LINES:
        lines = [parsed(line) for line in example.value.splitlines()]
        real = [parsed(line) for line in response.text.splitlines()]
        return lines, [closest(line, real) for line in lines]
    if example.operation == "get_metrics":
        return metrics(example.value), [
            each for each in metrics(response.text) if each in metrics(example.value)
        ]
    return example.value, response.json() if example.kind == JSON else response.text


def metrics(text: str) -> list[str]:
    """Returns names, types and help texts of the metrics."""
    return [line for line in text.splitlines() if line.startswith("#")]


@pytest.mark.parametrize("example", examples(), ids=str)
def test_an_answer_is_as_shown(
    example: Example, servers: Servers, request: pytest.FixtureRequest
) -> None:
    record = request.config.getoption("--record")
    wanted, real = shown(example, answer(example, servers))
    exact = example.operation.startswith(EXACT)
    found = differences(wanted, real, varying=not exact)
    says = example.operation in STREAMING and words(wanted) != words(real)
    if record and (found or says):
        value = real if exact else answer_examples.recorded(wanted, real)
        if example.kind == lint.EVENT_STREAM:
            data = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
            value = {**example.value, "data": data}
        elif example.kind == lint.LINES:
            value = "".join(
                json.dumps(line, ensure_ascii=False, separators=(",", ":")) + "\n" for line in value
            )
        answer_examples.write(*example[:4], value)
    assert not found, "\n".join(found)


def test_every_reason_is_needed() -> None:
    known = {
        (name, label)
        for name, operation in contract.operations().items()
        for media in lint.media(operation)
        if media.status in ("200", "204")
        for label, _ in lint.examples(media.definition)
    }
    assert ELSEWHERE.keys() <= known


def test_differences_are_noticed() -> None:
    example = {"object": "list", "created": 1, "usage": {"prompt_tokens": 3}, "data": [{"a": 1}]}
    assert not differences(example, {**example, "created": 2})
    assert not differences({"created": None}, {"created": 2})
    assert differences({"created": 1}, {"created": 2}, varying=False)
    assert differences({"created": None}, {"created": 2}, strict=True)
    for change, place in (
        ({"object": "page"}, "answer.object: 'list' for 'page'"),
        ({"created": "now"}, "answer.created: number for str"),
        ({"more": 1}, "answer: the example lacks more"),
        ({"usage": {"prompt_tokens": 4}}, "answer.usage.prompt_tokens: 3 for 4"),
        ({"usage": {}}, "answer.usage: only the example has prompt_tokens"),
        ({"data": [{"a": 2}]}, "answer.data[0].a: 1 for 2"),
        ({"data": []}, "answer.data[0]: nothing like it"),
    ):
        assert differences(example, {**example, **change}) == [place]


def test_recorded_values() -> None:
    example = {"id": "a", "model": "tiny", "embedding": [0.5], "timings": {"prompt_ms": 1.0}}
    real = {"model": "tiny", "id": "b", "embedding": [0.25] * 9, "timings": {"prompt_ms": 1.23456}}
    recorded = answer_examples.recorded(example, {**real, "more": ["c"]})
    assert recorded == {**example, "timings": {"prompt_ms": 1.235}, "more": ["c"]}
    assert [*recorded] == ["id", "model", "embedding", "timings", "more"]
    assert answer_examples.recorded({}, real)["embedding"] == [0.25] * 3


def test_a_recorded_example_is_in_its_place(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    paths = tmp_path / "paths"
    paths.mkdir()
    file = paths / "some.yaml"
    before = lint.DESCRIPTION.parent / "paths" / "tokenize.yaml"
    file.write_text(before.read_text("utf-8"), "utf-8")
    monkeypatch.setattr(lint, "DESCRIPTION", tmp_path / "server.yaml")
    value = {"tokens": [1, 2], "text": "two\nlines", "none": None}
    answer_examples.write("tokenize", 200, JSON, "ids", value)
    document = yaml.safe_load(file.read_text("utf-8"))
    content = document["tokenize"]["post"]["responses"]["200"]["content"][JSON]
    assert content["examples"]["ids"]["value"] == value
    old = yaml.safe_load(before.read_text("utf-8"))
    content["examples"]["ids"] = old["tokenize"]["post"]["responses"]["200"]["content"][JSON][
        "examples"
    ]["ids"]
    assert document == old


@pytest.mark.parametrize("operation", ["create_completion", "create_completion_alias"])
def test_a_shared_example_is_recorded_in_its_file(
    operation: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shutil.copytree(lint.DESCRIPTION.parent, tmp_path / "openapi")
    file = tmp_path / "openapi" / "examples.yaml"
    expected = yaml.safe_load(file.read_text("utf-8"))
    expected["examples"]["Completion"]["value"] = value = {"content": "new", "settings": {"a": 1}}
    monkeypatch.setattr(lint, "DESCRIPTION", tmp_path / "openapi" / "server.yaml")
    answer_examples.write(operation, 200, JSON, "text", value)
    assert yaml.safe_load(file.read_text("utf-8")) == expected
