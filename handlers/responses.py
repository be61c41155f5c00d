"""POST /v1/responses, the responses that are kept, and their input."""

import asyncio
from typing import Any

import msgspec
from starlette.responses import Response

from specllama.engine.chat.request import ChatRequest
from specllama.engine.errors import invalid_request
from specllama.engine.models.client import EngineClient
from specllama.engine.wire.replies import Finished
from specllama.handlers.apis.native.request import ping_of
from specllama.handlers.apis.responses.format import (
    Output,
    Status,
    finished_response,
    new_response,
)
from specllama.handlers.apis.responses.items import Item
from specllama.handlers.apis.responses.request import (
    request_items,
    response_chat_request,
    response_params,
    response_tools,
    room_for_answer,
    truncated,
)
from specllama.handlers.apis.responses.stream import Listener, ResponsesFormat, check_kept, generate
from specllama.handlers.apis.unsupported import RESPONSES, refuse_unsupported
from specllama.handlers.http.api_keys import owner_of
from specllama.handlers.http.current import current_scope
from specllama.handlers.http.json_answer import JSONAnswer
from specllama.handlers.http.streams import event_stream
from specllama.handlers.running.batch import bound_probabilities
from specllama.handlers.running.chat_batch import ChatBatch, count_tokens, prepare
from specllama.handlers.running.ongoing import JobKey
from specllama.handlers.running.resolve_model import ResolvedModel, resolve_model
from specllama.handlers.running.respond import frames, respond
from specllama.handlers.running.response_store import Order, ResponseStore, page_of
from specllama.handlers.running.run_in_thread import run_in_thread
from specllama.handlers.running.runtime import runtime


def _store() -> ResponseStore:
    """The responses of the request's key."""
    return runtime().responses.of(owner_of(current_scope()))


def _job(response_id: str) -> JobKey:
    """The work on a response of the request's key."""
    return owner_of(current_scope()), response_id


async def create_response(body: dict[str, Any]) -> Response:
    """A response object, or its events with `stream`."""
    refuse_unsupported(body, RESPONSES)
    check_kept(body)
    background = bool(body.get("background"))
    model = resolve_model(body)
    store, jobs = _store(), runtime().jobs
    defaults = model.options.engine.generation_defaults()
    params, probabilities = await run_in_thread(response_params, body, defaults)
    history, items = await request_items(body, store)
    conversation = [*history, *items]
    tools = await run_in_thread(response_tools, body, conversation)
    request = await run_in_thread(response_chat_request, body, conversation, tools, model.options)
    engine = await model.engine()
    request = await _fitting(model, engine, request, body)
    streamed = params.stream
    if probabilities is not None or background:
        # Only events show which tokens belong to the message and which to thoughts and calls; and
        # when a response in the background begins.
        if probabilities is not None and not streamed:
            params = bound_probabilities(params, 1, engine.info.n_ctx)
        params = msgspec.structs.replace(params, stream=True)
    prepared = await prepare(model, engine, request, params)
    response = new_response(body, model.name, params)
    output = Output(probabilities, tools.places)

    async def complete(status: Status, finished: Finished) -> dict[str, Any]:
        """The whole response, stored if the request wants it."""
        n_reasoning = await _count(engine, output.reasoning())
        whole = finished_response(response, output.items, status, finished, n_reasoning)
        if whole["store"]:
            await asyncio.shield(store.save(whole, items))  # once begun, nothing breaks it off
        return whole

    form = ResponsesFormat(response, output, complete, timings_per_token=params.timings_per_token)

    def start() -> ChatBatch:
        return ChatBatch(engine, prepared, id=response["id"])

    ping = ping_of(body, model.options)
    if not background:
        return await respond(start, form, stream=streamed, ping=ping)

    async def keep(ended: dict[str, Any]) -> None:
        await store.save(ended, items)

    jobs.check_room()
    listener = Listener(gone=not streamed)
    shown = {**response, "status": "queued"}
    scope = current_scope()
    held = scope["state"]["leases"].pop_all()  # to the end of the work, not of the request
    events = frames(start, form)
    work = generate(events, form, shown, keep, listener, held, scope)
    jobs.start(_job(response["id"]), shown, work, items)
    if not streamed:
        return JSONAnswer(shown)
    return event_stream(listener.frames(), failed=form.failed, ping=ping)


create_response_alias = create_response


async def _fitting(
    model: ResolvedModel, engine: EngineClient, request: ChatRequest, body: dict[str, Any]
) -> ChatRequest:
    """`request`, with `truncation: auto` made short enough for the context."""
    if body.get("truncation") != "auto":
        return request

    async def count(shorter: ChatRequest) -> int:
        return await count_tokens(model, engine, shorter)

    n_ctx = engine.info.n_ctx
    n_max = n_ctx - room_for_answer(n_ctx, body.get("max_output_tokens"))
    return await truncated(request, n_max, count)


async def _count(engine: EngineClient, text: str) -> int:
    """Tokens of a generated text."""
    if not text:
        return 0
    tokens = await engine.tokenize(
        [text], add_special=False, parse_special=False, with_pieces=False
    )
    return len(tokens.tokens)


async def count_response_tokens(body: dict[str, Any]) -> Response:
    """`{"object": "response.input_tokens", "input_tokens": ...}`: the length of the prompt that
    a response would have."""
    refuse_unsupported(body, RESPONSES)
    model = resolve_model(body)
    history, items = await request_items(body, _store())
    conversation = [*history, *items]
    tools = await run_in_thread(response_tools, body, conversation)
    request = await run_in_thread(response_chat_request, body, conversation, tools, model.options)
    engine = await model.engine()
    request = await _fitting(model, engine, request, body)
    n = await count_tokens(model, engine, request)
    return JSONAnswer({"object": "response.input_tokens", "input_tokens": n})


count_response_tokens_alias = count_response_tokens


async def get_response(response_id: str, stream: bool = False) -> Response:
    """A response that was kept."""
    refuse_unsupported({"stream": stream}, {"stream": [False]})
    if (running := runtime().jobs.shown(_job(response_id))) is not None:
        return JSONAnswer(running)
    return JSONAnswer(await _store().response(response_id))


async def cancel_response(response_id: str) -> Response:
    """The response, which is generated no further. Raises EngineError: not_found_error, and
    invalid_request_error for one that isn't in the background."""
    await runtime().jobs.cancel(_job(response_id))
    ended = await _store().response(response_id)
    if not ended["background"]:
        raise invalid_request("only responses in the background can be cancelled")
    return JSONAnswer(ended)


async def delete_response(response_id: str) -> Response:
    """`{"id": ..., "object": "response", "deleted": true}`."""
    await runtime().jobs.cancel(_job(response_id))
    await _store().delete(response_id)
    return JSONAnswer({"id": response_id, "object": "response", "deleted": True})


async def list_response_input_items(
    response_id: str, limit: int = 20, order: Order = "desc", after: str | None = None
) -> Response:
    """A page of the items that were a response's input."""
    if (asked := runtime().jobs.asked(_job(response_id))) is not None:
        page = page_of(asked, after=after, limit=limit, order=order)
    else:
        page = await _store().input_items(response_id, after=after, limit=limit, order=order)
    found: list[Item] = page.items
    return JSONAnswer(
        {
            "object": "list",
            "data": found,
            "first_id": found[0]["id"] if found else None,
            "last_id": found[-1]["id"] if found else None,
            "has_more": page.has_more,
        }
    )
