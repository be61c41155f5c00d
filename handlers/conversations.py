"""Conversations of OpenAI's Responses API, and their items."""

from collections.abc import Sequence

from starlette.responses import Response

from specllama.handlers.apis.responses.items import Item, new_id, unlike
from specllama.handlers.apis.responses.request import new_items
from specllama.handlers.http import schemas
from specllama.handlers.http.api_keys import owner_of
from specllama.handlers.http.current import current_scope
from specllama.handlers.http.json_answer import JSONAnswer
from specllama.handlers.running.response_store import Order, Responses, check_room, page_of
from specllama.handlers.running.run_in_thread import run_in_thread
from specllama.handlers.running.runtime import runtime

Include = list[str] | None
"""The names of additional contents, which have no effect."""


def _store() -> Responses:
    """Returns the stored responses and conversations of the request's API key."""
    return Responses(runtime().responses, owner_of(current_scope()))


async def create_conversation(body: schemas.ConversationCreation | None = None) -> Response:
    """The new conversation, without its items."""
    given, store = body or {}, _store()
    items = unlike([], await new_items(given.get("items") or [], store, runtime().sealing))
    await run_in_thread(check_room, [], items)
    made = await store.conversations.create(new_id("conv"), given.get("metadata") or {}, items)
    return JSONAnswer(made)


async def get_conversation(conversation_id: str) -> Response:
    """A conversation, without its items."""
    return JSONAnswer((await _store().conversations.find(conversation_id)).conversation)


async def update_conversation(conversation_id: str, body: schemas.ConversationUpdate) -> Response:
    """The conversation with the metadata of `body`."""
    metadata = body["metadata"] or {}
    return JSONAnswer(await _store().conversations.update(conversation_id, metadata))


async def delete_conversation(conversation_id: str) -> Response:
    """`{"id": ..., "object": "conversation.deleted", "deleted": true}`."""
    await _store().conversations.delete(conversation_id)
    deleted: schemas.DeletedConversation = {
        "id": conversation_id,
        "object": "conversation.deleted",
        "deleted": True,
    }
    return JSONAnswer(deleted)


async def list_conversation_items(
    conversation_id: str,
    limit: int = 20,
    order: Order = "desc",
    after: str | None = None,
    include: Include = None,
) -> Response:
    """A page of a conversation's items."""
    listed = (await _store().conversations.find(conversation_id)).items
    page = page_of(listed, after=after, limit=limit, order=order)
    answer: schemas.ResponseItemPage = {
        "object": "list",
        "data": page.items,
        "first_id": _id(page.items[:1]),
        "last_id": _id(page.items[-1:]),
        "has_more": page.has_more,
    }
    return JSONAnswer(answer)


async def create_conversation_items(
    conversation_id: str, body: schemas.ConversationAddition, include: Include = None
) -> Response:
    """The items that were added to a conversation."""
    store = _store()
    before = (await store.conversations.find(conversation_id)).items
    items = unlike(before, await new_items(body["items"], store, runtime().sealing))
    await run_in_thread(check_room, before, items)
    await store.conversations.append(conversation_id, items)
    answer: schemas.ConversationItemList = {
        "object": "list",
        "data": items,
        "first_id": _id(items[:1]),
        "last_id": _id(items[-1:]),
        "has_more": False,
    }
    return JSONAnswer(answer)


def _id(items: Sequence[Item]) -> str | None:
    """Returns the id of the first item, if there is one."""
    return items[0]["id"] if items else None


async def get_conversation_item(
    conversation_id: str, item_id: str, include: Include = None
) -> Response:
    """An item of a conversation."""
    return JSONAnswer(await _store().conversations.item(conversation_id, item_id))


async def delete_conversation_item(conversation_id: str, item_id: str) -> Response:
    """The conversation without the item."""
    return JSONAnswer(await _store().conversations.remove_item(conversation_id, item_id))
