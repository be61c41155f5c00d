"""Stored responses and conversations of the Responses API, in a store that several server processes
may share.

A response in the background is stored before it is generated. Until its end it is claimed: its
process renews the claim, and every process can read, cancel and delete the response. A response
whose claim is over is lost: its process has ended, or can't reach the store. It never changes
again.

A conversation is a list of items that grows at its end: a response that has ended adds its input
and its output together, in one transaction. So the items of responses that are generated at the
same time don't mix; they stand in the order in which the responses have ended.
"""

import asyncio
import json
import logging
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Final, NamedTuple, Protocol, TypeAlias, TypeVar

import msgspec

from specllama.engine import system
from specllama.engine.errors import EngineError, ErrorInfo, invalid_request, server_error
from specllama.handlers.http import schemas
from specllama.handlers.running.stores import (
    StoreError,
    UnavailableStoreError,
    unavailable_store,
)

log = logging.getLogger(__name__)

T = TypeVar("T")
Item: TypeAlias = schemas.ResponseStoredItem
Order: TypeAlias = schemas.ResponseItemOrder

MAX_CHAIN: Final = 1000
"""The longest chain of responses by `previous_response_id`."""

MAX_RESPONSES: Final = 10_000
MAX_BYTES: Final = 256 << 20  # of JSON text
"""Bounds of the stores in memory and in Redis, for responses and conversations together."""

MAX_ITEMS: Final = 65_536
MAX_CONVERSATION_BYTES: Final = 64 << 20  # of JSON text
"""Bounds of one conversation. What is added to a longer one is refused."""

CLAIM_SECONDS: Final = 30.0
"""Seconds after which a response in the background is lost, unless its claim was renewed."""

HEARTBEAT: Final = 1.0
"""Seconds between two renewals of a claim."""

RUNNING: Final = ("queued", "in_progress")
"""The states of a response that hasn't ended."""


class StoredResponse(msgspec.Struct, frozen=True):
    """A response, and its input items. `is_lost`: its claim was over before it ended."""

    response: schemas.ResponseObject
    input: list[Item]
    is_lost: bool = False

    @property
    def is_running(self) -> bool:
        """True if it is generated now, in the background."""
        return self.response["status"] in RUNNING and not self.is_lost


class StoredConversation(msgspec.Struct, frozen=True):
    """A conversation, and its items, oldest first."""

    conversation: schemas.ConversationObject
    items: list[Item]


class ClaimedResponse(NamedTuple):
    """A response that is generated in the background, with its present state."""

    owner: str
    id: str
    status: schemas.ResponseStatus


class ResponseStore(Protocol):
    """Responses and conversations by owner and id; the owner "" has those of requests without API
    keys.

    Every method but `close` is one transaction, and raises UnavailableStoreError while the store
    can't be used, StoreError for data that can't be read.
    """

    async def save(
        self,
        owner: str,
        response: schemas.ResponseObject,
        input: Sequence[Item],
        *,
        claim: float = 0.0,
        if_claimed: bool = False,
        append_to: str = "",
    ) -> bool:
        """Stores a response and its input items, in the place of an earlier one with its id.

        With `claim`, the response hasn't ended, and is claimed for so many seconds. With
        `if_claimed`, stores it only if it is claimed now, which ends the claim; returns whether it
        was. With `append_to`, adds the input items and the output to the owner's conversation of
        this id, unless it has been deleted. Raises StoreError if the id belongs to another owner.
        """

    async def renew(
        self, claimed: Sequence[ClaimedResponse], seconds: float
    ) -> list[ClaimedResponse]:
        """Claims responses for another time of `seconds`, and stores their states. Returns the ones
        whose claim has ended: they were cancelled, deleted or lost."""

    async def chain(self, owner: str, id: str, limit: int) -> list[StoredResponse]:
        """Returns a response and the ones that it continues, newest first, and marks them as used.
        The list ends before a response that doesn't exist, and after `limit` responses."""

    async def delete(self, owner: str, id: str) -> bool:
        """Deletes a response. Returns False if it doesn't exist."""

    async def item(self, owner: str, id: str) -> Item | None:
        """Returns an item of any response or conversation, by the item's id."""

    async def create(
        self, owner: str, conversation: schemas.ConversationObject, items: Sequence[Item]
    ) -> None:
        """Stores a new conversation and its first items."""

    async def conversation(self, owner: str, id: str) -> StoredConversation | None:
        """Returns a conversation, and marks it as used."""

    async def update(self, owner: str, conversation: schemas.ConversationObject) -> bool:
        """Stores other metadata of a conversation. Returns False if it doesn't exist."""

    async def append(self, owner: str, id: str, items: Sequence[Item]) -> bool:
        """Adds items to the end of a conversation. Returns False if it doesn't exist."""

    async def remove_item(self, owner: str, id: str, item: str) -> bool:
        """Removes the item of this id from a conversation. Returns False if it isn't there."""

    async def delete_conversation(self, owner: str, id: str) -> bool:
        """Deletes a conversation and its items. Returns False if it doesn't exist."""

    async def secret(self, candidate: bytes) -> bytes:
        """Returns the secret that the users of the store share: `candidate`, unless the store
        already has one."""

    async def check(self) -> None:
        """Returns if the store can be used."""

    async def close(self) -> None:
        """Closes the store after all pending calls."""


