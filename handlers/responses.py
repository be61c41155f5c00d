"""POST /v1/responses, stored responses, and their input items."""

import time
from collections.abc import Callable
from functools import partial
from typing import Any

from starlette.responses import Response

from specllama.engine.errors import invalid_request
from specllama.handlers.apis.generate import Dialect, count_input, generate, refuse_unsupported
from specllama.handlers.apis.responses.compaction import Compactor, expanded, sealed_item
from specllama.handlers.apis.responses.format import cancelled_response, total_usage
from specllama.handlers.apis.responses.items import Item, new_id
from specllama.handlers.apis.responses.request import (
    ENCRYPTED,
    SUPPORTED,
    for_socket,
    new_items,
    read_response,
    request_items,
)
from specllama.handlers.apis.responses.socket import ResponsesSocket
from specllama.handlers.apis.responses.stream import (
    Listener,
    ResponsesFormat,
    check_kept,
    present,
    response_form,
    to_the_end,
)
from specllama.handlers.http import schemas
from specllama.handlers.http.api_keys import owner_of
from specllama.handlers.http.current import current_scope, until_disconnect
from specllama.handlers.http.json_answer import JSONAnswer
from specllama.handlers.http.streams import Ping, event_stream
from specllama.handlers.http.websocket import accept
from specllama.handlers.running.admission import admit
from specllama.handlers.running.chat_batch import ChatAnswer, ChatEvent
from specllama.handlers.running.ongoing import JobKey
from specllama.handlers.running.resolve_model import resolve_model
from specllama.handlers.running.respond import Running, frames, respond
from specllama.handlers.running.response_store import (
    CONNECTION_STORE,
    LocalResponses,
    Order,
    Responses,
    page_of,
)
from specllama.handlers.running.run_in_thread import run_in_thread
from specllama.handlers.running.runtime import runtime


def _store() -> Responses:
    """Returns the stored responses of the request's API key."""
    scope = current_scope()
    local: LocalResponses | None = scope["state"].get(CONNECTION_STORE)
    return Responses(runtime().responses, owner_of(scope), local)


def _job(response_id: str) -> JobKey:
    """Returns the key of the job for a response of the request's API key."""
    return owner_of(current_scope()), response_id


async def create_response(body: schemas.ResponseRequest) -> Response:
    """A response object, or its events with `stream`."""
    if CONNECTION_STORE in current_scope()["state"]:
        body = for_socket(body)
    check_kept(body)
    store = _store()
    if body.get("store") is not False:
        await store.check()  # before a text is generated that couldn't be stored
    sealing = runtime().sealing
    history, items = await request_items(body, store, sealing)
    seals = ENCRYPTED in (body.get("include") or ())
    seal = await sealing.get() if seals or body.get("context_management") else None
    conversation = await expanded([*history, *items], sealing)
    dialect = Dialect(
        read=partial(read_response, conversation=conversation, items=items, seal=seal),
        form=partial(response_form, store=store, seal=seal if seals else None),
        supported=SUPPORTED,
        respond=partial(_in_background, store, items) if body.get("background") else respond,
    )
    return await generate(dialect, body)


create_response_alias = create_response


async def compact_response(body: schemas.ResponseCompactRequest) -> Response:
    """`{"object": "response.compaction", "output": [...], ...}`: the conversation as one item."""
    store, sealing = _store(), runtime().sealing
    previous = body.get("previous_response_id")
    history = [] if previous is None else await store.conversation(previous)
    items = await new_items(body.get("input") or [], store, sealing)
    conversation = await expanded([*history, *items], sealing)
    model = resolve_model(body)
    await admit(model.name)
    engine = await model.engine()
    compactor = Compactor.of(model, engine)
    work = compactor.compact(conversation, body.get("instructions") or "")
    compacted = await until_disconnect(work)
    item = await run_in_thread(sealed_item, compacted, await sealing.get())
    answer: schemas.ResponseCompacted = {
        "id": new_id("resp"),
        "object": "response.compaction",
        "created_at": int(time.time()),
        "output": [item],
        "usage": total_usage(compactor.finished),
    }
    return JSONAnswer(answer)


compact_response_alias = compact_response


async def connect_responses() -> Response:
    """Accepts a WebSocket. Raises RequestError (426) for any other request."""
    return accept(ResponsesSocket.serve)


connect_responses_alias = connect_responses


async def _in_background(
    store: Responses,
    items: list[Item],
    start: Callable[[], Running[ChatEvent, ChatAnswer]],
    form: ResponsesFormat,
    *,
    stream: bool,
    ping: Ping | None,
    **_: Any,
) -> Response:
    """Returns the response to a request with `background`, and starts its job."""

    async def keep(ended: schemas.ResponseObject) -> None:
        await store.end(ended, items)

    jobs, scope = runtime().jobs, current_scope()
    listener = Listener(gone=not stream)
    shown: schemas.ResponseObject = {**form.response, "status": "queued"}
    with jobs.room():
        await store.begin(shown, items)
        held = scope["state"]["leases"].pop_all()  # until the end of the job, not of the request
        work = to_the_end(frames(start, form), form, shown, keep, listener, held, scope)
        jobs.start(_job(shown["id"]), work, lambda: None if form.completed else shown["status"])
    if not stream:
        return JSONAnswer(shown)
    return event_stream(listener.frames(), failed=form.failed, ping=ping)


async def count_response_tokens(body: schemas.ResponseRequest) -> Response:
    """`{"object": "response.input_tokens", "input_tokens": ...}`: the length of the prompt that
    a response would have."""
    sealing = runtime().sealing
    history, items = await request_items(body, _store(), sealing)
    conversation = await expanded([*history, *items], sealing)
    read = partial(read_response, conversation=conversation, items=items)
    n = await count_input(read, body, SUPPORTED)
    counted: schemas.ResponseInputTokens = {"object": "response.input_tokens", "input_tokens": n}
    return JSONAnswer(counted)


count_response_tokens_alias = count_response_tokens


async def get_response(response_id: str, stream: bool = False) -> Response:
    """A stored response, or one that is still generated in the background."""
    refuse_unsupported({"stream": stream}, {"stream": [False]})
    return JSONAnswer(present(await _store().find(response_id)))


async def cancel_response(response_id: str) -> Response:
    """The response after its cancellation. Raises EngineError: not_found_error, and
    invalid_request_error for a response that isn't in the background."""
    store = _store()
    await runtime().jobs.cancel(_job(response_id))
    found = await store.find(response_id)
    if not found.response["background"]:
        raise invalid_request("only responses in the background can be cancelled")
    if found.is_running:  # in another process, which ends its work when it renews its claim
        await store.end(cancelled_response(found.response), found.input)
        found = await store.find(response_id)
    return JSONAnswer(present(found))


async def delete_response(response_id: str) -> Response:
    """`{"id": ..., "object": "response", "deleted": true}`."""
    await runtime().jobs.cancel(_job(response_id))
    await _store().delete(response_id)
    deleted: schemas.DeletedResponse = {"id": response_id, "object": "response", "deleted": True}
    return JSONAnswer(deleted)


async def list_response_input_items(
    response_id: str, limit: int = 20, order: Order = "desc", after: str | None = None
) -> Response:
    """A page of a response's input items."""
    listed = (await _store().find(response_id)).input
    page = page_of(listed, after=after, limit=limit, order=order)
    found = page.items
    answer: schemas.ResponseItemPage = {
        "object": "list",
        "data": found,
        "first_id": found[0]["id"] if found else None,
        "last_id": found[-1]["id"] if found else None,
        "has_more": page.has_more,
    }
    return JSONAnswer(answer)
