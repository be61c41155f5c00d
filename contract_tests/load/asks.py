"""Requests of every API with deterministic answers (greedy, or with a seed), which a quiet server
shows."""

import base64
import io
import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from PIL import Image, PngImagePlugin

from contract_tests.load import reading
from contract_tests.load.reading import Parts, Reader, Said

TALKER, EMBEDDER, SEER, SLEEPER, SPARE = (
    "specllama-tiny", "embedding", "seeing", "sleeper", "spare",
)  # fmt: skip
"""Names of models, as `fleet` serves them."""
SERVER, DISK, DATABASE = "server", "disk", "database"
"""Things that an answer needs, besides engines (`engine:NAME`) and helper processes (by their
folders)."""
CLIENT = 10**6
"""Size of the range of request numbers that each client has."""
SUBJECTS = ("def add(a, b):\n    ", "class Queue:\n    ", "for word in words:\n    ")
LONG, MIDDLE, SHORT = 300, 80, 24
CITIES = {"enum": ["Paris", "Rome", "Oslo"]}
WEATHER = {
    "type": "object",
    "properties": {"city": CITIES, "days": {"type": "integer"}, "note": {"type": "string"}},
    "required": ["city", "days"],
}


@dataclass(frozen=True, kw_only=True)
class Ask:
    """One kind of request. `body` makes a body from a number, because some parts have to be new
    each time.

    `uses` lists the things that the request needs, whose faults may harm it. `expected` are the
    parts of its answer that are known before; for all other parts, the quiet server's answer is the
    truth. `then` makes the client's next request from a right answer.
    """

    name: str
    path: str
    body: Callable[[int], Any]
    read: Reader
    stream: bool = False
    method: str = "POST"
    uses: frozenset[str] = frozenset()
    expected: Callable[[int], Parts] | None = None
    then: Callable[[Any], "Ask"] | None = None
    weight: float = 1.0


def _engine(model: str) -> str:
    return f"engine:{model}"


def _fixed(body: Mapping[str, Any]) -> Callable[[int], Any]:
    return lambda _: dict(body)


def _ask(
    name: str, path: str, body: Any, read: Reader, *uses: str, model: str = TALKER, **more: Any
) -> Ask:
    made = body if callable(body) else _fixed(body)
    return Ask(
        name=name, path=path, body=lambda number: {"model": model, **made(number)}, read=read,
        uses=frozenset({SERVER, _engine(model), *uses}), **more,
    )  # fmt: skip


def _both(
    name: str, path: str, body: Mapping[str, Any], read: Reader, *uses: str, **more: Any
) -> list[Ask]:
    """Returns the request with a plain answer and with a stream."""
    return [
        _ask(f"{name}, {'stream' if stream else 'whole'}", path, {**body, "stream": stream}, read,
             *uses, stream=stream, **more)
        for stream in (False, True)
    ]  # fmt: skip


def _user(content: Any) -> dict[str, Any]:
    return {"messages": [{"role": "user", "content": content}]}


def generation() -> list[Ask]:
    """Returns requests for texts and chats in every API's format."""
    greedy = {"temperature": 0, "ignore_eos": True}
    seeded = {"temperature": 1.0, "seed": 5, "ignore_eos": True}
    story = {"prompt": SUBJECTS[0], "n_predict": LONG}
    plain = _user("Tell me about the sea.")
    calm = {"temperature": 0, "max_tokens": MIDDLE}
    return [
        *_both("completion", "/completion", {**story, **greedy}, reading.native, weight=2),
        *_both("seeded completion", "/completion", {**story, **seeded}, reading.native, weight=2),
        *_both("OpenAI completion", "/v1/completions", {
            "prompt": SUBJECTS[1], "max_tokens": LONG, "temperature": 1.0, "seed": 3, "n": 2,
        }, reading.choices),
        *_both("chat", "/v1/chat/completions", {**plain, **calm}, reading.choices, "render"),
        *_both("response", "/v1/responses", {
            "input": "Tell me about the sun.", "max_output_tokens": MIDDLE, "temperature": 0,
            "store": False,
        }, reading.responses, "render"),
        *_both("message", "/v1/messages", {**plain, **calm}, reading.messages, "render"),
        *_both("Ollama chat", "/api/chat", {
            **plain, "options": {"temperature": 0, "num_predict": MIDDLE},
        }, reading.ollama, "render"),
        *_both("Ollama generation", "/api/generate", {
            "prompt": SUBJECTS[2], "raw": True,
            "options": {"temperature": 0, "num_predict": MIDDLE},
        }, reading.ollama),
    ]  # fmt: skip


def constrained() -> list[Ask]:
    """Returns requests with tools and schemas. A trial process compiles new schemas."""
    tool = {"name": "weather", "description": "The weather", "parameters": WEATHER}
    asked = _user("What is the weather in Paris?")
    tools = {"tools": [{"type": "function", "function": tool}], "tool_choice": "required"}
    form = {"type": "json_schema", "json_schema": {"name": "w", "schema": WEATHER}}
    calm = {"temperature": 0, "max_tokens": 120}
    uses = ("render", "trial")

    def number(n: int) -> dict[str, Any]:
        return {"prompt": "A number:", "json_schema": {"const": n}, "n_predict": 24,
                "temperature": 0}  # fmt: skip

    return [
        *_both("tool call", "/v1/chat/completions", {**asked, **tools, **calm}, reading.choices,
               *uses),
        *_both("form", "/v1/chat/completions", {**asked, "response_format": form, **calm},
               reading.choices, *uses),
        *_both("tool of a message", "/v1/messages", {
            **asked, **calm, "tool_choice": {"type": "any"},
            "tools": [{"name": "weather", "input_schema": WEATHER}],
        }, reading.messages, *uses),
        _ask("new schema", "/completion", number, _number, "trial",
             expected=lambda n: {"number": str(n)}),
    ]  # fmt: skip


