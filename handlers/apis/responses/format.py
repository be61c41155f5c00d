"""OpenAI's response object: its settings, and the items of its output as they grow.

Pure functions and plain data. The events of a stream come from the same code that puts a plain
answer together, so that both say the same.
"""

import time
from collections.abc import Mapping
from types import MappingProxyType
from typing import Any, Literal

import msgspec

from specllama.engine.chat.output import (
    CallArguments,
    CallStart,
    ChatDelta,
    ChatMessage,
    Content,
    Reasoning,
)
from specllama.engine.params import GenerationParams
from specllama.engine.wire.replies import Finished, TokenProbs
from specllama.handlers.apis.native.probabilities import Probabilities
from specllama.handlers.apis.openai.tools import Place
from specllama.handlers.apis.responses.items import Item, new_id
from specllama.handlers.http.errors import HttpFailure
from specllama.handlers.running.chat_batch import ChatEvent, finish_reason

Event = dict[str, Any]
"""One event of a stream: its `type` and its fields, without the number of its place."""

Status = Literal["completed", "incomplete"]

_TEXTS = {"message": "output_text", "reasoning": "reasoning_text"}
"""The type of the one part that an item's content has."""

_CALLS = {
    "function_call": ("function_call_arguments", "arguments"),
    "custom_tool_call": ("custom_tool_call_input", "input"),
}
"""By the type of an item: the name of its events, and the field that they fill."""
_SEARCH = "tool_search_call"

_ECHOED = (
    "instructions",
    "previous_response_id",
    "prompt_cache_key",
    "safety_identifier",
    "user",
)


def new_response(
    body: Mapping[str, Any], model: str, params: GenerationParams, id: str | None
) -> dict[str, Any]:
    """The response to `body` before anything is generated, with the settings that apply."""
    reasoning, text = body.get("reasoning") or {}, body.get("text") or {}
    parallel, store = body.get("parallel_tool_calls"), body.get("store")
    return {
        "id": id,
        "object": "response",
        "created_at": int(time.time()),
        "completed_at": None,
        "status": "in_progress",
        "background": bool(body.get("background")),
        "error": None,
        "incomplete_details": None,
        "model": model,
        "output": [],
        "usage": None,
        **{name: body.get(name) for name in _ECHOED},
        **{name: _integer(body.get(name)) for name in ("max_output_tokens", "max_tool_calls")},
        "metadata": body.get("metadata") or {},
        "parallel_tool_calls": parallel is not False,
        "reasoning": {"effort": reasoning.get("effort"), "summary": None},
        "service_tier": "default",
        "store": store is not False,
        "temperature": params.temperature,
        "text": {
            "format": text.get("format") or {"type": "text"},
            "verbosity": text.get("verbosity") or "medium",
        },
        "tool_choice": body.get("tool_choice") or "auto",
        "tools": [_tool(tool) for tool in body.get("tools") or () if _is_offered(tool)],
        "top_logprobs": _integer(body.get("top_logprobs")) or 0,
        "top_p": params.top_p,
        "presence_penalty": params.presence_penalty,
        "frequency_penalty": params.frequency_penalty,
        "truncation": "auto" if body.get("truncation") == "auto" else "disabled",
    }


def _integer(value: float | None) -> int | None:
    """The integer that a request has written, maybe as 16.0."""
    return None if value is None else int(value)


def _is_offered(tool: Mapping[str, Any]) -> bool:
    kind = tool.get("type") or "function"
    return kind in ("function", "custom", "namespace") or (
        kind == "tool_search" and tool.get("execution") == "client"
    )


def _tool(tool: Mapping[str, Any]) -> dict[str, Any]:
    if tool.get("type") == "namespace":
        inner = [_tool(each) for each in tool.get("tools") or () if _is_offered(each)]
        about = tool.get("description") or ""
        return {"type": "namespace", "name": tool["name"], "description": about, "tools": inner}
    if tool.get("type") == "tool_search":
        names = ("description", "parameters")
        return {"type": "tool_search", "execution": "client", **{n: tool.get(n) for n in names}}
    if tool.get("type") == "custom":
        custom = {"type": "custom", "name": tool["name"], "description": tool.get("description")}
        return {**custom, "format": tool.get("format") or {"type": "text"}}
    tool = tool.get("function") or tool
    strict = tool.get("strict")
    return {
        "type": "function",
        "name": tool["name"],
        "description": tool.get("description"),
        "parameters": tool.get("parameters"),
        "strict": strict is not False,
    }


