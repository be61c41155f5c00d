"""Reads the bodies of OpenAI's Responses API.

Bodies have passed validation against the description.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import msgspec

from specllama.engine.chat.request import ChatRequest
from specllama.engine.errors import invalid_request
from specllama.engine.options import Options
from specllama.engine.params import GenerationParams
from specllama.handlers.apis.generate import NO_IMAGES, GenerationRequest, Supported
from specllama.handlers.apis.parameters import generation_params, ping_of, shows_queue
from specllama.handlers.apis.probabilities import Probabilities, native_probabilities
from specllama.handlers.apis.responses.items import Item, Reference, input_items, new_id
from specllama.handlers.apis.responses.messages import messages
from specllama.handlers.apis.thinking import template_variables, thinking_budget
from specllama.handlers.apis.tools import Chosen, Place, chosen, known, offered
from specllama.handlers.apis.wishes import wishes_in
from specllama.handlers.http import schemas
from specllama.handlers.running.response_store import Responses
from specllama.handlers.running.run_in_thread import run_in_thread

SUPPORTED: Supported = {**NO_IMAGES, "conversation": [], "prompt": []}
LOGPROBS = "message.output_text.logprobs"
"""The value of `include` that requests probabilities."""


async def request_items(
    body: schemas.ResponseRequest, store: Responses
) -> tuple[list[Item], list[Item]]:
    """Returns the items of the previous conversation, and the items in the input of `body`.

    Raises EngineError: invalid_request_error for responses and items that are not stored,
    not_supported_error for media.
    """
    given = await run_in_thread(input_items, body["input"])
    new = [
        await _stored(item, f"input[{index}]", store) if item["type"] == "item_reference" else item
        for index, item in enumerate(given)
    ]
    previous = body.get("previous_response_id")
    return [] if previous is None else await store.conversation(previous), new


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
    `places` has the client's names of tools that have other names in the prompt."""

    id: str
    body: schemas.ResponseRequest
    items: list[Item]
    places: Mapping[str, Place]


def read_response(
    body: schemas.ResponseRequest, options: Options, *, history: Sequence[Item], items: list[Item]
) -> ResponseRequest:
    """Returns the request in `body`, which continues the conversation `history`. Raises EngineError
    as the functions below do."""
    params, probabilities = response_params(body, options.engine.generation_defaults())
    conversation = [*history, *items]
    tools = response_tools(body, conversation)
    return ResponseRequest(
        params=params,
        what=response_chat_request(body, conversation, tools, options),
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
