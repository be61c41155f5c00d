"""Reads the bodies of Anthropic's Messages API.

Bodies have passed validation against the description.
"""

import json
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, TypeGuard

import msgspec

from specllama.engine.chat.request import (
    ChatRequest,
    Message,
    MessageCall,
    MessagePart,
    ThinkingBudget,
)
from specllama.engine.errors import invalid_request, not_supported
from specllama.engine.options import Options
from specllama.engine.params import GenerationParams
from specllama.handlers.apis.anthropic.tools import Block, change_line, is_result, shown_tools
from specllama.handlers.apis.contents import Part, joined, plain, result_part, tool_reference, typed
from specllama.handlers.apis.generate import NO_IMAGES, GenerationRequest, Supported
from specllama.handlers.apis.parameters import generation_params, ping_of, shows_queue
from specllama.handlers.apis.thinking import template_variables, thinking_budget
from specllama.handlers.apis.tools import Choice, Tool, chosen, offered
from specllama.handlers.apis.wishes import wishes_in
from specllama.handlers.http import schemas
from specllama.handlers.http.envelopes.anthropic import PING
from specllama.handlers.http.errors import RequestError
from specllama.handlers.http.log_fields import warn_ignored
from specllama.handlers.running.media import document_part, media_part

INPUT_SUPPORTED: Supported = {"thread": []}
"""The accepted values in requests that count tokens."""
SUPPORTED: Supported = {**NO_IMAGES, **INPUT_SUPPORTED}
MAX_TOKENS = 4096
CALL_PREFIX = "toolu_"
"""The prefix of call ids in this API. Chat templates get the ids without it: some accept only their
own form."""

_EFFORTS = {"xhigh": "high", "max": "high"}  # templates have three levels
_BILLING = re.compile(r"\A(x-anthropic-billing-header:[^\n]*?\bcch=)([0-9a-f]+)")


@dataclass(frozen=True, kw_only=True)
class MessageRequest(GenerationRequest):
    """A request for a message. Without `shows_thinking`, blocks of thoughts are empty."""

    shows_thinking: bool


def read_message(body: schemas.MessagesRequest, options: Options) -> MessageRequest:
    """Raises EngineError as `message_request` does."""
    return MessageRequest(
        what=message_request(body, options, thinking_budget(body, options)),
        params=message_params(body, options.engine.generation_defaults()),
        ping=ping_of(body, options, PING),
        wishes=wishes_in(body),
        shows_queue=shows_queue(body),
        shows_thinking=(body.get("thinking") or {}).get("display") != "omitted",
    )


def read_message_input(body: schemas.MessagesInput, options: Options) -> GenerationRequest:
    """Returns a request to count tokens, with the server's parameters. Raises EngineError as
    `message_request` does."""
    return GenerationRequest(
        what=message_request(body, options, thinking_budget({}, options)),
        params=options.engine.generation_defaults(),
    )


def message_request(
    body: schemas.MessagesInput, options: Options, budget: ThinkingBudget
) -> ChatRequest:
    """Returns the conversation of `body`. The server's options are the default for missing fields;
    the field `thinking` wins over `budget`.

    Raises EngineError: invalid_request_error for faults that the schema can't rule out,
    not_supported_error for features of Anthropic's server that can't be left out.
    """
    wanted = body.get("tool_choice")
    tools = [_openai_tool(tool) for tool in shown_tools(body)]
    unserved = {"mcp_servers": body.get("mcp_servers"), "container": body.get("container")}
    for name, value in unserved.items():
        if value:
            warn_ignored("%s: not available on this server; the field is ignored", name)
    choice = chosen(offered(tools), _openai_choice(wanted))
    return ChatRequest(
        messages=[*_system(body.get("system")), *_turns(body["messages"])],
        tools=choice.tools,
        tool_choice=choice.how,
        tool_name=choice.name,
        parallel_tool_calls=False if wanted and wanted.get("disable_parallel_tool_use") else None,
        reasoning_format=options.chat.reasoning_format,
        thinking_budget=_thinking_budget(body, budget),
        prefill=options.chat.prefill_assistant,
        template_variables=_variables(body, options),
    )