def status_of(message: ChatMessage, finished: Finished) -> Status:
    """The status at the end of an answer, and of its last item."""
    is_cut = finish_reason(message, finished) == "length" or message.ends_in_call
    return "incomplete" if is_cut else "completed"


def _decoded(arguments: str) -> Any:
    """The arguments of a search; the text of them if they were cut off."""
    try:
        return msgspec.json.decode(arguments or "{}")
    except (msgspec.DecodeError, RecursionError):
        return arguments


def finished_response(
    response: Mapping[str, Any],
    output: list[Item],
    status: Status,
    finished: Finished,
    reasoning_tokens: int,
) -> dict[str, Any]:
    """`response` with everything that is known at its end. OpenAI has no name for a stop string
    that ends a call."""
    is_cut = status == "incomplete" and finished.stop_type != "word"
    details = {"reason": "max_output_tokens"} if is_cut else None
    return {
        **response,
        "status": status,
        "completed_at": int(time.time()) if status == "completed" else None,
        "incomplete_details": details,
        "output": output,
        "usage": {
            "input_tokens": finished.n_prompt,
            "input_tokens_details": {
                "cached_tokens": finished.timings.cache_n,
                "cache_write_tokens": finished.timings.prompt_n,
            },
            "output_tokens": finished.n_decoded,
            # Counted in the text, which may be tokenized in another way than it was generated.
            "output_tokens_details": {
                "reasoning_tokens": min(reasoning_tokens, finished.n_decoded)
            },
            "total_tokens": finished.n_prompt + finished.n_decoded,
        },
    }


def failed_response(
    response: Mapping[str, Any], output: list[Item], failure: HttpFailure
) -> dict[str, Any]:
    """`response` as it is when something failed in the middle of it."""
    code = "server_error" if failure.status >= 500 else "invalid_prompt"
    error = {"code": code, "message": failure.info.message}
    return {**response, "status": "failed", "error": error, "output": output}


def cancelled_response(response: Mapping[str, Any]) -> dict[str, Any]:
    """`response` as it is when it was cancelled; what was generated of it is not kept."""
    return {**response, "status": "cancelled", "output": []}


