"""OpenAI's response object, at its beginning and at its end."""

import time
from collections.abc import Iterable, Sequence

from specllama.engine.chat.output import ChatMessage
from specllama.engine.params import GenerationParams
from specllama.engine.wire.replies import Finished
from specllama.handlers.apis.responses.output import Item, Status
from specllama.handlers.apis.responses.request import conversation_id
from specllama.handlers.apis.results import deadline_json
from specllama.handlers.http import schemas
from specllama.handlers.http.errors import HttpFailure
from specllama.handlers.running.chat_batch import finish_reason


def new_response(
    body: schemas.ResponseRequest, model: str, params: GenerationParams, id: str
) -> schemas.ResponseObject:
    """Returns the response to `body` before its generation, with the settings in force."""
    reasoning, text = body.get("reasoning") or {}, body.get("text") or {}
    conversation = conversation_id(body)
    return {
        "id": id,
        "object": "response",
        "created_at": int(time.time()),
        "completed_at": None,
        "status": "in_progress",
        "background": bool(body.get("background")),
        "conversation": None if conversation is None else {"id": conversation},
        "error": None,
        "incomplete_details": None,
        "model": model,
        "output": [],
        "usage": None,
        "instructions": body.get("instructions"),
        "previous_response_id": body.get("previous_response_id"),
        "prompt_cache_key": body.get("prompt_cache_key"),
        "safety_identifier": body.get("safety_identifier"),
        "user": body.get("user"),
        "max_output_tokens": _integer(body.get("max_output_tokens")),
        "max_tool_calls": _clamped(body.get("max_tool_calls")),
        "metadata": body.get("metadata") or {},
        "parallel_tool_calls": body.get("parallel_tool_calls") is not False,
        "reasoning": {"effort": reasoning.get("effort"), "summary": None},
        "service_tier": "default",
        "store": body.get("store") is not False,
        "temperature": params.temperature,
        "text": {
            "format": text.get("format") or {"type": "text"},
            "verbosity": text.get("verbosity") or "medium",
        },
        "tool_choice": body.get("tool_choice") or "auto",
        "tools": _tools(body.get("tools") or ()),
        "top_logprobs": _integer(body.get("top_logprobs")) or 0,
        "top_p": params.top_p,
        "presence_penalty": params.presence_penalty,
        "frequency_penalty": params.frequency_penalty,
        "truncation": "auto" if body.get("truncation") == "auto" else "disabled",
    }


def _clamped(value: float | None) -> int | None:
    return None if value is None else int(max(-(1 << 31), min(value, (1 << 31) - 1)))


def _integer(value: float | None) -> int | None:
    """Returns a request's integer, which may be written as 16.0."""
    return None if value is None else int(value)


def _tools(tools: Iterable[schemas.ResponseTool]) -> list[schemas.ResponseOfferedTool]:
    """Returns the `tools` that the model is offered."""
    return [made for tool in tools if (made := _tool(tool)) is not None]


def _tool(tool: schemas.ResponseTool) -> schemas.ResponseOfferedTool | None:
    match tool.get("type"):
        case "namespace":
            inner = [_called(each) for each in tool.get("tools") or ()]
            return {
                "type": "namespace",
                "name": tool["name"],
                "description": tool.get("description") or "",
                "tools": [each for each in inner if each is not None],
            }
        case "tool_search" if tool.get("execution") == "client":
            return {
                "type": "tool_search",
                "execution": "client",
                "description": tool.get("description"),
                "parameters": tool.get("parameters"),
            }
    return _called(tool)


def _called(
    tool: schemas.ResponseTool | schemas.ResponseToolInNamespace,
) -> schemas.ResponseToolOfNamespace | None:
    """Returns a tool that is called by its name; None for any other tool."""
    match tool.get("type") or "function":
        case "function":
            function = tool.get("function") or tool
            return {
                "type": "function",
                "name": function["name"],
                "description": function.get("description"),
                "parameters": function.get("parameters"),
                "strict": function.get("strict") is not False,
            }
        case "custom":
            custom = tool.get("custom") or tool
            return {
                "type": "custom",
                "name": custom["name"],
                "description": custom.get("description"),
                "format": custom.get("format") or {"type": "text"},
            }
    return None


def status_of(message: ChatMessage, finished: Finished) -> Status:
    """Returns the final status of an answer and of its last item."""
    is_cut = finish_reason(message, finished) == "length" or message.ends_in_call
    return "incomplete" if is_cut else "completed"


def finished_response(
    response: schemas.ResponseObject,
    output: list[Item],
    status: Status,
    finished: Finished,
    reasoning_tokens: int,
) -> schemas.ResponseObject:
    """Returns `response` with its final fields. If a stop string ended a call,
    `incomplete_details` is null, because OpenAI has no name for that reason."""
    details: schemas.ResponseIncompleteDetails | None = None
    if status == "incomplete" and finished.stop_type != "word":
        details = {"reason": "max_output_tokens", **deadline_json(finished)}
    return {
        **response,
        "status": status,
        "completed_at": int(time.time()) if status == "completed" else None,
        "incomplete_details": details,
        "output": output,
        "usage": {
            **total_usage([finished]),
            # The text is tokenized again, which may give more tokens than were generated.
            "output_tokens_details": {
                "reasoning_tokens": min(reasoning_tokens, finished.n_decoded)
            },
        },
    }


def total_usage(ends: Sequence[Finished]) -> schemas.ResponseUsage:
    """Returns the token counts of several generations without reasoning."""
    return {
        "input_tokens": sum(each.n_prompt for each in ends),
        "input_tokens_details": {
            "cached_tokens": sum(each.timings.cache_n for each in ends),
            "cache_write_tokens": sum(each.timings.prompt_n for each in ends),
        },
        "output_tokens": sum(each.n_decoded for each in ends),
        "output_tokens_details": {"reasoning_tokens": 0},
        "total_tokens": sum(each.n_prompt + each.n_decoded for each in ends),
    }


def failed_response(
    response: schemas.ResponseObject, output: list[Item], failure: HttpFailure
) -> schemas.ResponseObject:
    """Returns `response` after a failure in the middle of it."""
    error: schemas.ResponseFailure = {
        "code": "server_error" if failure.status >= 500 else "invalid_prompt",
        "message": failure.info.message,
    }
    return {**response, "status": "failed", "error": error, "output": output}


def cancelled_response(response: schemas.ResponseObject) -> schemas.ResponseObject:
    """Returns `response` after its cancellation, without any output."""
    return {**response, "status": "cancelled", "output": []}
