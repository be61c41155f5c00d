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
    """A call of the tool `name` begins; `index` counts the calls of one answer from 0.
    `free_text`: its arguments are a plain text."""

    index: int
    id: str
    name: str
    free_text: bool = False


class CallArguments(msgspec.Struct, frozen=True, tag=True):
    """More of the JSON text of a call's arguments, or of the plain text that they are."""

    index: int
    text: str


ChatDelta = Content | Reasoning | CallStart | CallArguments


class ToolCall(msgspec.Struct):
    """A whole call. `arguments` is the text of a JSON object, or with `free_text` any text."""

    id: str
    name: str
    arguments: str = ""
    free_text: bool = False


class ChatMessage(msgspec.Struct):
    """The sum of all deltas of one answer. `ends_in_call`: a stop string ended it before its last
    call was whole."""

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
