"""Reads the bodies of OpenAI's Responses API.

Bodies have passed validation against the description.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial

import msgspec

from specllama.engine.chat.request import ChatRequest
from specllama.engine.errors import invalid_request
from specllama.engine.options import Options
from specllama.engine.params import GenerationParams
from specllama.handlers.apis.generate import NO_IMAGES, GenerationRequest, Supported
from specllama.handlers.apis.parameters import generation_params, ping_of, shows_queue
from specllama.handlers.apis.probabilities import Probabilities, native_probabilities
from specllama.handlers.apis.responses.compaction import KIND, AutoCompaction, Compactor
from specllama.handlers.apis.responses.items import (
    Item,
    Reference,
    has_sealed,
    input_items,
    new_id,
    unlike,
)
from specllama.handlers.apis.responses.messages import messages
from specllama.handlers.apis.thinking import template_variables, thinking_budget
from specllama.handlers.apis.tools import Chosen, Place, chosen, known, offered
from specllama.handlers.apis.wishes import wishes_in
from specllama.handlers.http import schemas
from specllama.handlers.http.log_fields import warn_ignored
from specllama.handlers.running.response_store import Responses, check_room
from specllama.handlers.running.run_in_thread import run_in_thread
from specllama.handlers.running.sealing import Seal, Sealing

SUPPORTED: Supported = {**NO_IMAGES, "prompt": []}
LOGPROBS = "message.output_text.logprobs"
"""The value of `include` that requests probabilities."""
ENCRYPTED = "reasoning.encrypted_content"
"""The value of `include` that requests sealed reasoning."""


def conversation_id(body: schemas.ResponseRequest) -> str | None:
    """Returns the id of the conversation that `body` continues, if it continues one."""
    given = body.get("conversation")
    return given["id"] if isinstance(given, Mapping) else given or None


def for_socket(body: schemas.ResponseRequest) -> schemas.ResponseRequest:
    """Returns the request of a WebSocket, which is always a stream that isn't in the background."""
    for name in ("stream", "background", "stream_options"):
        if body.get(name):
            warn_ignored(f"{name}: a WebSocket has only streams, which end with it")
    changed: schemas.ResponseRequest = {**body, "stream": True, "background": False}
    return changed


async def request_items(
    body: schemas.ResponseRequest, store: Responses, sealing: Sealing
) -> tuple[list[Item], list[Item]]:
    """Returns the items of the previous conversation, and the items in the input of `body`, whose
    sealed reasoning `sealing` opens.

    Raises EngineError: invalid_request_error for responses and items that are not stored, and for
    contradictory fields; not_found_error for a conversation that is not stored; not_supported_error
    for media.
    """
    previous, conversation = body.get("previous_response_id"), conversation_id(body)
    if previous is not None and conversation is not None:
        raise invalid_request("conversation and previous_response_id can't be used together")
    if (input := body.get("input")) is None:
        if previous is None and conversation is None:
            raise invalid_request("input: it is required for the first response of a conversation")
        input = []
    if conversation is not None:
        history = (await store.conversations.find(conversation)).items
        new = unlike(history, await new_items(input, store, sealing))
        if body.get("store") is not False:
            await run_in_thread(check_room, history, new)
    else:
        new = await new_items(input, store, sealing)
        if previous is None:
            return [], new
        history = await store.conversation(previous)
    _check_outputs(history, new)
    return history, new


def _check_outputs(history: Sequence[Item], new: Sequence[Item]) -> None:
    """Raises EngineError (invalid_request_error) for an output in `new` without its call. A client
    that sends the whole conversation itself may leave out its beginning; `history` is complete."""
    called: set[str] = set()
    for item in (*history, *new):
        match item["type"]:
            case "function_call" | "custom_tool_call" | "tool_search_call":
                called.add(item["call_id"])
    for index, item in enumerate(new):
        match item["type"]:
            case "function_call_output" | "custom_tool_call_output" | "tool_search_output":
                if (id := item["call_id"]) not in called:
                    raise invalid_request(f"input[{index}]: there is no call {id[:100]!r}")


async def new_items(input: schemas.ResponseInput, store: Responses, sealing: Sealing) -> list[Item]:
    """Returns the items of an input, with the stored ones to which it refers. Raises EngineError as
    `request_items` does."""
    seal = await sealing.get() if has_sealed(input) else None
    given = await run_in_thread(input_items, input, seal)
    return [
        await _stored(item, f"input[{index}]", store) if item["type"] == "item_reference" else item
        for index, item in enumerate(given)
    ]


async def _stored(reference: Reference, where: str, store: Responses) -> Item:
    found = await store.item(reference["id"])
    if found is None:
        raise invalid_request(f"{where}: there is no item {reference['id']!r}")
    return found


