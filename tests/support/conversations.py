"""Messages of conversations with tools, and their prompts."""

from typing import Any

from specllama.engine.chat.request import ChatPrompt, ChatRequest
from specllama.engine.chat.syntax import (
    OutputSyntax,
)
from specllama.engine.helpers.render.detect.detect import detect
from specllama.engine.helpers.render.template.prompt import chat_prompt
from specllama.engine.helpers.render.template.template import ChatTemplate

USER: Any = {"role": "user", "content": "Hello"}


def call(name: str = "f", arguments: Any = '{"x": "é"}', id: str | None = "c1") -> Any:
    made = {"type": "function", "function": {"name": name, "arguments": arguments}}
    return made if id is None else {**made, "id": id}


def asking(*calls: dict[str, Any], content: str | None = None, **more: Any) -> Any:
    return {"role": "assistant", "content": content, "tool_calls": list(calls), **more}


def result(content: str, id: str | None = "c1", **more: Any) -> Any:
    made = {"role": "tool", "content": content, **more}
    return made if id is None else {**made, "tool_call_id": id}


def begun(content: str = "", reasoning: str | None = None) -> Any:
    return {"role": "assistant", "content": content, "reasoning_content": reasoning}


def prompt(
    source: str, *messages: Any, syntax: OutputSyntax | None = None, **fields: Any
) -> ChatPrompt:
    template = ChatTemplate(source, "<s>", "</s>")
    request = ChatRequest(messages=list(messages), **fields)
    return chat_prompt(template, detect(template) if syntax is None else syntax, request)
