"""The parts of a parsed answer: content, reasoning, tool calls; and the deltas that they are built
from.

Every chat API translates a stream of `ChatDelta`.
"""

import msgspec


class Content(msgspec.Struct, frozen=True, tag=True):
    """The next part of the answer's text."""

    text: str


class Reasoning(msgspec.Struct, frozen=True, tag=True):
    """The next part of the reasoning."""

    text: str


class CallStart(msgspec.Struct, frozen=True, tag=True):
    """The beginning of a call of the tool `name`. `index` counts the calls of one answer from 0.
    `free_text`: its arguments are a plain text."""

    index: int
    id: str
    name: str
    free_text: bool = False


class CallArguments(msgspec.Struct, frozen=True, tag=True):
    """The next part of a call's arguments, which are JSON or a plain text."""

    index: int
    text: str


ChatDelta = Content | Reasoning | CallStart | CallArguments


class ToolCall(msgspec.Struct):
    """A complete call. `arguments` is the text of a JSON object, or with `free_text` any text."""

    id: str
    name: str
    arguments: str = ""
    free_text: bool = False


class ChatMessage(msgspec.Struct):
    """The sum of all deltas of one answer. `ends_in_call`: a stop string ended it within its last
    call."""

    content: str = ""
    reasoning: str = ""
    calls: list[ToolCall] = []
    ends_in_call: bool = False

    def add(self, delta: ChatDelta) -> None:
        match delta:
            case Content(text):
                self.content += text
            case Reasoning(text):
                self.reasoning += text
            case CallStart(_, id, name, free_text):
                self.calls.append(ToolCall(id, name, free_text=free_text))
            case CallArguments(index, text):
                self.calls[index].arguments += text
