"""Reads the answers of all APIs: their parts, their end, their error."""

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

Parts = dict[str, str]
"""Texts of an answer by their kinds: `content`, `thoughts`, `calls`, `finish`, ..."""
DONE = "[DONE]"
VECTOR = "vector"
CLOSE = 0.01
"""The allowed difference of two numbers in equal vectors. The last digits depend on the batch, and
vectors of other texts differ more."""


@dataclass
class Said:
    """The received part of an answer. A stream that is cut off has neither an end nor an error."""

    parts: Parts = field(default_factory=dict)
    n_ends: int = 0
    error: Any = None
    behind: int = 0
    """The number of documents after the end or the error."""

    def add(self, name: str, text: Any) -> None:
        if text:
            self.parts[name] = self.parts.get(name, "") + str(text)


Reader = Callable[[Said, Any], None]
"""Adds a document (a plain answer, or an event of a stream) to what was read before."""


def native(said: Said, document: Any) -> None:
    said.add("content", document.get("content"))
    if document.get("stop") is True:
        said.add("finish", document.get("stop_type"))
        said.n_ends += 1


def choices(said: Said, document: Any) -> None:
    """Reads OpenAI's completions and chats. A stream ends with `[DONE]`, which is no document."""
    for choice in document.get("choices", ()):
        number = choice["index"] or ""
        message = choice.get("message") or choice.get("delta") or {}
        said.add(f"content{number}", choice.get("text") or message.get("content"))
        said.add(f"thoughts{number}", message.get("reasoning_content"))
        for call in message.get("tool_calls") or ():
            function = call.get("function", {})
            if function.get("name"):
                said.add(f"calls{number}", f"\n{function['name']} ")
            said.add(f"calls{number}", function.get("arguments"))
        said.add(f"finish{number}", choice.get("finish_reason"))


def responses(said: Said, document: Any) -> None:
    match document.get("type"):
        case "response.output_text.delta":
            said.add("content", document["delta"])
        case "response.reasoning_text.delta":
            said.add("thoughts", document["delta"])
        case "response.function_call_arguments.delta":
            said.add("calls", document["delta"])
        case "response.completed" | "response.incomplete":
            said.add("finish", document["response"]["status"])
            said.n_ends += 1
        case "response.failed":
            said.error = document["response"]["error"]
        case None:  # a plain answer
            for item in document.get("output", ()):
                for part in item.get("content") or ():
                    kind = "content" if part["type"] == "output_text" else "thoughts"
                    said.add(kind, part.get("text"))
                said.add("calls", item.get("arguments"))
            said.add("finish", document.get("status"))
        case _:
            pass


def messages(said: Said, document: Any) -> None:
    delta = document.get("delta", {})
    match document.get("type"):
        case "message":  # a plain answer
            for block in document["content"]:
                said.add("content", block.get("text"))
                said.add("thoughts", block.get("thinking"))
                said.add("calls", json.dumps(block["input"]) if "input" in block else "")
            said.add("finish", document["stop_reason"])
        case "content_block_delta":
            said.add("content", delta.get("text"))
            said.add("thoughts", delta.get("thinking"))
            said.add("calls", delta.get("partial_json"))
        case "message_delta":
            said.add("finish", delta.get("stop_reason"))
        case "message_stop":
            said.n_ends += 1
        case _:
            pass


def ollama(said: Said, document: Any) -> None:
    message = document.get("message", {})
    said.add("content", document.get("response") or message.get("content"))
    said.add("thoughts", document.get("thinking") or message.get("thinking"))
    for call in message.get("tool_calls") or ():
        said.add("calls", json.dumps(call["function"], sort_keys=True))
    if document.get("done") is True:
        said.add("finish", document.get("done_reason"))
        said.n_ends += 1


def vectors(said: Said, document: Any) -> None:
    for item in document["data"]:
        said.add(VECTOR, " ".join(f"{value:.4f}" for value in item["embedding"]) + " ")


def fields(*names: str) -> Reader:
    """Returns a reader of some fields of a plain answer."""

    def read(said: Said, document: Any) -> None:
        for name in names:
            said.add(name, json.dumps(document.get(name)))

    return read


def nothing(said: Said, document: Any) -> None:
    """Reads nothing, for answers of which only the form is known."""


def read_whole(reader: Reader, document: Any) -> Said:
    said = Said()
    reader(said, document)
    said.n_ends = 1
    return said


def read_stream(reader: Reader, documents: Sequence[str]) -> Said:
    """Reads a stream. `documents` are the data of the complete events, or the complete lines. The
    event `error` may follow `response.failed` with the same message."""
    said = Said()
    kind: Any = None
    for data in documents:
        is_over = said.n_ends > 0 or said.error is not None
        if data == DONE:
            said.behind += is_over
            said.n_ends += 1
            continue
        document = json.loads(data)
        before, kind = kind, document.get("type")
        said.behind += is_over and (before, kind) != ("response.failed", "error")
        reader(said, document)
        if said.error is None and "type" not in document:
            said.error = document.get("error")
        elif document.get("type") == "error":
            said.error = document.get("error") or document
    return said


def differs(expected: Mapping[str, str], parts: Mapping[str, str], whole: bool) -> str:
    """Returns how an answer differs from the truth, or an empty text. Unless it has to be `whole`,
    an answer may also be the beginning of the truth."""
    for name in {**expected, **parts}:
        truth, text = expected.get(name, ""), parts.get(name, "")
        if name == VECTOR and whole and _are_close(text, truth):
            continue
        if text != truth if whole else not truth.startswith(text):
            return f"{name} is {text!r:.300}, and should be {truth!r:.300}"
    return ""


def _are_close(text: str, truth: str) -> bool:
    numbers, true = text.split(), truth.split()
    pairs = zip(numbers, true, strict=False)
    return len(numbers) == len(true) and all(abs(float(a) - float(b)) < CLOSE for a, b in pairs)
