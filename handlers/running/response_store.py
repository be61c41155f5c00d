"""Stored responses of the Responses API, in a store that several server processes may share.

A response in the background is stored before it is generated. Until its end it is claimed: its
process renews the claim, and every process can read, cancel and delete the response. A response
whose claim is over is lost: its process has ended, or can't reach the store. It never changes
again.
"""

import asyncio
import logging
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Final, NamedTuple, Protocol, TypeAlias, TypeVar

import msgspec

from specllama.engine import system
from specllama.engine.errors import EngineError, invalid_request, server_error
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
"""Bounds of the stores in memory and in Redis."""

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


class ClaimedResponse(NamedTuple):
    """A response that is generated in the background, with its present state."""

    owner: str
    id: str
    status: schemas.ResponseStatus


class ResponseStore(Protocol):
    """Responses by owner and id; the owner "" has the responses of requests without API keys.

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
    ) -> bool:
        """Stores a response and its input items, in the place of an earlier one with its id.

        With `claim`, the response hasn't ended, and is claimed for so many seconds. With
        `if_claimed`, stores it only if it is claimed now, which ends the claim; returns whether it
        was. Raises StoreError if the id belongs to another owner.
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
        """Returns an item of any response, by the item's id."""

    async def check(self) -> None:
        """Returns if the store can be used."""

    async def close(self) -> None:
        """Closes the store after all pending calls."""


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
            raise invalid_request(f"after: the response has no input item {after!r}")
        start = positions[0] + 1
    return ItemPage(listed[start : start + limit], len(listed) > start + limit)


class Responses:
    """The stored responses of one owner. Every method raises EngineError: unavailable_error while
    the store can't be used, server_error if it fails otherwise."""

    def __init__(self, store: ResponseStore, owner: str = "") -> None:
        self._store = store
        self._owner = owner

    async def check(self) -> None:
        """Returns if the store can be used."""
        with _reported():
            await self._store.check()

    async def save(self, response: schemas.ResponseObject, input: Sequence[Item]) -> None:
        """Stores a response that has ended, and its input items."""
        with _reported():
            await self._store.save(self._owner, response, input)

    async def begin(self, response: schemas.ResponseObject, input: Sequence[Item]) -> None:
        """Stores a response in the background before it is generated."""
        with _reported():
            await self._store.save(self._owner, response, input, claim=CLAIM_SECONDS)

    async def end(
        self, response: schemas.ResponseObject, input: Sequence[Item], *, patient: bool = False
    ) -> None:
        """Stores a response in the background at its end, unless it has been cancelled, deleted or
        lost meanwhile. With `patient`, tries again while the store can't be used, until the
        response is lost."""
        deadline = system.now() + CLAIM_SECONDS if patient else 0.0
        with _reported():
            while True:
                try:
                    await self._store.save(self._owner, response, input, if_claimed=True)
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
        """Returns an item of any response, by the item's id."""
        with _reported():
            return await self._store.item(self._owner, id)

    async def conversation(self, id: str) -> list[Item]:
        """Returns all items of the conversation that ends with the response `id`, oldest first,
        including its output.

        Raises invalid_request_error, too, if one of its responses doesn't exist or hasn't ended, or
        if it has more than `MAX_CHAIN` responses.
        """
        with _reported():
            found = await self._store.chain(self._owner, id, MAX_CHAIN)
        next_ = found[-1].response["previous_response_id"] if found else id
        if next_ is not None and len(found) == MAX_CHAIN:
            raise invalid_request(
                f"previous_response_id: the conversation has more than {MAX_CHAIN} responses"
            )
        if next_ is not None:
            raise invalid_request(f"previous_response_id: there is no response {next_!r}")
        items: list[Item] = []
        for each in reversed(found):
            if each.is_running:
                raise invalid_request(
                    f"previous_response_id: the response {each.response['id']!r} has not ended yet"
                )
            output: Sequence[Any] = each.response["output"]
            items += [*each.input, *output]
        return items


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


def _found(result: T, id: str) -> T:
    if not result:
        raise EngineError.of("not_found_error", f"there is no response {id!r}")
    return result