def _thinking_budget(body: schemas.MessagesInput, budget: ThinkingBudget) -> ThinkingBudget:
    thinking = body.get("thinking") or {}
    match thinking.get("type"):
        case "disabled":
            return msgspec.structs.replace(budget, tokens=0)
        case "enabled" if tokens := thinking.get("budget_tokens"):
            return msgspec.structs.replace(budget, tokens=int(tokens))
    return budget


def refuse_threads(body: schemas.MessagesInput) -> None:
    """Raises RequestError for a request to keep the conversation, or to continue a kept one.

    The error's code makes Anthropic's client libraries send the whole conversation instead.
    """
    if body.get("thread") is not None:
        raise RequestError(
            501,
            "thread: this server keeps no conversations; send all messages",
            details={"error_code": "thread_unsupported_request"},
        )


def message_params(body: schemas.MessagesRequest, defaults: GenerationParams) -> GenerationParams:
    """Returns the parameters of `body`. Raises EngineError (invalid_request_error)."""
    for name, n in (("n", body.get("n")), ("n_cmpl", body.get("n_cmpl"))):
        if (n or 1) != 1:
            raise invalid_request(
                f"{name}: this API gives one answer per request; send several requests"
            )
    fields: dict[str, Any] = {
        **body,
        "stop": [*(body.get("stop_sequences") or []), *_texts(body.get("stop"))],
        "response_format": _response_format(body),
    }
    if body.get("max_tokens") is None:
        fields["max_tokens"] = MAX_TOKENS
    params = generation_params(fields, defaults)
    # The answer has no field for probabilities; its first event has the length of the prompt.
    return msgspec.structs.replace(params, n_probs=0, return_progress=params.stream)


def _response_format(body: schemas.MessagesRequest) -> schemas.ResponseFormat | None:
    """Returns the format of the answer, from any of its three fields. Raises EngineError
    (invalid_request_error) if several of them are set."""
    config, given = body.get("output_config") or {}, body.get("response_format")
    formats: list[schemas.ResponseFormat] = [] if given is None else [given]
    formats.extend(
        {"type": "json_schema", "schema": form["schema"]}
        for form in (body.get("output_format"), config.get("format"))
        if form is not None
    )
    if len(formats) > 1:
        raise invalid_request("output_config.format: the request has several formats")
    return formats[0] if formats else None


def _texts(stop: str | Sequence[str] | None) -> Sequence[str]:
    return [stop] if isinstance(stop, str) else stop or []


# ---- tools -------------------------------------------------------------------------------


def _openai_tool(tool: schemas.MessagesTool) -> Tool:
    """Returns a tool in OpenAI's form. A tool with a schema is run by the client, whatever its
    type."""
    if "input_schema" not in tool and tool.get("type") not in (None, "custom", "function"):
        return {"type": tool["type"], "name": tool.get("name")}
    function = {"name": tool.get("name"), "description": tool.get("description")}
    return {"type": "function", "function": {**function, "parameters": tool.get("input_schema")}}


def _openai_choice(choice: schemas.MessagesToolChoice | None) -> Choice:
    if choice is None:
        return None
    if choice["type"] != "tool":
        return choice["type"]
    if not choice.get("name"):
        raise invalid_request("tool_choice: the name of the tool is missing")
    return {"type": "function", "function": {"name": choice["name"]}}


def _variables(body: schemas.MessagesInput, options: Options) -> dict[str, Any]:
    variables: dict[str, Any] = {}
    match (body.get("thinking") or {}).get("type"):
        case "enabled":
            variables["enable_thinking"] = True
        case "disabled":
            variables["enable_thinking"] = False
    effort = (body.get("output_config") or {}).get("effort") or ""
    given = {**variables, **(body.get("chat_template_kwargs") or {})}
    return template_variables(options, given, effort=_EFFORTS.get(effort, effort) or None)


# ---- messages ----------------------------------------------------------------------------


def _system(system: schemas.MessagesSystem) -> list[Message]:
    """Returns the system message; an empty list if `system` has no text."""
    read = [_text(block, f"system[{index}]") for index, block in enumerate(_blocks(system))]
    texts = [_without_stamp(text) for text in read if text is not None]
    return [{"role": "system", "content": joined(texts)}] if any(texts) else []