def _number(said: Said, document: Any) -> None:
    said.add("number", document["content"].strip())


def others(hub: str = "", spare: Path | None = None) -> list[Ask]:
    """Returns requests for embeddings, images, adapters and counts. `hub` is the address of a
    server with images, `spare` a model file that is modified between requests."""

    def picture(number: int) -> Any:
        url = f"data:image/png;base64,{base64.b64encode(drawn(number)).decode()}"
        return _seen(url)

    def many(_: int) -> Any:
        return {"tokens": [300 + i % 200 for i in range(20_000)]}

    def touched(number: int) -> Any:
        assert spare is not None
        os.utime(spare, ns=(number * 10**9, number * 10**9))
        return None

    scale = {"lora": [{"id": 0, "scale": 1.0}]}
    adapted = {"prompt": SUBJECTS[0], "n_predict": MIDDLE, "temperature": 0, **scale}
    found = [
        _ask("embedding", "/v1/embeddings", {"input": ["A llama carries wool.", "The sea"]},
             reading.vectors, model=EMBEDDER),
        _ask("adapter", "/completion", adapted, reading.native),
        _ask("picture", "/v1/chat/completions", picture, reading.choices, "decode", "render",
             model=SEER),
        _ask("large body", "/detokenize", many, reading.fields("content"), "check", weight=0.3),
        _ask("tokens", "/tokenize", {"content": SUBJECTS[0] * 9}, reading.fields("tokens")),
    ]  # fmt: skip
    if hub:
        found.append(_ask("picture of a hub", "/v1/chat/completions",
                          lambda n: _seen(f"{hub}/{n}.png"), reading.choices,
                          "decode", "fetch", "render", model=SEER))  # fmt: skip
    if spare is not None:
        found.append(Ask(
            name="models", path="/models?reload=1", body=touched, read=_ids, method="GET",
            uses=frozenset({SERVER, "inspect"}), weight=0.3,
        ))  # fmt: skip
    return found


def sleepy() -> Ask:
    """Returns a request for a model that is unloaded between requests."""
    body = {"prompt": SUBJECTS[1], "n_predict": SHORT, "temperature": 0, "ignore_eos": True}
    return _ask("sleeper", "/completion", body, reading.native, model=SLEEPER, weight=0.3)


def _ids(said: Said, document: Any) -> None:
    said.add("ids", sorted(each["id"] for each in document["data"]))


def drawn(number: int) -> bytes:
    """Returns an image whose file is new for each number but whose pixels are the same."""
    image = Image.new("RGB", (40, 32), (200, 30, 60))
    image.paste((10, 90, 220), (0, 0, 20, 16))
    text = PngImagePlugin.PngInfo()
    text.add_text("number", str(number))
    file = io.BytesIO()
    image.save(file, "PNG", pnginfo=text)
    return file.getvalue()


def _seen(url: str) -> dict[str, Any]:
    parts = [{"type": "text", "text": "See"}, {"type": "image_url", "image_url": {"url": url}}]
    return {**_user(parts), "max_tokens": SHORT, "temperature": 0}


def kept() -> list[Ask]:
    """Returns requests for things that the server stores: responses, and files of slots. Each is
    requested again, and deleted or restored."""
    said = {"input": "Tell me about the moon.", "max_output_tokens": SHORT, "temperature": 0}
    first = _ask("stored response", "/v1/responses", said, reading.responses, "render", DATABASE)

    def fetched(document: Any) -> Ask:
        again = Ask(
            name="stored response, again", path=f"/v1/responses/{document['id']}", method="GET",
            body=lambda _: None, read=reading.responses, uses=frozenset({SERVER, DATABASE}),
        )  # fmt: skip
        parts = reading.read_whole(reading.responses, document).parts
        return replace(again, expected=lambda _: parts, then=deleted)

    def deleted(document: Any) -> Ask:
        return Ask(
            name="stored response, deleted", path=f"/v1/responses/{document['id']}",
            method="DELETE", body=lambda _: None, read=reading.fields("deleted"),
            uses=frozenset({SERVER, DATABASE}), expected=lambda _: {"deleted": "true"},
        )  # fmt: skip

    def saved(slot: int) -> Ask:
        return _ask("slot, saved", f"/slots/{slot}?action=save",
                    lambda n: {"filename": f"{n // CLIENT}.bin"}, reading.nothing, DISK,
                    then=lambda document: restored(slot, document), weight=0.1)  # fmt: skip

    def restored(slot: int, document: Any) -> Ask:
        counts = {"n_restored": str(document["n_saved"])}
        return _ask("slot, restored", f"/slots/{slot}?action=restore",
                    {"filename": document["filename"]}, reading.fields("n_restored"), DISK,
                    expected=lambda _: counts)  # fmt: skip

    return [replace(first, then=fetched), *map(saved, range(6))]
