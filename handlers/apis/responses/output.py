"""The growing items of a response's output, and the events that report them.

The same code makes the events of a stream and the items of a whole answer, so that both agree.
"""

import itertools
from collections.abc import Mapping
from types import MappingProxyType
from typing import Any, Literal, NotRequired, TypeAlias, TypedDict

import msgspec

from specllama.engine.chat.output import CallArguments, CallStart, ChatDelta, Content, Reasoning
from specllama.engine.wire.replies import TokenProbs
from specllama.handlers.apis.probabilities import Probabilities
from specllama.handlers.apis.responses.items import new_id, sealed_reasoning
from specllama.handlers.apis.tools import Place
from specllama.handlers.http import schemas
from specllama.handlers.running.chat_batch import ChatEvent
from specllama.handlers.running.sealing import Seal

Event: TypeAlias = schemas.ResponseEvent
Item: TypeAlias = schemas.ResponseOutputItem

Status = Literal["completed", "incomplete"]


class _Tail(TypedDict):
    """The last fields of every event of an item."""

    timings: NotRequired[schemas.Timings]
    sequence_number: int


class _Named(TypedDict):
    """The client's name of a tool."""

    name: str
    namespace: NotRequired[str]


class Output:
    """The items of one answer, made from the engine's events, and the events that report them.

    One item at a time is open, with the status `in_progress`; its text grows in `_pieces`. `places`
    has the client's names of tools that have other names in the prompt. With `seal`, reasoning is
    returned sealed as well.
    """

    def __init__(
        self,
        probabilities: Probabilities | None = None,
        places: Mapping[str, Place] = MappingProxyType({}),
        seal: Seal | None = None,
    ) -> None:
        self.items: list[Item] = []
        self._seal = seal
        self._places = places
        self._probabilities = probabilities
        self._open = False
        self._id = ""  # of the last item
        self._index = -1
        self._pieces: list[str] = []
        self._logprobs: list[schemas.TokenProbability] = []
        self._unsaid: list[TokenProbs] = []  # tokens of the content, for its next text
        self._numbers = itertools.count()
        self._timings: schemas.Timings | None = None  # for the events that are being made

    def number(self) -> int:
        """Returns the number of the next event in the stream, and counts it."""
        return next(self._numbers)

    def feed(self, event: ChatEvent, timings: schemas.Timings | None = None) -> list[Event]:
        """Returns the events for the additions of `event` to the response, with `timings` unless
        they are None."""
        if self._probabilities is not None:
            self._unsaid += event.probs
        self._timings = timings
        events = [made for delta in event.deltas for made in self._add(delta)]
        self._timings = None
        return events

    def put(self, item: schemas.ResponseCompaction) -> list[Event]:
        """Adds an item that is complete, and returns its events."""
        self._index += 1
        self.items.append(item)
        added: schemas.ResponseOutputItemAddedEvent = {
            "type": "response.output_item.added",
            "output_index": self._index,
            "item": item,
            **self._tail(),
        }
        done: schemas.ResponseOutputItemDoneEvent = {
            "type": "response.output_item.done",
            "output_index": self._index,
            "item": item,
            **self._tail(),
        }
        return [added, done]

    def finish(self, status: Status) -> list[Event]:
        """Ends the last item, and returns the events for that. An answer without any item gets an
        empty message."""
        is_empty = all(item["type"] == "compaction" for item in self.items)
        events = self._enter_message() if is_empty else []
        return events + self._close(status)

    def reasoning(self) -> str:
        """Returns all thoughts as one text."""
        return "".join(
            part["text"]
            for item in self.items
            if item["type"] == "reasoning"
            for part in item["content"]
        )

    def _tail(self) -> _Tail:
        if self._timings is None:
            return {"sequence_number": next(self._numbers)}
        return {"timings": self._timings, "sequence_number": next(self._numbers)}

    # ---- additions to items

    def _add(self, delta: ChatDelta) -> list[Event]:
        match delta:
            case Content(text):
                logprobs = self._take_logprobs()
                self._logprobs += logprobs
                return [*self._enter_message(), self._said(text, logprobs)]
            case Reasoning(text):
                return [*self._enter_reasoning(), self._thought(text)]
            case CallStart(_, id, name, free_text):
                return [*self._close("completed"), self._begin(self._call(id, name, free_text))]
            case CallArguments(_, text):
                return self._written(text)

    def _take_logprobs(self) -> list[schemas.TokenProbability]:
        """Returns the probabilities of the tokens since the last call."""
        tokens, self._unsaid = self._unsaid, []
        return self._probabilities.content(tokens) if self._probabilities else []

    def _said(
        self, text: str, logprobs: list[schemas.TokenProbability]
    ) -> schemas.ResponseTextDeltaEvent:
        self._pieces.append(text)
        return {
            "type": "response.output_text.delta",
            "item_id": self._id,
            "output_index": self._index,
            "content_index": 0,
            "delta": text,
            "logprobs": logprobs,
            **self._tail(),
        }

    def _thought(self, text: str) -> schemas.ResponseReasoningTextDeltaEvent:
        self._pieces.append(text)
        return {
            "type": "response.reasoning_text.delta",
            "item_id": self._id,
            "output_index": self._index,
            "content_index": 0,
            "delta": text,
            **self._tail(),
        }

    def _written(self, text: str) -> list[Event]:
        """Returns the events for more text of a call's arguments or input."""
        self._pieces.append(text)
        match self.items[-1]["type"]:
            case "function_call":
                return [
                    {
                        "type": "response.function_call_arguments.delta",
                        "item_id": self._id,
                        "output_index": self._index,
                        "delta": text,
                        **self._tail(),
                    }
                ]
            case "custom_tool_call":
                return [
                    {
                        "type": "response.custom_tool_call_input.delta",
                        "item_id": self._id,
                        "output_index": self._index,
                        "delta": text,
                        **self._tail(),
                    }
                ]
        return []

    # ---- beginnings of items

    def _enter_message(self) -> list[Event]:
        """Opens a message, unless one is open."""
        if self._open and self.items[-1]["type"] == "message":
            return []
        item: schemas.ResponseOutputMessage = {
            "id": new_id("msg"),
            "type": "message",
            "role": "assistant",
            "content": [],
            "status": "in_progress",
        }
        return [
            *self._close("completed"),
            self._begin(item),
            self._begin_part(_output_text("", [])),
        ]

    def _enter_reasoning(self) -> list[Event]:
        """Opens an item of reasoning, unless one is open."""
        if self._open and self.items[-1]["type"] == "reasoning":
            return []
        item: schemas.ResponseReasoning = {
            "id": new_id("rs"),
            "type": "reasoning",
            "summary": [],
            "content": [],
            "status": "in_progress",
        }
        events = self._close("completed")
        return [*events, self._begin(item), self._begin_part(_reasoning_text(""))]

    def _call(self, call_id: str, name: str, free_text: bool) -> Item:
        place = self._places.get(name)
        if place is not None and place.namespace is None:
            return {
                "id": new_id("tsc"),
                "type": "tool_search_call",
                "call_id": call_id,
                "execution": "client",
                "arguments": {},
                "status": "in_progress",
            }
        named: _Named = {"name": name}
        if place is not None and place.namespace is not None:
            named = {"name": place.name, "namespace": place.namespace}
        if free_text:
            return {
                "id": new_id("ctc"),
                "type": "custom_tool_call",
                "call_id": call_id,
                **named,
                "input": "",
                "status": "in_progress",
            }
        return {
            "id": new_id("fc"),
            "type": "function_call",
            "call_id": call_id,
            **named,
            "arguments": "",
            "status": "in_progress",
        }

    def _begin(self, item: Item) -> schemas.ResponseOutputItemAddedEvent:
        self.items.append(item)
        self._open, self._id, self._index = True, item["id"], len(self.items) - 1
        return {
            "type": "response.output_item.added",
            "output_index": self._index,
            "item": item.copy(),  # the item grows before the event is encoded
            **self._tail(),
        }

    def _begin_part(
        self, part: schemas.ResponseContentPart
    ) -> schemas.ResponseContentPartAddedEvent:
        return {
            "type": "response.content_part.added",
            "item_id": self._id,
            "output_index": self._index,
            "content_index": 0,
            "part": part,
            **self._tail(),
        }

    # ---- ends of items

    def _close(self, status: Status) -> list[Event]:
        if not self._open:
            return []
        item = self.items[-1]
        text = "".join(self._pieces)
        self._pieces.clear()
        events = self._complete(item, text)
        item["status"] = status
        self._open = False
        done: schemas.ResponseOutputItemDoneEvent = {
            "type": "response.output_item.done",
            "output_index": self._index,
            "item": item,
            **self._tail(),
        }
        return [*events, done]

    def _complete(self, item: Item, text: str) -> list[Event]:
        match item["type"]:
            case "message":
                return self._complete_message(item, text)
            case "reasoning":
                return self._complete_reasoning(item, text)
            case "function_call":
                return [self._complete_function_call(item, text)]
            case "custom_tool_call":
                return [self._complete_custom_call(item, text)]
            case "tool_search_call":
                item["arguments"] = _decoded(text)
                return []
            case "compaction":
                return []  # it is complete from its beginning, and never open

    def _complete_message(self, item: schemas.ResponseOutputMessage, text: str) -> list[Event]:
        logprobs, self._logprobs = self._logprobs, []
        part = _output_text(text, logprobs)
        item["content"] = [part]
        done: schemas.ResponseTextDoneEvent = {
            "type": "response.output_text.done",
            "item_id": self._id,
            "output_index": self._index,
            "content_index": 0,
            "text": text,
            "logprobs": logprobs,
            **self._tail(),
        }
        return [done, self._end_part(part)]

    def _complete_reasoning(self, item: schemas.ResponseReasoning, text: str) -> list[Event]:
        part = _reasoning_text(text)
        item["content"] = [part]
        if self._seal and (sealed := sealed_reasoning(self._seal, text)) is not None:
            item["encrypted_content"] = sealed
        done: schemas.ResponseReasoningTextDoneEvent = {
            "type": "response.reasoning_text.done",
            "item_id": self._id,
            "output_index": self._index,
            "content_index": 0,
            "text": text,
            **self._tail(),
        }
        return [done, self._end_part(part)]

    def _end_part(self, part: schemas.ResponseContentPart) -> schemas.ResponseContentPartDoneEvent:
        return {
            "type": "response.content_part.done",
            "item_id": self._id,
            "output_index": self._index,
            "content_index": 0,
            "part": part,
            **self._tail(),
        }

    def _complete_function_call(
        self, item: schemas.ResponseFunctionCall, arguments: str
    ) -> schemas.ResponseArgumentsDoneEvent:
        item["arguments"] = arguments
        return {
            "type": "response.function_call_arguments.done",
            "item_id": self._id,
            "output_index": self._index,
            "name": item["name"],
            "arguments": arguments,
            **self._tail(),
        }

    def _complete_custom_call(
        self, item: schemas.ResponseCustomCall, text: str
    ) -> schemas.ResponseCustomInputDoneEvent:
        item["input"] = text
        return {
            "type": "response.custom_tool_call_input.done",
            "item_id": self._id,
            "output_index": self._index,
            "input": text,
            **self._tail(),
        }


def _output_text(text: str, logprobs: list[schemas.TokenProbability]) -> schemas.ResponseOutputText:
    return {"type": "output_text", "text": text, "annotations": [], "logprobs": logprobs}


def _reasoning_text(text: str) -> schemas.ResponseReasoningText:
    return {"type": "reasoning_text", "text": text}


def _decoded(arguments: str) -> Any:
    """Returns the arguments of a search; their text if they were cut off."""
    try:
        return msgspec.json.decode(arguments or "{}")
    except (msgspec.DecodeError, RecursionError):
        return arguments