def _without_stamp(text: str) -> str:
    """Returns `text` with zeros in place of the checksum that a coding agent writes at the
    beginning of its instructions. The checksum differs in every request, so that no prompt would
    share a prefix with the cache, and it means nothing to the model."""
    return _BILLING.sub(lambda found: found[1] + "0" * len(found[2]), text, count=1)


def _blocks(content: schemas.MessagesContent) -> Sequence[Block]:
    """Returns the blocks of a content. A text is one block; an empty text has no blocks."""
    if isinstance(content, str):
        return [{"type": "text", "text": content}] if content else []
    return content or []


def _turns(messages: Sequence[schemas.MessagesMessage]) -> list[Message]:
    """Returns all messages in OpenAI's form. Consecutive messages of one role become one, since
    most templates require the roles to alternate."""
    turns: list[Message] = []
    parts: list[Part] = []  # of the user's turn that is not in `turns` yet
    calls: dict[str, str] = {}  # names of the tools that the last turn called, by id

    def end_user_turn() -> None:
        if parts:
            turns.append({"role": "user", "content": joined(parts)})
            parts.clear()

    for index, message in enumerate(messages):
        where = f"messages[{index}]"
        blocks = _blocks(message.get("content"))
        match role := message["role"]:
            case "user":
                results, said = _user(blocks, where, calls)
                turns += results  # before the user's own texts, in any order of the blocks
                parts += said or ([] if results else [""])
            case "assistant":
                end_user_turn()
                calls = _add_answer(turns, blocks, where)
            case _:
                end_user_turn()
                said = _parts(blocks, f"{where}.content")
                turns.append({"role": role, "content": joined(said or [""])})
    end_user_turn()
    return turns


def _user(
    blocks: Sequence[Block], where: str, calls: Mapping[str, str]
) -> tuple[list[Message], list[Part]]:
    """Returns the messages of tools, and the texts and images of the user."""
    results: list[Message] = []
    parts: list[Part] = []
    for index, block in enumerate(blocks):
        at = f"{where}.content[{index}]"
        if not is_result(block):
            if (part := _part(block, at)) is not None:
                parts.append(part)
            continue
        call_id = (block.get("tool_use_id") or "").removeprefix(CALL_PREFIX)
        result: Message = {
            "role": "tool",
            "tool_call_id": call_id,
            "content": _result(block, at),
        }
        if call_id in calls:  # the client may have dropped the call with older messages
            result["name"] = calls[call_id]
        results.append(result)
    return results, parts


def _result(block: schemas.ToolResultBlock, where: str) -> str | list[MessagePart]:
    content = block.get("content") or ""
    if not isinstance(content, str):
        parts = _results(content, f"{where}.content")
        texts = [part for part in parts if isinstance(part, str)]
        if len(texts) < len(parts):
            failed = ["Error"] if block.get("is_error") else []
            return [*typed(failed), *typed(parts)]
        content = "\n".join(texts)
    if block.get("is_error") and not content.casefold().startswith("error"):
        return f"Error: {content}" if content else "Error"
    return content


def _add_answer(turns: list[Message], blocks: Sequence[Block], where: str) -> dict[str, str]:
    """Appends a message of the assistant to `turns`, or adds it to the last turn if that is also
    the assistant's. Returns the names of the tools that the turn calls, by the calls' ids."""
    if not turns or turns[-1]["role"] != "assistant":
        turns.append({"role": "assistant", "content": ""})
    turn = turns[-1]
    texts: list[str] = []
    for index, block in enumerate(blocks):
        if _is_thought(block):
            turn["reasoning_content"] = turn.get("reasoning_content", "") + block["thinking"]
        elif _is_call(block):
            turn.setdefault("tool_calls", []).append(_call(block))
        elif block.get("type") != "redacted_thinking":
            texts.append(_text(block, f"{where}.content[{index}]") or "")
    turn["content"] = "".join((str(turn["content"]), *texts))
    return {call["id"]: call["function"]["name"] for call in turn.get("tool_calls", [])}


def _call(block: schemas.ToolUseBlockInput) -> MessageCall:
    arguments = block.get("input") or {}
    if not isinstance(arguments, str):  # a text is an object that was cut off
        try:
            arguments = json.dumps(arguments, ensure_ascii=False)
        except RecursionError:
            raise invalid_request("messages: the input of a tool_use is nested too deep") from None
    return {
        "id": block["id"].removeprefix(CALL_PREFIX),
        "type": "function",
        "function": {"name": block["name"], "arguments": arguments},
    }


