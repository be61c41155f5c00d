"""Writes an answer as a model would: the inverse of `engine.chat.parse.parser`."""

import json
from collections.abc import Sequence

from specllama.engine.chat import harmony_markers as harmony
from specllama.engine.chat.output import ChatMessage, ToolCall
from specllama.engine.chat.syntax import CallSyntax, Hole, OutputSyntax, TaggedArguments


def write_answer(syntax: OutputSyntax, message: ChatMessage, *, thinking: bool = False) -> str:
    """Returns the text of an answer with `message`. `thinking`: the prompt has opened the
    reasoning.

    Reasoning and calls that the syntax can't express are left out. Raises ValueError for arguments
    that are not a JSON object, if the syntax writes them one by one.
    """
    if syntax.harmony:
        return _write_harmony(message, thinking)
    text = ""
    if syntax.reasoning and (message.reasoning or thinking):
        begin = "" if thinking else syntax.reasoning.begin
        text += begin + message.reasoning + syntax.reasoning.end
    if message.content:
        text += syntax.content.begin + message.content + syntax.content.end
    if syntax.calls and message.calls:
        text += write_calls(syntax.calls, message.calls)
    return text


def write_calls(syntax: CallSyntax, calls: Sequence[ToolCall]) -> str:
    """Returns the text of `calls`. Raises ValueError as `write_answer` does."""
    texts = (_write_call(syntax, call, index) for index, call in enumerate(calls))
    return syntax.begin + syntax.separator.join(texts) + syntax.end


def _write_call(syntax: CallSyntax, call: ToolCall, index: int) -> str:
    arguments = call.arguments or "{}"
    fills: dict[Hole, str] = {
        "name": call.name,
        "id": call.id,
        "index": str(index),
        "arguments": _write_tagged(syntax.tagged, arguments) if syntax.tagged else arguments,
    }
    return "".join(part if isinstance(part, str) else fills[part.hole] for part in syntax.parts)


def _write_tagged(tagged: TaggedArguments, arguments: str) -> str:
    values = json.loads(arguments)
    if not isinstance(values, dict):
        raise ValueError("the arguments of a call are not a JSON object")

    def written(value: object) -> str:
        if isinstance(value, str) and not tagged.json_strings:
            return value
        return json.dumps(value, ensure_ascii=False)

    return tagged.separator.join(
        tagged.begin + key + tagged.middle + written(value) + tagged.end
        for key, value in values.items()
    )


def _write_harmony(message: ChatMessage, thinking: bool) -> str:
    messages = []
    if message.reasoning or thinking:
        header = "" if thinking else f"{harmony.CHANNEL}analysis{harmony.MESSAGE}"
        messages.append(header + message.reasoning + harmony.END)
    if message.content:
        channel = "commentary" if message.calls else "final"
        end = harmony.END if message.calls else ""  # the last message ends with the answer
        messages.append(f"{harmony.CHANNEL}{channel}{harmony.MESSAGE}{message.content}{end}")
    messages += [
        f"{harmony.CHANNEL}commentary to={harmony.FUNCTIONS}{call.name} {harmony.CONSTRAIN}json"
        f"{harmony.MESSAGE}{call.arguments or '{}'}{harmony.CALL}"
        for call in message.calls
    ]
    return f"{harmony.START}assistant".join(messages)
