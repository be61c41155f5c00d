"""Stored responses and conversations of the Responses API, in a Redis server, which changes them by
its scripts (`handlers.running.redis_scripts`)."""

import asyncio
import hashlib
import itertools
import json
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, Final, TypeVar

from specllama.engine import system
from specllama.handlers.http import schemas
from specllama.handlers.running.redis_scripts import (
    APPEND,
    CHAIN,
    CONVERSATION,
    CREATE,
    DELETE,
    DELETE_CONVERSATION,
    ITEM,
    PREFIX,
    REMOVE_ITEM,
    RENEW,
    SAVE,
    SECRET,
    UPDATE,
)
from specllama.handlers.running.redis_server import Argument, RedisServer
from specllama.handlers.running.response_store import (
    MAX_BYTES,
    MAX_RESPONSES,
    ClaimedResponse,
    Item,
    StoredConversation,
    StoredResponse,
)
from specllama.handlers.running.stores import StoreError

T = TypeVar("T")

_OTHER_OWNER = -1  # what the script that saves a response returns for another owner's id
READ_BYTES: Final = 4 << 20
"""A command reads no further response after so many bytes, so that other commands don't wait for
long."""


class RedisResponses:
    """The `ResponseStore` in the Redis server at a URL, which the servers of several machines may
    share. The bounds hold for all its responses, but the last one saved is kept in any case."""

    def __init__(
        self, url: str, *, max_responses: int = MAX_RESPONSES, max_bytes: int = MAX_BYTES
    ) -> None:
        """Raises ValueError for an invalid URL."""
        self._server = RedisServer(url)
        self._bounds = max_responses, max_bytes
        self._thread = system.pool(1, "responses")  # for JSON, which may be large

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
        size, head, fields = await self._convert(partial(_fields, owner, response, input))
        previous = response["previous_response_id"]
        saved = await self._server.run(
            SAVE,
            owner,
            _bytes(response["id"]),
            b"" if previous is None else b"=" + _bytes(previous),
            response["status"],
            head,
            claim,
            int(if_claimed),
            size,
            *self._bounds,
            _bytes(append_to),
            *fields,
        )
        if saved == _OTHER_OWNER:
            raise StoreError("another owner has a response with this id")
        return bool(saved)

    async def renew(
        self, claimed: Sequence[ClaimedResponse], seconds: float
    ) -> list[ClaimedResponse]:
        arguments: list[Argument] = [seconds]
        for each in claimed:
            arguments += [each.owner, _bytes(each.id), each.status]
        ended = await self._server.run(RENEW, *arguments)
        return await self._convert(lambda: [claimed[index] for index in ended])

    async def chain(self, owner: str, id: str, limit: int) -> list[StoredResponse]:
        found: list[StoredResponse] = []
        next_: str | None = id
        while next_ is not None and len(found) < limit:
            rest = limit - len(found)
            raw = await self._server.run(CHAIN, owner, _bytes(next_), rest, READ_BYTES)
            if not raw:
                break
            found += await self._convert(partial(_responses, raw))
            next_ = found[-1].response["previous_response_id"]
        return found

    async def delete(self, owner: str, id: str) -> bool:
        return bool(await self._server.run(DELETE, owner, _bytes(id)))

    async def item(self, owner: str, id: str) -> Item | None:
        body = await self._server.run(ITEM, owner, _digest(owner, id))
        return None if body is None else await self._convert(partial(json.loads, body))

    async def create(
        self, owner: str, conversation: schemas.ConversationObject, items: Sequence[Item]
    ) -> None:
        head = json.dumps(conversation)
        added = await self._convert(partial(_added, owner, items))
        id = _bytes(conversation["id"])
        await self._server.run(CREATE, owner, id, head, len(head), *self._bounds, *added)

    async def conversation(self, owner: str, id: str) -> StoredConversation | None:
        fields = await self._fields_of(owner, id)
        if fields is None:
            return None
        return await self._convert(
            lambda: StoredConversation(
                json.loads(fields[b"head"]), [item for _, item in _positions(fields)]
            )
        )

    async def _fields_of(self, owner: str, id: str) -> dict[bytes, bytes] | None:
        """Returns the fields of a conversation's hash."""
        listed = await self._server.run(CONVERSATION, owner, _bytes(id))
        if listed is None:
            return None
        return await self._convert(lambda: dict(zip(listed[::2], listed[1::2], strict=True)))

    async def update(self, owner: str, conversation: schemas.ConversationObject) -> bool:
        head, id = json.dumps(conversation), _bytes(conversation["id"])
        return bool(await self._server.run(UPDATE, owner, id, head, *self._bounds))

    async def append(self, owner: str, id: str, items: Sequence[Item]) -> bool:
        added = await self._convert(partial(_added, owner, items))
        return bool(await self._server.run(APPEND, owner, _bytes(id), *self._bounds, *added))

    async def remove_item(self, owner: str, id: str, item: str) -> bool:
        fields = await self._fields_of(owner, id)
        if fields is None:
            return False
        found = await self._convert(
            lambda: [name for name, each in _positions(fields) if each["id"] == item]
        )
        digest = _digest(owner, item)
        return bool(await self._server.run(REMOVE_ITEM, owner, _bytes(id), digest, *found))

    async def delete_conversation(self, owner: str, id: str) -> bool:
        return bool(await self._server.run(DELETE_CONVERSATION, owner, _bytes(id)))

    async def secret(self, candidate: bytes) -> bytes:
        found: bytes = await self._server.run(SECRET, candidate, keys=[f"{PREFIX}secret"])
        return found

    async def check(self) -> None:
        await self._server.check()

    async def close(self) -> None:
        self._thread.shutdown()
        await self._server.close()

    async def _convert(self, work: Callable[[], T]) -> T:
        """Returns the result of `work`, which runs in a thread. Raises StoreError if the data can't
        be read."""
        loop = asyncio.get_running_loop()
        try:
            return await loop.run_in_executor(self._thread, work)
        except (ValueError, TypeError, LookupError, AttributeError) as error:
            raise StoreError(f"{type(error).__name__}: {error}") from error