def _parts(blocks: Sequence[Block], where: str) -> list[Part]:
    read = (_part(block, f"{where}[{index}]") for index, block in enumerate(blocks))
    return [part for part in read if part is not None]


def _results(blocks: Sequence[schemas.ToolResultPart], where: str) -> list[Part]:
    """Returns the parts of the prompt for the blocks of a tool's result."""
    made: list[Part] = []
    for index, block in enumerate(blocks):
        at = f"{where}[{index}]"
        if _is_image(block):
            made.append(_file(partial(_image, block, at), "image"))
        elif _is_document(block):
            made.append(_file(partial(_document, block, at), "document", block.get("title")))
        elif (read := _part(block, at)) is not None:
            made.append(read)
    return made


def _file(read: Callable[[], Part], kind: str, name: str | None = None) -> Part:
    """Returns the part that `read` returns, or a line of text if it isn't supported
    (`result_part`)."""
    return plain(result_part(lambda: typed([read()])[0], kind, name))


def _part(block: Block, where: str) -> Part | None:
    """Returns the part of the prompt for a block; None for a block without text or medium. Raises
    EngineError: not_supported_error for files that only Anthropic's server stores,
    invalid_request_error for an image without a source."""
    if _is_image(block):
        return _image(block, where)
    if _is_document(block):
        return _document(block, where)
    return _text(block, where)


def _image(block: schemas.ImageBlock, where: str) -> Part:
    source = block["source"]
    match source["type"]:
        case "base64":
            return media_part(source.get("data"), where, "image")
        case "url":
            return media_part(source.get("url"), where, "image")
    raise not_supported(f"{where}: this server keeps no files; send the image itself")


def _text(block: Block, where: str) -> str | None:
    """Returns the text of a block; None if it has no text. Raises EngineError
    (not_supported_error) for images and files, which some messages can't contain."""
    if _is_document(block):
        document = _document(block, where)
        if isinstance(document, str):
            return document
        raise not_supported(f"{where}: files are not supported here")
    if _is_search_result(block):
        return _search_result(block)
    if _is_image(block):
        raise not_supported(f"{where}: images are not supported here")
    if (line := tool_reference(block) or change_line(block)) is not None:
        return line
    if isinstance(text := block.get("text"), str):
        return text
    warn_ignored("%s: a block of the type %s is left out", where, block.get("type"))
    return None


def _search_result(block: schemas.OtherBlock) -> str:
    content = block.get("content")
    parts = content if isinstance(content, list) else []
    texts = [part.get("text") for part in parts if isinstance(part, Mapping)]
    lines = [block.get("title"), block.get("source"), *texts]
    return "\n".join(line for line in lines if line and isinstance(line, str))


def _document(block: schemas.DocumentBlock, where: str) -> Part:
    source = block["source"]
    heading = "\n".join(part for part in (block.get("title"), block.get("context")) if part)
    match source["type"]:
        case "text":
            text = source["data"]
        case "content":
            content = source["content"]
            if isinstance(content, str):
                text = content
            else:
                text = "\n".join(part["text"] for part in content)
        case "file":
            raise not_supported(f"{where}: this server keeps no files; send the document itself")
        case how:
            given = source.get("data") if how == "base64" else source.get("url")
            if given is None:
                raise invalid_request(f"{where}: the source has neither data nor a URL")
            return plain(document_part(given, where, heading))
    return f"{heading}\n{text}" if heading and text else heading or text


# ---- types of blocks: the pattern of `OtherBlock` excludes the types with schemas of their own


def _is_image(block: Block) -> TypeGuard[schemas.ImageBlock]:
    return block.get("type") == "image"


def _is_document(block: Block) -> TypeGuard[schemas.DocumentBlock]:
    return block.get("type") == "document"


def _is_thought(block: Block) -> TypeGuard[schemas.ThinkingBlockInput]:
    return block.get("type") == "thinking"


def _is_call(block: Block) -> TypeGuard[schemas.ToolUseBlockInput]:
    return block.get("type") == "tool_use"


def _is_search_result(block: Block) -> TypeGuard[schemas.OtherBlock]:
    return block.get("type") == "search_result"
