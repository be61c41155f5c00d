"""The APIs' forms of a request for a text, and of its answer."""

import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any


@dataclass
class Reading:
    """What an answer says: its text as far as it goes, and its ends, of which there is one."""

    text: str = ""
    ends: list[str] = field(default_factory=list)
    """`whole`, or the type of an error."""


@dataclass(frozen=True)
class Form:
    """One operation. `body` makes a request of a prompt, `delta` the text of an event or a whole
    answer, `ends` says whether it is the end."""

    path: str
    body: Callable[[str, dict[str, Any]], dict[str, Any]]
    delta: Callable[[dict[str, Any]], str]
    ends: Callable[[dict[str, Any]], bool]
    done: bool = False
    """Whether a stream ends with `[DONE]`."""
    is_ndjson: bool = False

    def read(self, data: bytes, *, stream: bool) -> Reading:
        """Raises ValueError for what is no such answer."""
        reading = Reading()
        if not stream:
            self._note(reading, json.loads(data), is_whole=True)
            return reading
        for event in self._events(data):
            if event is None:
                reading.ends.append("whole")
            else:
                self._note(reading, event, is_whole=False)
        return reading

    def _note(self, reading: Reading, event: dict[str, Any], *, is_whole: bool) -> None:
        if error := _error(event):
            reading.ends.append(error)
            return
        reading.text += self.delta(event)
        if is_whole or (not self.done and self.ends(event)):
            reading.ends.append("whole")

    def _events(self, data: bytes) -> Iterator[dict[str, Any] | None]:
        """The events that are complete; None for `[DONE]`."""
        if self.is_ndjson:
            for line in data.split(b"\n")[:-1]:
                yield json.loads(line)
            return
        for block in data.split(b"\n\n")[:-1]:
            for line in block.split(b"\n"):
                if line.startswith(b"data: "):
                    content = line.removeprefix(b"data: ")
                    yield None if content == b"[DONE]" else json.loads(content)


def _error(event: dict[str, Any]) -> str:
    """The type of an error, in any API's form; "" if it is none."""
    if event.get("type") == "response.failed":
        return ""  # `error` is behind it
    error = event.get("error")
    if isinstance(error, dict):
        return str(error.get("type") or error.get("code"))
    return "error" if error else ""


def _messages(prompt: str) -> list[dict[str, str]]:
    return [{"role": "user", "content": prompt}]


def _sampling(params: dict[str, Any]) -> dict[str, Any]:
    return {"temperature": params["temperature"], "seed": params["seed"], "top_k": 40}


def _choice(event: dict[str, Any]) -> dict[str, Any]:
    """The only choice of an event; nothing of one that has none."""
    choices: list[dict[str, Any]] = event.get("choices") or [{}]
    return choices[0]


def _chat_text(event: dict[str, Any]) -> str:
    choice = _choice(event)
    message = choice.get("message") or choice.get("delta") or {}
    return (message.get("reasoning_content") or "") + (message.get("content") or "")


def _message_text(event: dict[str, Any]) -> str:
    if event.get("type") == "message":
        return "".join(b.get("thinking", "") + b.get("text", "") for b in event["content"])
    delta: dict[str, str] = event.get("delta") or {}
    return delta.get("thinking", "") + delta.get("text", "")


def _response_text(event: dict[str, Any]) -> str:
    if event.get("object") == "response":
        items = [item for item in event["output"] if item["type"] == "message"]
        return "".join(str(part["text"]) for item in items for part in item["content"])
    is_delta = event["type"] == "response.output_text.delta"
    return str(event["delta"]) if is_delta else ""


def _ollama_text(event: dict[str, Any]) -> str:
    message: dict[str, str] = event.get("message") or {}
    return str(event.get("response", "")) + message.get("thinking", "") + message.get("content", "")


FORMS = (
    Form(
        "/completion",
        lambda prompt, p: {
            "prompt": prompt,
            "n_predict": p["n_predict"],
            "stream": p["stream"],
            **_sampling(p),
        },
        lambda event: event["content"],
        lambda event: bool(event["stop"]),
    ),
    Form(
        "/v1/completions",
        lambda prompt, p: {
            "prompt": prompt,
            "max_tokens": p["n_predict"],
            "stream": p["stream"],
            **_sampling(p),
        },
        lambda event: _choice(event).get("text", ""),
        lambda event: False,
        done=True,
    ),
    Form(
        "/v1/chat/completions",
        lambda prompt, p: {
            "messages": _messages(prompt),
            "max_tokens": p["n_predict"],
            "stream": p["stream"],
            **_sampling(p),
        },
        _chat_text,
        lambda event: False,
        done=True,
    ),
    Form(
        "/v1/messages",
        lambda prompt, p: {
            "messages": _messages(prompt),
            "max_tokens": p["n_predict"],
            "stream": p["stream"],
            **_sampling(p),
        },
        _message_text,
        lambda event: event["type"] == "message_stop",
    ),
    Form(
        "/v1/responses",
        lambda prompt, p: {
            "input": prompt,
            "max_output_tokens": max(16, p["n_predict"]),
            "stream": p["stream"],
            "store": p["seed"] == 0,
            **_sampling(p),
        },
        _response_text,
        lambda event: event["type"] in ("response.completed", "response.incomplete"),
    ),
    Form(
        "/api/chat",
        lambda prompt, p: {
            "messages": _messages(prompt),
            "stream": p["stream"],
            "options": {"num_predict": p["n_predict"], **_sampling(p)},
        },
        _ollama_text,
        lambda event: bool(event["done"]),
        is_ndjson=True,
    ),
    Form(
        "/api/generate",
        lambda prompt, p: {
            "prompt": prompt,
            "stream": p["stream"],
            "options": {"num_predict": p["n_predict"], **_sampling(p)},
        },
        _ollama_text,
        lambda event: bool(event["done"]),
        is_ndjson=True,
    ),
)