CONNECTION_STORE: Final = "connection_responses"
"""The name of a WebSocket's `LocalResponses` in the state of its requests."""


class LocalResponses:
    """The newest responses with `store: false` of one WebSocket, in memory: up to `MAX`, with up to
    `MAX_BYTES` of JSON text."""

    MAX: Final = 1000
    MAX_BYTES: Final = 32 << 20

    def __init__(self) -> None:
        self._kept: dict[str, tuple[StoredResponse, int]] = {}  # with its bytes; the oldest first
        self._n_bytes = 0

    def save(self, response: schemas.ResponseObject, input: Sequence[Item]) -> None:
        """Keeps a response, and drops the oldest ones if there is no room."""
        n_bytes = len(msgspec.json.encode((response["output"], input)))
        self._kept[response["id"]] = StoredResponse(response, list(input)), n_bytes
        self._n_bytes += n_bytes
        while len(self._kept) > self.MAX or self._n_bytes > self.MAX_BYTES:
            self.discard(next(iter(self._kept)))

    def discard(self, id: str) -> None:
        """Drops a response, if it is kept."""
        _, n_bytes = self._kept.pop(id, (None, 0))
        self._n_bytes -= n_bytes

    def chain(self, id: str, limit: int) -> list[StoredResponse]:
        """Returns as `ResponseStore.chain` does."""
        found: list[StoredResponse] = []
        next_: str | None = id
        while next_ is not None and next_ in self._kept and len(found) < limit:
            found.append(self._kept[next_][0])
            next_ = found[-1].response["previous_response_id"]
        return found

    def item(self, id: str) -> Item | None:
        """Returns an item of any response, by the item's id."""
        every: Iterator[Any] = (
            each
            for stored, _ in self._kept.values()
            for each in (*stored.input, *stored.response["output"])
        )
        return next((each for each in every if each["id"] == id), None)


class ItemPage(msgspec.Struct, frozen=True):
    """Consecutive items of a list; `has_more`: the list continues after them."""

    items: list[Item]
    has_more: bool


def page_of(items: Sequence[Item], *, after: str | None, limit: int, order: Order) -> ItemPage:
    """Returns up to `limit` of the `items` after the item `after`, in the given `order`. Raises
    EngineError (invalid_request_error) for an unknown `after`."""
    listed = list(items) if order == "asc" else list(reversed(items))
    start = 0
    if after is not None:
        positions = [i for i, item in enumerate(listed) if item["id"] == after]
        if not positions:
            raise invalid_request(f"after: there is no item {after!r} in this list")
        start = positions[-1] + 1
    return ItemPage(listed[start : start + limit], len(listed) > start + limit)