def _fields(
    owner: str, response: schemas.ResponseObject, input: Sequence[Item]
) -> tuple[int, str, list[Argument]]:
    """Returns the bytes of a response and its items, the response without items, and for each item
    a field, the digest of its id, and the item."""
    head = json.dumps({**response, "output": []})
    size, fields = len(head), list[Argument]()
    for letter, items in (("i", input), ("o", response["output"])):
        for position, item in enumerate(items):
            body = json.dumps(item)
            fields += [f"{letter}{position}", _digest(owner, item["id"]), body]
            size += len(body)
    return size, head, fields


def _added(owner: str, items: Sequence[Item]) -> list[Argument]:
    """Returns, for each item, the digest of its id, and the item."""
    return [each for item in items for each in (_digest(owner, item["id"]), json.dumps(item))]


def _positions(fields: Mapping[bytes, bytes]) -> list[tuple[bytes, Item]]:
    """Returns the items of a conversation with the names of their fields, oldest first."""
    names = [name for name in fields if name[:1] == b"i" and name[1:].isdigit()]
    names.sort(key=lambda name: int(name[1:]))
    return [(name, json.loads(fields[name])) for name in names]


def _responses(raw: Sequence[tuple[int, Sequence[bytes]]]) -> list[StoredResponse]:
    """Returns the responses in the result of the script that reads a chain."""
    found: list[StoredResponse] = []
    for is_lost, listed in raw:
        fields = dict(zip(listed[::2], listed[1::2], strict=True))
        response: schemas.ResponseObject = json.loads(fields[b"head"])
        response["output"] = _items(fields, b"o%d")
        status: Any = fields[b"status"].decode()
        response["status"] = status
        found.append(StoredResponse(response, _items(fields, b"i%d"), bool(is_lost)))
    return found


def _items(fields: Mapping[bytes, bytes], name: bytes) -> list[Any]:
    """Returns the items of a response's input or output, as they were saved."""
    names = (name % position for position in itertools.count())
    return [json.loads(fields[each]) for each in itertools.takewhile(fields.__contains__, names)]


def _bytes(id: str) -> bytes:
    """Returns an id for a key's name. A request may name any id, also one that is no valid text."""
    return id.encode("utf-8", "surrogatepass")


def _digest(owner: str, item: str) -> str:
    """Returns the name of an owner's item, whose id may come from a client."""
    return hashlib.blake2b(_bytes(f"{owner}\0{item}"), digest_size=16).hexdigest()