def response_tools(body: schemas.ResponseRequest, items: Sequence[Item]) -> Chosen:
    """Returns the tools that the model may call after `items`, which are the whole conversation:
    the tools of `body`, and tools that items have added or found. No tool is listed twice.

    Raises EngineError: invalid_request_error for contradictory tools, not_supported_error if the
    model would have to call one of OpenAI's own tools.
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


@dataclass(frozen=True, kw_only=True)
class ResponseRequest(GenerationRequest):
    """A request for a response. `items` are the input of `body`, without the previous conversation.
    `places` has the client's names of tools that have other names in the prompt. `compaction`
    compacts the conversation if it is too long."""

    id: str
    body: schemas.ResponseRequest
    items: list[Item]
    places: Mapping[str, Place]
    compaction: AutoCompaction | None = None


def read_response(
    body: schemas.ResponseRequest,
    options: Options,
    *,
    conversation: Sequence[Item],
    items: list[Item],
    seal: Seal | None = None,
) -> ResponseRequest:
    """Returns the request in `body`, whose whole `conversation` ends with the input `items`. `seal`
    is needed for `context_management`. Raises EngineError as the functions below do."""
    for value in body.get("include") or ():
        if value not in (LOGPROBS, ENCRYPTED):
            warn_ignored("include: %s has no effect on this server", value)
    params, probabilities = response_params(body, options.engine.generation_defaults())
    if body.get("generate") is False:
        params = msgspec.structs.replace(params, n_predict=0)
    tools = response_tools(body, conversation)
    chat = partial(response_chat_request, body, choice=tools, options=options)
    compaction = _compaction(body, conversation, chat, seal)
    return ResponseRequest(
        params=params,
        what=chat(conversation),
        shorten=compaction,
        compaction=compaction,
        probabilities=probabilities,
        id=new_id("resp"),
        ping=ping_of(body, options),
        wishes=wishes_in(body),
        shows_queue=shows_queue(body),
        truncates=body.get("truncation") == "auto",
        # In the background, only an event shows that a response has begun.
        reads_events=probabilities is not None or bool(body.get("background")),
        body=body,
        items=items,
        places=tools.places,
    )


def _compaction(
    body: schemas.ResponseRequest,
    conversation: Sequence[Item],
    chat: Callable[[Sequence[Item]], ChatRequest],
    seal: Seal | None,
) -> AutoCompaction | None:
    """Returns the compaction that `context_management` requests, if it requests one."""
    rules = body.get("context_management") or []
    for index, rule in enumerate(rules):
        if rule["type"] != KIND:
            warn_ignored(f"context_management[{index}]: {rule['type'][:100]} is unknown here")
    rule_ = next((rule for rule in rules if rule["type"] == KIND), None)
    if rule_ is None or seal is None:
        return None
    threshold = rule_.get("compact_threshold")
    most = None if threshold is None else int(threshold)
    kwargs = body.get("chat_template_kwargs")
    return AutoCompaction(conversation, most, chat, partial(Compactor.of, kwargs=kwargs), seal)


def response_chat_request(
    body: schemas.ResponseRequest, items: Sequence[Item], choice: Chosen, options: Options
) -> ChatRequest:
    """Returns the conversation with all of its `items`, and with the tools of `choice`.

    Raises EngineError (invalid_request_error) for contradictory items.
    """
    conversation = messages(items)
    if instructions := body.get("instructions"):
        conversation.insert(0, {"role": "system", "content": instructions})
    effort = (body.get("reasoning") or {}).get("effort")
    variables = template_variables(options, body.get("chat_template_kwargs"), effort=effort)
    return ChatRequest(
        messages=conversation,
        tools=choice.tools,
        tool_choice=choice.how,
        tool_name=choice.name,
        free_text=choice.free_text,
        parallel_tool_calls=body.get("parallel_tool_calls"),
        reasoning_format=options.chat.reasoning_format,
        thinking_budget=thinking_budget(body, options, body.get("thinking_budget_tokens")),
        prefill=False,  # OpenAI's server doesn't continue an answer at the end, but adds another
        template_variables=variables,
    )


def response_params(
    body: schemas.ResponseRequest, defaults: GenerationParams
) -> tuple[GenerationParams, Probabilities | None]:
    """Returns the parameters of the generation, and the form of the probabilities to report.

    Raises EngineError (invalid_request_error).
    """
    for name, n in (("n", body.get("n")), ("n_cmpl", body.get("n_cmpl"))):
        if n is not None and n != 1:
            raise invalid_request(f"{name}: a response is one answer, not {n}")
    native = body.copy()
    n_max = body.get("max_output_tokens")
    if native.get("n_predict") is None and n_max is not None:
        native["n_predict"] = n_max
    if (form := _response_format((body.get("text") or {}).get("format"))) is not None:
        if (body.get("response_format") or {"type": "text"})["type"] != "text":
            raise invalid_request("text.format and response_format can't be used together")
        native["response_format"] = form
    params = generation_params(native, defaults)
    n_top = int(body.get("top_logprobs") or 0)
    if n_top or LOGPROBS in (body.get("include") or ()):
        # The engine's 0 means no probabilities at all.
        params = msgspec.structs.replace(params, n_probs=max(n_top, 1))
        return params, Probabilities(n_top, post_sampling=params.post_sampling_probs)
    return params, native_probabilities(params)


def _response_format(form: schemas.ResponseTextFormat) -> schemas.ResponseFormat | None:
    """Returns the equivalent `response_format`; None if any text is allowed."""
    if form is None or form["type"] == "text":
        return None
    return {"type": form["type"], "schema": form.get("schema")}