class Responses:
    """The stored responses and conversations of one owner; and, for requests of a WebSocket, its
    `local` responses. Every method raises EngineError: unavailable_error while the store can't be
    used, server_error if it fails otherwise."""

    def __init__(
        self, store: ResponseStore, owner: str = "", local: LocalResponses | None = None
    ) -> None:
        self._store = store
        self._owner = owner
        self._local = local

    @property
    def conversations(self) -> "Conversations":
        """The conversations of the same owner."""
        return Conversations(self._store, self._owner)

    async def check(self) -> None:
        """Returns if the store can be used."""
        with _reported():
            await self._store.check()

    async def save(self, response: schemas.ResponseObject, input: Sequence[Item]) -> None:
        """Stores a response that has ended, and its input items, and adds it to its conversation.
        One with `store: false` is kept for the WebSocket alone, if there is one."""
        if response.get("store") is not False:
            with _reported():
                await self._store.save(self._owner, response, input, append_to=_grows(response))
        elif self._local is not None:
            self._local.save(response, input)

    async def begin(self, response: schemas.ResponseObject, input: Sequence[Item]) -> None:
        """Stores a response in the background before it is generated."""
        with _reported():
            await self._store.save(self._owner, response, input, claim=CLAIM_SECONDS)

    async def end(
        self, response: schemas.ResponseObject, input: Sequence[Item], *, patient: bool = False
    ) -> None:
        """Stores a response in the background at its end, and adds it to its conversation, unless
        it has been cancelled, deleted or lost meanwhile. With `patient`, tries again while the
        store can't be used, until the response is lost."""
        deadline = system.now() + CLAIM_SECONDS if patient else 0.0
        with _reported():
            while True:
                try:
                    await self._store.save(
                        self._owner, response, input, if_claimed=True, append_to=_grows(response)
                    )
                    return
                except UnavailableStoreError:
                    if system.now() > deadline:
                        raise
                    await asyncio.sleep(HEARTBEAT)

    async def find(self, id: str) -> StoredResponse:
        """Raises not_found_error, too."""
        with _reported():
            found = await self._store.chain(self._owner, id, 1)
        return _found(found, id)[0]

    async def delete(self, id: str) -> None:
        """Raises not_found_error, too."""
        with _reported():
            deleted = await self._store.delete(self._owner, id)
        _found(deleted, id)

    async def item(self, id: str) -> Item | None:
        """Returns an item of any response or conversation, by the item's id."""
        if self._local is not None and (found := self._local.item(id)) is not None:
            return found
        with _reported():
            return await self._store.item(self._owner, id)

    async def conversation(self, id: str) -> list[Item]:
        """Returns all items of the conversation that ends with the response `id`, oldest first,
        including its output.

        Raises invalid_request_error, too, if one of its responses doesn't exist or hasn't ended, or
        if it has more than `MAX_CHAIN` responses.
        """
        found, next_ = await self._chain(id)
        if next_ is not None and len(found) == MAX_CHAIN:
            raise invalid_request(
                f"previous_response_id: the conversation has more than {MAX_CHAIN} responses"
            )
        if next_ is not None:
            text = f"previous_response_id: there is no response {next_!r}"
            info = ErrorInfo("invalid_request_error", text, reason="previous_response_not_found")
            raise EngineError(info)
        items: list[Item] = []
        for each in reversed(found):
            if each.is_running:
                raise invalid_request(
                    f"previous_response_id: the response {each.response['id']!r} has not ended yet"
                )
            output: Sequence[Any] = each.response["output"]
            items += [*each.input, *output]
        return items

    async def _chain(self, id: str) -> tuple[list[StoredResponse], str | None]:
        """Returns a response and the ones that it continues, newest first, and the id at which the
        chain ends early. Each response is in the store, or local."""
        found: list[StoredResponse] = []
        next_: str | None = id
        while next_ is not None and len(found) < MAX_CHAIN:
            limit = MAX_CHAIN - len(found)
            part = self._local.chain(next_, limit) if self._local is not None else []
            if not part:
                with _reported():
                    part = await self._store.chain(self._owner, next_, limit)
            if not part:
                break
            found += part
            next_ = part[-1].response["previous_response_id"]
        return found, next_


