"""The parts of a parsed answer: content, reasoning, tool calls; and the deltas that build them up.

Every chat API translates a stream of `ChatDelta`.
"""

import msgspec


class Content(msgspec.Struct, frozen=True, tag=True):
    """More of the answer's text."""

    text: str


class Reasoning(msgspec.Struct, frozen=True, tag=True):
    """More of what the model thinks before it answers."""

    text: str


class CallStart(msgspec.Struct, frozen=True, tag=True):
    """A call of the tool `name` begins; `index` counts the calls of one answer from 0."""

    index: int
    id: str
    name: str


class CallArguments(msgspec.Struct, frozen=True, tag=True):
    """More of the JSON text of a call's arguments."""

    index: int
    text: str


ChatDelta = Content | Reasoning | CallStart | CallArguments


class ToolCall(msgspec.Struct):
    """A whole call. `arguments` is the text of a JSON object."""

    id: str
    name: str
    arguments: str = ""


class ChatMessage(msgspec.Struct):
    """The sum of all deltas of one answer."""

    content: str = ""
    reasoning: str = ""
    calls: list[ToolCall] = []

    def add(self, delta: ChatDelta) -> None:
        match delta:
            case Content(text):
                self.content += text
            case Reasoning(text):
                self.reasoning += text
            case CallStart(_, id, name):
                self.calls.append(ToolCall(id, name))
            case CallArguments(index, text):
                self.calls[index].arguments += text