class Output:
    """The items of one answer, put together from what the engine says.

    One item is open at a time, and is `in_progress`; the text of it grows in `_pieces`. `places`
    are those of the tools that the model knows by another name than the client.
    """

    def __init__(
        self,
        probabilities: Probabilities | None = None,
        places: Mapping[str, Place] = MappingProxyType({}),
    ) -> None:
        self.items: list[Item] = []
        self._places = places
        self._probabilities = probabilities
        self._open = False
        self._pieces: list[str] = []
        self._logprobs: list[dict[str, Any]] = []
        self._unsaid: list[TokenProbs] = []  # of the content, for its next text

    def feed(self, event: ChatEvent) -> list[Event]:
        """The events for what `event` adds to the response."""
        if self._probabilities is not None:
            self._unsaid += event.probs
        return [made for delta in event.deltas for made in self._add(delta)]

    def finish(self, status: Status) -> list[Event]:
        """Ends the last item. An answer without any item gets an empty message."""
        events = [] if self.items else self._enter("message")
        return events + self._close(status)

    def reasoning(self) -> str:
        """All thoughts together."""
        return "".join(
            part["text"]
            for item in self.items
            if item["type"] == "reasoning"
            for part in item["content"]
        )

    def _add(self, delta: ChatDelta) -> list[Event]:
        match delta:
            case Content(text):
                logprobs = self._take_logprobs()
                self._logprobs += logprobs
                events = self._enter("message")
                return [*events, self._text(text, logprobs=logprobs)]
            case Reasoning(text):
                return [*self._enter("reasoning"), self._text(text)]
            case CallStart(_, id, name, free_text):
                return [*self._close("completed"), self._begin_call(id, name, free_text)]
            case CallArguments(_, text):
                self._pieces.append(text)
                if (kind := self.items[-1]["type"]) == _SEARCH:
                    return []
                name, _ = _CALLS[kind]
                return [self._event(f"response.{name}.delta", delta=text)]

    def _take_logprobs(self) -> list[Any]:
        """The probabilities of the tokens since the last time."""
        tokens, self._unsaid = self._unsaid, []
        return self._probabilities.content(tokens) if self._probabilities else []

    def _enter(self, type_: Literal["message", "reasoning"]) -> list[Event]:
        """Opens an item of this type, unless it is open."""
        if self._open and self.items[-1]["type"] == type_:
            return []
        events = self._close("completed")
        if type_ == "message":
            item: Item = {"id": new_id("msg"), "type": type_, "role": "assistant", "content": []}
        else:
            item = {"id": new_id("rs"), "type": type_, "summary": [], "content": []}
        part = self._part(type_, "")
        return [
            *events,
            self._begin(item),
            self._event("response.content_part.added", 0, part=part),
        ]

    def _begin_call(self, call_id: str, name: str, free_text: bool) -> Event:
        place = self._places.get(name)
        if place is not None and place.namespace is None:
            search = {"id": new_id("tsc"), "type": _SEARCH, "call_id": call_id}
            return self._begin({**search, "execution": "client", "arguments": {}})
        call = {"call_id": call_id, "name": name}
        if place is not None and place.namespace is not None:
            call |= {"name": place.name, "namespace": place.namespace}
        if free_text:
            return self._begin(
                {"id": new_id("ctc"), "type": "custom_tool_call", **call, "input": ""}
            )
        return self._begin({"id": new_id("fc"), "type": "function_call", **call, "arguments": ""})

    def _begin(self, item: Item) -> Event:
        item["status"] = "in_progress"
        self.items.append(item)
        self._open = True
        index = len(self.items) - 1
        # A copy: the event is sent before the item goes on growing.
        return {"type": "response.output_item.added", "output_index": index, "item": {**item}}

    def _text(self, text: str, **more: Any) -> Event:
        self._pieces.append(text)
        name = _TEXTS[self.items[-1]["type"]]
        return self._event(f"response.{name}.delta", 0, delta=text, **more)

    def _close(self, status: Status) -> list[Event]:
        if not self._open:
            return []
        item = self.items[-1]
        text = "".join(self._pieces)
        if item["type"] == _SEARCH:
            item["arguments"] = _decoded(text)
            events = []
        elif item["type"] in _CALLS:
            name, field = _CALLS[item["type"]]
            item[field] = text
            called = {"name": item["name"]} if item["type"] == "function_call" else {}
            events = [{**self._event(f"response.{name}.done"), **called, field: text}]
        else:
            events = self._close_text(item, text)
        item["status"] = status
        self._open = False
        self._pieces.clear()
        index = len(self.items) - 1
        return [*events, {"type": "response.output_item.done", "output_index": index, "item": item}]

    def _close_text(self, item: Item, text: str) -> list[Event]:
        more: dict[str, Any] = {}
        if item["type"] == "message":
            more["logprobs"], self._logprobs = self._logprobs, []
        part = self._part(item["type"], text, **more)
        item["content"] = [part]
        name = _TEXTS[item["type"]]
        return [
            self._event(f"response.{name}.done", 0, text=text, **more),
            self._event("response.content_part.done", 0, part=part),
        ]

    @staticmethod
    def _part(type_: str, text: str, **more: Any) -> dict[str, Any]:
        part: dict[str, Any] = {"type": _TEXTS[type_], "text": text}
        if type_ == "message":
            part |= {"annotations": [], "logprobs": [], **more}
        return part

    def _event(self, type_: str, content_index: int | None = None, **fields: Any) -> Event:
        """An event of the open item."""
        index = len(self.items) - 1
        event = {"type": type_, "item_id": self.items[-1]["id"], "output_index": index}
        if content_index is not None:
            event["content_index"] = content_index
        return {**event, **fields}
