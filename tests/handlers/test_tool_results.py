"""Results of tools with content that the model can't read, in the requests of every API."""

from base64 import b64encode
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from specllama.engine.wire.media import Media
from specllama.handlers.running import media
from tests.handlers.test_media import EYES, image
from tests.support.paper_server import Server, serve

pytestmark = pytest.mark.slow

DATA = b64encode(b"a").decode()
URL = f"data:image/png;base64,{DATA}"
REMOTE = "https://a.example/chart.png"
DOCX = b64encode(b"\xff\xfe").decode()

Ask = Callable[[Any], tuple[str, dict[str, Any]]]


def _call() -> dict[str, Any]:
    call = {"id": "call00001", "type": "function", "function": {"name": "f", "arguments": "{}"}}
    return {"role": "assistant", "content": "", "tool_calls": [call]}


def chat(parts: Any) -> tuple[str, dict[str, Any]]:
    result = {"role": "tool", "tool_call_id": "call00001", "content": parts}
    return "/v1/chat/completions", {"messages": [_user(), _call(), result]}


def function(parts: Any) -> tuple[str, dict[str, Any]]:
    """OpenAI's oldest form of a result."""
    called = {"role": "assistant", "content": "", "function_call": {"name": "f", "arguments": "{}"}}
    result = {"role": "function", "name": "f", "content": parts}
    return "/v1/chat/completions", {"messages": [_user(), called, result]}


def messages(parts: Any) -> tuple[str, dict[str, Any]]:
    use = {"type": "tool_use", "id": "toolu_1", "name": "f", "input": {}}
    result = {"type": "tool_result", "tool_use_id": "toolu_1", "content": parts}
    turns = [
        _user(),
        {"role": "assistant", "content": [use]},
        {"role": "user", "content": [result]},
    ]
    return "/v1/messages", {"messages": turns, "max_tokens": 9}


def _responses(kind: str, parts: Any) -> tuple[str, dict[str, Any]]:
    given = "arguments" if kind == "function_call" else "input"
    items = [
        _user(),
        {"type": kind, "call_id": "call00001", "name": "f", given: "{}"},
        {"type": f"{kind}_output", "call_id": "call00001", "output": parts},
    ]
    return "/v1/responses", {"input": items}


def responses(parts: Any) -> tuple[str, dict[str, Any]]:
    return _responses("function_call", parts)


def custom(parts: Any) -> tuple[str, dict[str, Any]]:
    return _responses("custom_tool_call", parts)


def ollama(images: Any) -> tuple[str, dict[str, Any]]:
    called = {
        "role": "assistant",
        "content": "",
        "tool_calls": [{"function": {"name": "f", "arguments": {}}}],
    }
    result = {"role": "tool", "tool_name": "f", "content": "seen", "images": images}
    return "/api/chat", {"messages": [_user(), called, result], "stream": False}


def _user() -> dict[str, Any]:
    return {"role": "user", "content": "u"}


def said(text: str, type_: str = "text") -> dict[str, Any]:
    return {"type": type_, "text": text}


def source(**fields: str) -> dict[str, Any]:
    return {"type": "image", "source": fields}


def document(**fields: str) -> dict[str, Any]:
    return {"type": "document", "title": "a.docx", "source": fields}


@pytest.fixture(scope="module")
def blind() -> Iterator[Server]:
    yield from serve()


@pytest.fixture(scope="module")
def seeing() -> Iterator[Server]:
    yield from serve(EYES)


def result_of(server: Server, path: str, body: dict[str, Any]) -> list[Any]:
    """Returns the result as the model reads it."""
    answer = server.checked(server.http.post(path, json=body), path)
    assert answer.status_code == 200, answer.text
    parts: list[Any] = list(server.engine.generations[-1].prompt)
    parts[0] = parts[0].rpartition("<tool_response>\n")[2]
    parts[-1] = parts[-1].rpartition("\n</tool_response>")[0]
    return parts


MEDIA = [
    (chat, [said("r"), {"type": "image_url", "image_url": {"url": URL}}], "r\n[image]"),
    (chat, [{"type": "image_url", "image_url": {"url": REMOTE}}], f"[image] {REMOTE}"),
    (chat, [{"type": "input_audio", "input_audio": {"data": DATA}}, said("r")], "[audio]\nr"),
    (chat, [{"type": "image", "data": DATA, "mimeType": "image/png"}], "[image]"),
    (function, [{"type": "image_url", "image_url": {"url": URL}}], "[image]"),
    (messages, [source(type="base64", media_type="x", data=DATA)], "[image]"),
    (messages, [said("r"), source(type="url", url=REMOTE)], f"r\n[image] {REMOTE}"),
    (responses, [said("r", "input_text"), {"type": "input_image", "image_url": URL}], "r\n[image]"),
    (custom, [{"type": "input_image", "image_url": REMOTE}], f"[image] {REMOTE}"),
    (responses, [{"type": "input_audio", "input_audio": {"data": DATA}}], "[audio]"),
    (ollama, [DATA, DATA], "[image]\n[image]\nseen"),
]
"""With what a model without media input reads."""


