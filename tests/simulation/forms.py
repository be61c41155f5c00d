"""The APIs' forms of a request for a text, and of its answer."""

import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from typing import Any


@dataclass
class Reading:
    """The contents of an answer: the received text, and its ends, of which there has to be one."""

    text: str = ""
    ends: list[str] = field(default_factory=list)
    """`whole`, `cancelled`, or the type of an error."""


@dataclass(frozen=True)
class Form:
    """One operation. `body` makes a request from a prompt, `delta` returns the text of an event or
    a plain answer, `ends` is true for the end."""

    path: str
    body: Callable[[str, dict[str, Any]], dict[str, Any]]
    delta: Callable[[dict[str, Any]], str]
    ends: Callable[[dict[str, Any]], bool]
    done: bool = False
    """Whether a stream ends with `[DONE]`."""
    is_ndjson: bool = False
    streams: bool = True
    has_schema: bool = False
    """Whether its text follows a schema. Costly keywords of that schema may be left out."""

    def read(self, data: bytes, *, stream: bool) -> Reading:
        """Returns the contents of an answer. Raises ValueError if `data` isn't in this form."""
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
            is_cancelled = event.get("status") == "cancelled"
            reading.ends.append("cancelled" if is_cancelled else "whole")

    def _events(self, data: bytes) -> Iterator[dict[str, Any] | None]:
        """Yields the data of complete events; None for `[DONE]`."""
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
    """Returns the type of an error in any API's form; "" if the event is no error."""
    if event.get("type") == "response.failed":
        return ""  # `error` follows
    error = event.get("error")
    if isinstance(error, dict):
        return str(error.get("type") or error.get("code"))
    return "error" if error else ""


def _messages(prompt: str) -> list[dict[str, str]]:
    return [{"role": "user", "content": prompt}]


def _sampling(params: dict[str, Any]) -> dict[str, Any]:
    return {"temperature": params["temperature"], "seed": params["seed"], "top_k": 40}


def _choice(event: dict[str, Any]) -> dict[str, Any]:
    """Returns the only choice of an event; an empty object if the event has no choice."""
    choices: list[dict[str, Any]] = event.get("choices") or [{}]
    return choices[0]


def _chat_text(event: dict[str, Any]) -> str:
    choice = _choice(event)
    message = choice.get("message") or choice.get("delta") or {}
    calls = [call.get("function", {}) for call in message.get("tool_calls") or ()]
    arguments = "".join(call.get("arguments", "") for call in calls)
    return (message.get("reasoning_content") or "") + (message.get("content") or "") + arguments


def _message_text(event: dict[str, Any]) -> str:
    if event.get("type") == "message":
        return "".join(map(_block_text, event["content"]))
    return _block_text(event.get("delta") or {})


def _block_text(block: dict[str, Any]) -> str:
    """Returns the text of a block, or the text that an event adds to it."""
    called = json.dumps(block["input"]) if "input" in block else block.get("partial_json", "")
    return str(block.get("thinking", "") + block.get("text", "") + called)


DELTAS = ("response.output_text.delta", "response.function_call_arguments.delta")


def _response_text(event: dict[str, Any]) -> str:
    if event.get("object") == "response":
        return "".join(map(_item_text, event["output"]))
    return str(event["delta"]) if event["type"] in DELTAS else ""


def _item_text(item: dict[str, Any]) -> str:
    if item["type"] == "message":
        return "".join(str(part["text"]) for part in item["content"])
    return str(item.get("arguments", ""))


def _ollama_text(event: dict[str, Any]) -> str:
    message: dict[str, Any] = event.get("message") or {}
    calls = [json.dumps(call["function"]) for call in message.get("tool_calls") or ()]
    said = f"{event.get('response', '')}{message.get('thinking', '')}{message.get('content', '')}"
    return said + "".join(calls)


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
"""The operations that generate a text."""

TOOL = {
    "name": "weather",
    "parameters": {
        "type": "object",
        "properties": {"city": {"type": "string", "maxLength": 8}, "days": {"type": "integer"}},
        "required": ["city"],
    },
}


def _calling(form: Form, tool: dict[str, Any], choice: Any) -> Form:
    """Returns `form` with a tool that the model has to call."""

    def body(prompt: str, params: dict[str, Any]) -> dict[str, Any]:
        return {**form.body(prompt, params), "tools": [tool], "tool_choice": choice}

    return replace(form, body=body, has_schema=True)


_of_path = {form.path: form for form in FORMS}
_function = {"type": "function", "function": TOOL}
TOOL_FORMS = (
    _calling(_of_path["/v1/chat/completions"], _function, "required"),
    _calling(_of_path["/v1/responses"], {"type": "function", **TOOL}, "required"),
    _calling(
        _of_path["/v1/messages"],
        {"name": TOOL["name"], "input_schema": TOOL["parameters"]},
        {"type": "any"},
    ),
    _calling(_of_path["/api/chat"], _function, "required"),
)

VECTOR_FORMS = (
    Form(
        "/v1/embeddings",
        lambda prompt, p: {"input": [prompt, f"{prompt} again"]},
        lambda event: json.dumps([each["embedding"] for each in event["data"]]),
        lambda event: False,
        streams=False,
    ),
    Form(
        "/api/embed",
        lambda prompt, p: {"input": [prompt, f"{prompt} again"]},
        lambda event: json.dumps(event["embeddings"]),
        lambda event: False,
        streams=False,
    ),
)
"""The requests for a model for embeddings."""