def _grows(response: schemas.ResponseObject) -> str:
    """Returns the id of the conversation to which `response` is added; "" if there is none, or if
    the response has no whole answer."""
    conversation = response.get("conversation")  # those of earlier versions have none
    if conversation is None or response["status"] not in ("completed", "incomplete"):
        return ""
    return conversation["id"]


class Conversations:
    """The stored conversations of one owner. Every method raises EngineError: as those of
    `Responses`, and not_found_error for a conversation that doesn't exist."""

    def __init__(self, store: ResponseStore, owner: str = "") -> None:
        self._store = store
        self._owner = owner

    async def create(
        self, id: str, metadata: schemas.ConversationMetadata, items: Sequence[Item]
    ) -> schemas.ConversationObject:
        """Returns the new conversation with these `items`."""
        conversation: schemas.ConversationObject = {
            "id": id,
            "object": "conversation",
            "created_at": int(time.time()),
            "metadata": metadata,
        }
        with _reported():
            await self._store.create(self._owner, conversation, items)
        return conversation

    async def find(self, id: str) -> StoredConversation:
        """Returns a conversation with all its items."""
        with _reported():
            found = await self._store.conversation(self._owner, id)
        return _found(found, id, "conversation")

    async def update(
        self, id: str, metadata: schemas.ConversationMetadata
    ) -> schemas.ConversationObject:
        """Returns the conversation with `metadata` in the place of the earlier ones."""
        found = (await self.find(id)).conversation
        changed: schemas.ConversationObject = {**found, "metadata": metadata}
        with _reported():
            is_there = await self._store.update(self._owner, changed)
        _found(is_there, id, "conversation")
        return changed

    async def append(self, id: str, items: Sequence[Item]) -> None:
        """Adds items to the end, whatever the bounds of a conversation."""
        with _reported():
            is_there = await self._store.append(self._owner, id, items)
        _found(is_there, id, "conversation")

    async def item(self, id: str, item: str) -> Item:
        """Returns an item of a conversation."""
        found = [each for each in (await self.find(id)).items if each["id"] == item]
        return _found(found, item, "item")[-1]

    async def remove_item(self, id: str, item: str) -> schemas.ConversationObject:
        """Removes an item, and returns the conversation."""
        found = (await self.find(id)).conversation
        with _reported():
            is_there = await self._store.remove_item(self._owner, id, item)
        _found(is_there, item, "item")
        return found

    async def delete(self, id: str) -> None:
        """Deletes a conversation, but not the responses of it."""
        with _reported():
            deleted = await self._store.delete_conversation(self._owner, id)
        _found(deleted, id, "conversation")


def check_room(before: Sequence[Item], items: Sequence[Item]) -> None:
    """Raises EngineError (invalid_request_error) if a conversation with the items `before` has no
    room for `items`."""
    if len(before) + len(items) > MAX_ITEMS:
        raise invalid_request(f"a conversation has at most {MAX_ITEMS} items; begin another one")
    size = 0
    for each in (*before, *items):
        size += len(json.dumps(each))
        if size > MAX_CONVERSATION_BYTES:
            most = MAX_CONVERSATION_BYTES >> 20
            raise invalid_request(f"a conversation has at most {most} MiB; begin another one")


async def shared_secret(store: ResponseStore, candidate: bytes) -> bytes:
    """Returns the secret of `store`, as `ResponseStore.secret` does, with the errors of
    `Responses`."""
    with _reported():
        return await store.secret(candidate)


@contextmanager
def _reported() -> Iterator[None]:
    """A context for calls of the store, whose errors become EngineErrors."""
    try:
        yield
    except UnavailableStoreError as error:
        log.error("requests that need stored responses are refused: %s", error)
        raise unavailable_store(
            "the store of responses can't be used; the server's log says why"
        ) from error
    except StoreError as error:
        log.error("the database of responses failed: %s", error)
        raise server_error("the database of responses failed; the server's log says why") from error


def _found(result: T | None, id: str, kind: str = "response") -> T:
    if not result:
        raise EngineError.of("not_found_error", f"there is no {kind} {id[:200]!r}")
    return result
