"""From the body of a response in OpenAI's form to the internal request.

Bodies have passed validation against the description.
"""

from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any

import msgspec

from specllama.engine.chat.request import ChatRequest
from specllama.engine.errors import invalid_request
from specllama.engine.options import Options
from specllama.engine.params import GenerationParams
from specllama.handlers.apis.native.probabilities import Probabilities, native_probabilities
from specllama.handlers.apis.native.request import generation_params
from specllama.handlers.apis.openai.request import template_variables, thinking_budget
from specllama.handlers.apis.openai.tools import Chosen, chosen, known, offered
from specllama.handlers.apis.responses.items import REFERENCE, Item, input_items, messages
from specllama.handlers.running.response_store import ResponseStore
from specllama.handlers.running.run_in_thread import run_in_thread

# ---- `truncation: auto`: a conversation that is too long for the context loses its oldest part.


_SYSTEM = ("system", "developer")


def room_for_answer(n_ctx: int, max_output_tokens: int | None) -> int:
    """The number of tokens of the context to keep free: the limit of the answer, but at most half
    of the context; a quarter if there is no limit."""
    if max_output_tokens is None:
        return n_ctx // 4
    return min(max_output_tokens, n_ctx // 2)


async def truncated(
    request: ChatRequest, n_max: int, count: Callable[[ChatRequest], Awaitable[int]]
) -> ChatRequest:
    """`request` without as many of its oldest turns as it takes for at most `n_max` tokens.

    A turn goes from one message of the user to the next, so that no output of a tool loses its
    call. Leading system messages stay, and so does the last turn, whatever its length.
    """
    messages = request.messages
    n_head = next((i for i, each in enumerate(messages) if each["role"] not in _SYSTEM), 0)
    turns = [i for i in range(n_head + 1, len(messages)) if messages[i]["role"] == "user"]

    def without(start: int) -> ChatRequest:
        kept: list[dict[str, Any]] = [*messages[:n_head], *messages[start:]]
        return msgspec.structs.replace(request, messages=kept)

    starts = [n_head, *turns]
    low, high = 0, len(starts) - 1  # the first start that fits, or the last one
    while low < high:
        # The whole conversation first: mostly it fits.
        middle = 0 if (low, high) == (0, len(starts) - 1) else (low + high) // 2
        if await count(without(starts[middle])) <= n_max:
            high = middle
        else:
            low = middle + 1
    return without(starts[low])


LOGPROBS = "message.output_text.logprobs"
"""The value of `include` that asks for probabilities."""


async def request_items(
    body: Mapping[str, Any], store: ResponseStore
) -> tuple[list[Item], list[Item]]:
    """The items of the conversation before `body`, and those of its own input.

    Raises EngineError: invalid_request_error for responses and items that are not stored,
    not_supported_error for media.
    """
    new = await run_in_thread(input_items, body["input"])
    for index, item in enumerate(new):
        if item["type"] == REFERENCE:
            stored = await store.item(item["id"])
            if stored is None:
                raise invalid_request(f"input[{index}]: there is no item {item['id']!r}")
            new[index] = stored
    previous = body.get("previous_response_id")
    return [] if previous is None else await store.conversation(previous), new


def response_tools(body: Mapping[str, Any], items: Sequence[Item]) -> Chosen:
    """The tools that may be called when `items` are the whole conversation: those of `body`, and
    those that items have added or found, each of them once.

    Raises EngineError: invalid_request_error for tools that don't fit together,
    not_supported_error if a tool of OpenAI's own has to be called.
    """
    tools = list(body.get("tools") or ())
    names = set(known(tools))
    for item in items:
        if item["type"] in ("additional_tools", "tool_search_output"):
            for tool in item["tools"]:
                if not (new := set(known([tool]))) or new - names:
                    tools.append(tool)
                    names |= new
    return chosen(offered(tools), body.get("tool_choice"))


def response_chat_request(
    body: Mapping[str, Any], items: Sequence[Item], choice: Chosen, options: Options
) -> ChatRequest:
    """The request in `body` when `items` are the whole conversation, and `choice` its tools.

    Raises EngineError (invalid_request_error) for items that don't fit together.
    """
    conversation = messages(items)
    if instructions := body.get("instructions"):
        conversation.insert(0, {"role": "system", "content": instructions})
    variables = {
        "chat_template_kwargs": body.get("chat_template_kwargs"),
        "reasoning_effort": (body.get("reasoning") or {}).get("effort"),
    }
    return ChatRequest(
        messages=conversation,
        tools=choice.tools,
        tool_choice=choice.how,
        tool_name=choice.name,
        free_text=choice.free_text,
        parallel_tool_calls=body.get("parallel_tool_calls"),
        reasoning_format=options.chat.reasoning_format,
        thinking_budget=thinking_budget(body, options),
        prefill=False,  # with OpenAI, an answer at the end is followed by another one
        template_variables=template_variables(variables, options),
    )


def response_params(
    body: Mapping[str, Any], defaults: GenerationParams
) -> tuple[GenerationParams, Probabilities | None]:
    """The parameters of the generation, and the probabilities to report.

    Raises EngineError (invalid_request_error).
    """
    for name in ("n", "n_cmpl"):
        if (n := body.get(name)) is not None and n != 1:
            raise invalid_request(f"{name}: a response is one answer, not {n}")
    native = dict(body)
    if native.get("n_predict") is None and body.get("max_output_tokens") is not None:
        native["n_predict"] = body["max_output_tokens"]
    form = (body.get("text") or {}).get("format")
    if form is not None and form["type"] != "text":
        if (body.get("response_format") or {"type": "text"})["type"] != "text":
            raise invalid_request("text.format and response_format can't be used together")
        native["response_format"] = form
    params = generation_params(native, defaults)
    n_top = body.get("top_logprobs")
    if n_top or LOGPROBS in (body.get("include") or ()):
        # The engine's 0 means none at all.
        params = msgspec.structs.replace(params, n_probs=max(int(n_top or 0), 1))
        return params, Probabilities(int(n_top or 0), post_sampling=params.post_sampling_probs)
    return params, native_probabilities(params)
