"""Stored responses of the Responses API, in a Redis server.

A response is a hash, with a field for each of its items. For each item there is a hash of the
responses that have it. Three further keys are for the bounds, which hold for all servers together:
the order of use, and the sizes with their sum. The script that saves a response also removes the
least recently used ones.
"""

import asyncio
import hashlib
import itertools
import json
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, Final, TypeVar

from specllama.engine import system
from specllama.handlers.http import schemas
from specllama.handlers.running.redis_server import Argument, RedisServer
from specllama.handlers.running.response_store import (
    MAX_BYTES,
    MAX_RESPONSES,
    ClaimedResponse,
    Item,
    StoredResponse,
)
from specllama.handlers.running.stores import StoreError

T = TypeVar("T")

_OTHER_OWNER = -1  # what the script that saves a response returns for another owner's id
PREFIX: Final = "specllama:responses:"
"""The beginning of the names of all keys. The buckets of quotas have another one."""
READ_BYTES: Final = 4 << 20
"""A command reads no further response after so many bytes, so that other commands don't wait for
long."""

_SHARED = """
local USED, SIZES, SUM = PREFIX .. 'used', PREFIX .. 'sizes', PREFIX .. 'sum'
local clock = redis.call('TIME')
local now = tonumber(clock[1]) + tonumber(clock[2]) / 1e6

local function record(id) return PREFIX .. 'response:' .. id end
local function having(item) return PREFIX .. 'item:' .. item end

local function newest()
    return tonumber(redis.call('ZREVRANGE', USED, 0, 0, 'WITHSCORES')[2] or 0)
end

-- A full Redis server, or a copy that can only be read, refuses these changes; it is read anyway.
local function use(id)
    redis.pcall('ZADD', USED, 'XX', newest() + 1, id)
end

local function remove(id)
    for item in string.gmatch(redis.call('HGET', record(id), 'items') or '', '%S+') do
        redis.call('HDEL', having(item), id)
    end
    redis.call('DEL', record(id))
    redis.call('ZREM', USED, id)
    redis.call('DECRBY', SUM, redis.call('HGET', SIZES, id) or 0)
    redis.call('HDEL', SIZES, id)
end

-- The owner must be the same; with `claimed`, the response must be claimed now.
local function is_there(id, owner, claimed)
    local found = redis.call('HMGET', record(id), 'owner', 'claimed_until')
    return found[1] == owner and (not claimed or tonumber(found[2]) > now)
end
""".replace("PREFIX", f"'{PREFIX}'")

_SAVE = (
    _SHARED
    + """
local owner, id, previous, status, head = unpack(ARGV, 1, 5)
local claim, if_claimed = tonumber(ARGV[6]), ARGV[7] == '1'
local size, max_responses, max_bytes = tonumber(ARGV[8]), tonumber(ARGV[9]), tonumber(ARGV[10])
if if_claimed and not is_there(id, owner, true) then return 0 end
if redis.call('EXISTS', record(id)) == 1 then
    if not is_there(id, owner) then return -1 end
    remove(id)
end

local claimed_until = claim > 0 and now + claim or 0
-- A full Redis server refuses this, unless it is in the place of an earlier response. It refuses
-- nothing after the first change of a script.
redis.call('HSET', record(id), 'owner', owner, 'status', status, 'head', head)
if redis.call('ZCARD', USED) == 0 then redis.call('DEL', SIZES, SUM) end
redis.call('HSET', record(id), 'claimed_until', string.format('%.17g', claimed_until))
if previous ~= '' then redis.call('HSET', record(id), 'previous', string.sub(previous, 2)) end
local items = {}
for i = 11, #ARGV, 3 do
    local field, item, body = ARGV[i], ARGV[i + 1], ARGV[i + 2]
    redis.call('HSET', record(id), field, body)
    redis.call('HSET', having(item), id, field)
    items[#items + 1] = item
end
redis.call('HSET', record(id), 'items', table.concat(items, ' '))
redis.call('ZADD', USED, newest() + 1, id)
redis.call('HSET', SIZES, id, size)
local sum, number = redis.call('INCRBY', SUM, size), redis.call('ZCARD', USED)
while number > 1 and (number > max_responses or sum > max_bytes) do
    remove(redis.call('ZRANGE', USED, 0, 0)[1])
    sum, number = tonumber(redis.call('GET', SUM)), number - 1
end
return 1
"""
)

_RENEW = (
    _SHARED
    + """
local ended, claimed_until = {}, string.format('%.17g', now + tonumber(ARGV[1]))
for i = 2, #ARGV, 3 do
    local owner, id, status = unpack(ARGV, i, i + 2)
    if is_there(id, owner, true) then
        redis.call('HSET', record(id), 'claimed_until', claimed_until, 'status', status)
        use(id)
    else
        ended[#ended + 1] = (i - 2) / 3
    end
end
return ended
"""
)

_CHAIN = (
    _SHARED
    + """
local owner, id, limit, max_bytes = ARGV[1], ARGV[2], tonumber(ARGV[3]), tonumber(ARGV[4])
local ids, found, size = {}, {}, 0
while id and #found < limit and size < max_bytes and is_there(id, owner) do
    local claimed_until = tonumber(redis.call('HGET', record(id), 'claimed_until'))
    local is_lost = claimed_until > 0 and claimed_until <= now
    found[#found + 1] = {is_lost and 1 or 0, redis.call('HGETALL', record(id))}
    ids[#ids + 1] = id
    size = size + tonumber(redis.call('HGET', SIZES, id) or 0)
    id = redis.call('HGET', record(id), 'previous')
end
for i = #ids, 1, -1 do use(ids[i]) end
return found
"""
)

_DELETE = (
    _SHARED
    + """
if not is_there(ARGV[2], ARGV[1]) then return 0 end
remove(ARGV[2])
return 1
"""
)

_ITEM = (
    _SHARED
    + """
local found = redis.call('HGETALL', having(ARGV[2]))
for i = 1, #found, 2 do
    local id, field = found[i], found[i + 1]
    if is_there(id, ARGV[1]) then return redis.call('HGET', record(id), field) end
end
return false
"""
)


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
    ) -> bool:
        size, head, fields = await self._convert(partial(_fields, owner, response, input))
        previous = response["previous_response_id"]
        saved = await self._server.run(
            _SAVE,
            owner,
            _bytes(response["id"]),
            b"" if previous is None else b"=" + _bytes(previous),
            response["status"],
            head,
            claim,
            int(if_claimed),
            size,
            *self._bounds,
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
        ended = await self._server.run(_RENEW, *arguments)
        return await self._convert(lambda: [claimed[index] for index in ended])

    async def chain(self, owner: str, id: str, limit: int) -> list[StoredResponse]:
        found: list[StoredResponse] = []
        next_: str | None = id
        while next_ is not None and len(found) < limit:
            rest = limit - len(found)
            raw = await self._server.run(_CHAIN, owner, _bytes(next_), rest, READ_BYTES)
            if not raw:
                break
            found += await self._convert(partial(_responses, raw))
            next_ = found[-1].response["previous_response_id"]
        return found

    async def delete(self, owner: str, id: str) -> bool:
        return bool(await self._server.run(_DELETE, owner, _bytes(id)))

    async def item(self, owner: str, id: str) -> Item | None:
        body = await self._server.run(_ITEM, owner, _digest(owner, id))
        return None if body is None else await self._convert(partial(json.loads, body))

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