FILM = (chat, [{"type": "video_url", "video_url": {"url": REMOTE}}], f"[video] {REMOTE}")


@pytest.mark.parametrize(("ask", "parts", "line"), [*MEDIA, FILM])
def test_media_for_a_model_without_eyes_and_ears(
    ask: Ask, parts: Any, line: str, blind: Server
) -> None:
    path, body = ask(parts)
    assert result_of(blind, path, body) == [line]


ALWAYS = [
    (chat, [{"type": "file", "file": {"filename": "a b.docx", "file_data": DOCX}}],
     "[document] a b.docx"),
    (chat, [{"type": "file", "file": {"file_id": "f"}}], "[document]"),
    (chat, [{"type": "input_image", "image_url": URL}], "[image]"),
    (chat, [{"type": "resource", "resource": {}}, said("r")], "[resource]\nr"),
    (messages, [document(type="base64", data=DOCX)], "[document] a.docx"),
    (messages, [document(type="file", file_id="f")], "[document] a.docx"),
    (messages, [source(type="file", file_id="f")], "[image]"),
    (responses, [{"type": "input_file", "filename": "a.docx", "file_data": DOCX}],
     "[document] a.docx"),
    (responses, [{"type": "input_file", "filename": "a.docx", "file_id": "f"}],
     "[document] a.docx"),
    (responses, [{"type": "input_image", "file_id": "f"}], "[image]"),
    (custom, [{"type": "computer_screenshot"}], "[computer_screenshot]"),
]  # fmt: skip
"""With what every model reads."""


@pytest.mark.parametrize(("ask", "parts", "line"), ALWAYS)
@pytest.mark.parametrize("sees", [False, True])
def test_results_that_no_model_can_read(
    ask: Ask, parts: Any, line: str, sees: bool, blind: Server, seeing: Server
) -> None:
    path, body = ask(parts)
    assert result_of(seeing if sees else blind, path, body) == [line]


@pytest.mark.parametrize("ask", [chat, messages, responses])
def test_a_reference_to_a_tool_is_its_name(ask: Ask, blind: Server) -> None:
    path, body = ask([{"type": "tool_reference", "tool_name": "mcp__a__b"}])
    assert result_of(blind, path, body) == ["mcp__a__b"]


@pytest.mark.parametrize(("ask", "parts", "line"), MEDIA)
def test_a_model_with_eyes_sees_results(ask: Ask, parts: Any, line: str, seeing: Server) -> None:
    path, body = ask(parts)
    found = [part for part in result_of(seeing, path, body) if isinstance(part, Media)]
    given = image(b"chart.png") if REMOTE in line else image(b"a")
    assert found == [given] * line.count("[image]")


def test_videos_in_results(seeing: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    ask, parts, line = FILM
    path, body = ask(parts)
    assert result_of(seeing, path, body) == ["", "Video:", image(b"chart.png"), "[0m0.00s]", ""]
    monkeypatch.setattr(media, "reads_videos", lambda: False)
    assert result_of(seeing, path, body) == [line]


def test_a_long_name_is_cut(blind: Server) -> None:
    long = "https://a.example/" + "é" * 5000
    path, body = chat([{"type": "image_url", "image_url": {"url": long}}])
    [line] = result_of(blind, path, body)
    assert line.startswith("[image] https://a.example/é")
    assert line.endswith("é…")
    assert len(line) == 256


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/v1/chat/completions", {"messages": [{"role": "user", "content": MEDIA[0][1]}]}),
        ("/v1/messages", {"max_tokens": 9, "messages": [{"role": "user", "content": MEDIA[5][1]}]}),
        ("/v1/responses", {"input": [{"role": "user", "content": MEDIA[7][1]}]}),
        ("/api/chat", {"messages": [{**_user(), "images": [DATA]}]}),
    ],
)
def test_a_user_s_image_is_refused(path: str, body: dict[str, Any], blind: Server) -> None:
    refused = blind.http.post(path, json=body)
    assert refused.status_code == 501
    assert "image input is not supported" in refused.text


def test_counting_and_showing_the_prompt(blind: Server) -> None:
    _, body = chat([{"type": "image_url", "image_url": {"url": URL}}])
    answer = blind.post("/apply-template", **body)
    assert "<tool_response>\n[image]\n</tool_response>" in answer.json()["prompt"]
    assert blind.post("/v1/chat/completions/input_tokens", **body).status_code == 200
