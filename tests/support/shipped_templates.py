"""Conversations and answers for the chat templates that llama.cpp ships in `models/templates`.

The templates and their prompts aren't ours, so this repository has neither. shipped_prompts.json
has digests of llama-server's prompts for the conversations, recorded by record_templates.py, and
the answers that the templates write.
"""

import hashlib
import json
import re
from datetime import datetime
from pathlib import Path
from typing import Any

import msgspec

Message = Any


def user(text: str) -> Message:
    return {"role": "user", "content": text}


def assistant(text: str | None, **fields: Any) -> Message:
    return {"role": "assistant", "content": text, **fields}


def call(id: str, name: str, arguments: dict[str, Any]) -> Message:
    function = {"name": name, "arguments": json.dumps(arguments)}
    return {"id": id, "type": "function", "function": function}


def result(id: str, name: str, text: str) -> Message:
    return {"role": "tool", "tool_call_id": id, "name": name, "content": text}


def tool(name: str, description: str, properties: dict[str, Any], required: list[str]) -> Message:
    parameters = {"type": "object", "properties": properties, "required": required}
    function = {"name": name, "description": description, "parameters": parameters}
    return {"type": "function", "function": function}


_NAME = {"type": "string", "description": "Its name"}
_DAYS = {"type": "integer", "description": "How many days ahead"}
TOOLS: Any = [
    tool("get_weather", "The weather of a city.", {"city": _NAME, "days": _DAYS}, ["city"]),
    tool("get_time", "The time in a zone.", {"zone": _NAME}, ["zone"]),
]

_BRIEF = {"role": "system", "content": "Be brief."}
_ASK = user("How is the weather in Bern?")
_ONE = call("call00001", "get_weather", {"city": "Bern", "days": 2})
_TWO = call("call00002", "get_time", {"zone": "UTC"})
_PARTS = [{"type": "text", "text": "First part."}, {"type": "text", "text": "Second part."}]
_TURNS = [_BRIEF, user("Hello"), assistant("Hi, you."), user("How are you?"), assistant("Fine.")]

CONVERSATIONS: dict[str, dict[str, Any]] = {
    "plain": {"messages": [user("Hello there")]},
    "system": {"messages": [_BRIEF, user("Hello there")]},
    "turns": {"messages": [*_TURNS, user("Good.")]},
    "parts": {"messages": [{"role": "user", "content": _PARTS}]},
    "tools": {"messages": [_BRIEF, _ASK], "tools": TOOLS},
    "result": {
        "messages": [
            _ASK,
            assistant(None, tool_calls=[_ONE]),
            result("call00001", "get_weather", '{"sky": "clear"}'),
        ],
        "tools": TOOLS,
    },
    "answered": {
        "messages": [
            _ASK,
            assistant("", tool_calls=[_ONE]),
            result("call00001", "get_weather", "Clear sky"),
            assistant("It is clear."),
            user("And the time?"),
        ],
        "tools": TOOLS,
    },
    "parallel": {
        "messages": [
            _ASK,
            assistant("", tool_calls=[_ONE, _TWO]),
            result("call00001", "get_weather", "Clear sky"),
            result("call00002", "get_time", "12:00"),
        ],
        "tools": TOOLS,
    },
    "thoughts": {
        "messages": [
            _ASK,
            assistant("Clear.", reasoning_content="The user asks for the weather."),
            user("Sure?"),
        ]
    },
    "prefill": {"messages": [user("Name a colour"), assistant("The colour is")]},
}

_ODD = call("call00001", "get_weather", {"city": 'Bern <b> & "x", it\'s', "days": 2})
ANSWERS: dict[str, Message] = {
    "text": assistant("Some words, <b> and {x}."),
    "thoughts": assistant("Words.", reasoning_content="Some ideas\n\nabout it."),
    "call": assistant("", tool_calls=[_ODD]),
    "calls": assistant("", tool_calls=[_ODD, call("call00002", "get_time", {"zone": "UTC+1"})]),
    "text and call": assistant("Let me see.", tool_calls=[_ODD]),
    "thoughts and call": assistant("", reasoning_content="Some ideas.", tool_calls=[_ODD]),
}


class Shipped(msgspec.Struct, frozen=True):
    """The known properties of a template: the digests of llama-server's prompts, None if it rejects
    the conversation, and the answers that the template writes."""

    prompts: dict[str, str | None]
    answers: list[str]


RECORD = Path(__file__).with_name("shipped_prompts.json")


def shipped() -> dict[str, Shipped]:
    return msgspec.json.decode(RECORD.read_bytes(), type=dict[str, Shipped])


def digest(prompt: str) -> str:
    """Returns the prompt for another day."""
    today = datetime.now()
    dates = ("%d %b %Y", "%b %d %Y", "%Y-%m-%d", "%B %d, %Y", "%d %B %Y")
    spelled = "|".join(re.escape(today.strftime(form)) for form in dates)
    return hashlib.sha256(re.sub(spelled, "TODAY", prompt).encode()).hexdigest()[:16]
