"""Tools for models whose chat template doesn't support them: a system message explains them.

The system message lists the tools and shows how to write a call. Earlier calls are written in this
form in the assistant's text, and their results are user messages between `<tool_response>` tags.
The form of calls is `HERMES_CALLS`, which most models were trained with.
"""

import json
from collections.abc import Mapping, Sequence
from typing import Any

from specllama.engine.chat.syntax import HERMES_CALLS, JSON_TYPES, CallSyntax, Fill, TaggedArguments
from specllama.engine.helpers.render.template.adapting import object_arguments
from specllama.engine.helpers.render.template.conversation import text_of

_HEAD = "# Tools\n\nYou can call the following functions. Each line describes one of them as JSON:"
_FORM = "To call a function, write its name and an object with its arguments like this:"
_PARALLEL = "You can make several calls in one answer, one after the other."
_ONE = "Make one call at a time."
_RESULTS = "The result of a call is given to you between <tool_response> and </tool_response>."


def with_tools_as_text(
    messages: Sequence[Mapping[str, Any]],
    tools: Sequence[Mapping[str, Any]],
    *,
    parallel: bool = True,
) -> list[dict[str, Any]]:
    """Returns `messages` of a conversation with `tools`, for a template that only renders roles and
    texts."""
    result: list[dict[str, Any]] = []
    after_result = False
    for message in messages:
        role, text = message["role"], text_of(message["content"])
        if role == "tool":
            text = f"<tool_response>\n{text}\n</tool_response>"
            plain = {"role": "user", "content": text}
        elif "tool_calls" in message:
            plain = _with_calls(message, HERMES_CALLS)
            text = plain["content"]
        else:
            plain = dict(message)
        if after_result and plain["role"] == "user":
            # One turn of the user, as many of these templates require alternating roles.
            result[-1] = {**result[-1], "content": f"{result[-1]['content']}\n{text}"}
        else:
            result.append(plain)
        after_result = role == "tool" or (after_result and role == "user")
    return with_tool_notes(result, tools, HERMES_CALLS, parallel=parallel, results=True)


def with_calls_as_text(
    messages: Sequence[Mapping[str, Any]], calls: CallSyntax
) -> list[dict[str, Any]]:
    """Returns `messages` for a template that doesn't show calls: they become text, in the model's
    own syntax."""
    return [
        _with_calls(message, calls) if "tool_calls" in message else dict(message)
        for message in messages
    ]


def _with_calls(message: Mapping[str, Any], calls: CallSyntax) -> dict[str, Any]:
    functions = [call["function"] for call in message["tool_calls"]]
    written = [
        written_call(calls, function["name"], object_arguments(function["arguments"]))
        for function in functions
    ]
    text = text_of(message["content"])
    made = calls.begin + calls.separator.join(written) + calls.end
    plain = {key: value for key, value in message.items() if key != "tool_calls"}
    return {**plain, "content": f"{text}\n{made}" if text else made}


def with_tool_notes(
    messages: Sequence[dict[str, Any]],
    tools: Sequence[Mapping[str, Any]],
    calls: CallSyntax,
    *,
    parallel: bool = True,
    results: bool = False,
) -> list[dict[str, Any]]:
    """Returns `messages` with a first system message that describes the tools and the form of
    calls; with `results`, also the form of results."""
    if not tools:
        return list(messages)
    form = calls.begin + written_call(calls, "NAME", {"ARGUMENT": "VALUE"}) + calls.end
    several = _PARALLEL if parallel and calls.parallel else _ONE
    lines = [_HEAD, *(json.dumps(tool["function"], ensure_ascii=False) for tool in tools)]
    lines += ["", _FORM, form.strip(), several]
    if results:
        lines.append(_RESULTS)
    notes = "\n".join(lines)
    if messages and messages[0]["role"] in ("system", "developer"):
        first = messages[0]
        said = text_of(first["content"])
        return [{**first, "content": f"{said}\n\n{notes}" if said else notes}, *messages[1:]]
    return [{"role": "system", "content": notes}, *messages]


def written_call(calls: CallSyntax, name: str, arguments: Mapping[str, Any]) -> str:
    """Returns one call as a model writes it, without the text before the first and after the last
    call."""
    fills = {
        "name": name,
        "arguments": _arguments(calls, arguments),
        "id": "call00000",
        "index": str(calls.first_index),
    }
    return "".join(fills[part.hole] if isinstance(part, Fill) else part for part in calls.parts)


def _arguments(calls: CallSyntax, arguments: Mapping[str, Any]) -> str:
    tagged = calls.tagged
    if tagged is None:
        return json.dumps(arguments, ensure_ascii=False)
    return tagged.separator.join(written_argument(tagged, *each) for each in arguments.items())


def written_argument(tagged: TaggedArguments, key: str, value: Any) -> str:
    """Returns one of the arguments that are written one by one."""
    kind = JSON_TYPES[type(value)]
    between = tagged.before(kind)
    return tagged.begin + key + between + _written(tagged, value) + tagged.after(key)


def _written(tagged: TaggedArguments, value: Any) -> str:
    quote = '"' if tagged.quote == "'" else tagged.quote  # JSON is also a valid literal
    match value:
        case str() if tagged.json_strings or quote == '"':
            return json.dumps(value, ensure_ascii=False)
        case str() if tagged.wrapper.begin and "<" in value:
            return tagged.wrapper.begin + value + tagged.wrapper.end
        case str():
            return quote + value + quote
        case list() if tagged.item:
            return "".join(written_argument(tagged, tagged.item, each) for each in value)
        case dict() if tagged.item:
            return "".join(written_argument(tagged, *each) for each in value.items())
        case list() if quote not in ("", '"'):
            return f"[{','.join(_written(tagged, each) for each in value)}]"
        case dict() if quote not in ("", '"'):
            members = (f"{key}:{_written(tagged, each)}" for key, each in value.items())
            return f"{{{','.join(members)}}}"
    return json.dumps(value, ensure_ascii=False)
