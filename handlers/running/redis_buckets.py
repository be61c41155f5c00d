"""Token buckets and running calls in a Redis server, which the servers of several machines may
share.

One script in the Redis server makes all changes of a request at once.
"""

from collections.abc import Sequence

from specllama.handlers.running.buckets import ROUNDING, RUNNING_SECONDS, Demand, Taken
from specllama.handlers.running.redis_server import RedisServer

_PREFIX = "specllama:bucket:"
_RUNNING = "specllama:running:"

_SCRIPT = """
local clock = redis.call('TIME')
local now = tonumber(clock[1]) + tonumber(clock[2]) / 1e6
local levels, times, granted = {}, {}, 1
for i, key in ipairs(KEYS) do
    local limit, period = tonumber(ARGV[4 * i - 3]), tonumber(ARGV[4 * i - 2])
    local state = redis.call('HMGET', key, 'level', 'at')
    local level, since = tonumber(state[1] or limit), tonumber(state[2] or now)
    levels[i] = math.min(limit, level + math.max(0, now - since) * limit / period)
    times[i] = (now < since and since <= now + period) and since or now
    if levels[i] + ROUNDING < tonumber(ARGV[4 * i]) then granted = 0 end
end
for i, key in ipairs(KEYS) do
    local limit, period = tonumber(ARGV[4 * i - 3]), tonumber(ARGV[4 * i - 2])
    if granted == 1 then
        levels[i] = math.min(limit, levels[i] - tonumber(ARGV[4 * i - 1]))
    end
    levels[i] = string.format('%.17g', levels[i])
    redis.call('HSET', key, 'level', levels[i], 'at', string.format('%.17g', times[i]))
    local seconds = (limit - tonumber(levels[i])) * period / limit + period
    redis.call('EXPIRE', key, math.ceil(seconds))
end
return {granted, unpack(levels)}
""".replace("ROUNDING", str(ROUNDING))
"""The same as `buckets.changed`. A bucket is removed after it is full, which is what a missing one
is."""

# The running calls of a key are a sorted set, by the times until which they count.
_BEGIN = f"""
local clock = redis.call('TIME')
redis.call('ZREMRANGEBYSCORE', KEYS[1], '-inf', clock[1])
local n = redis.call('ZCARD', KEYS[1])
if n >= tonumber(ARGV[2]) then return n end
redis.call('ZADD', KEYS[1], clock[1] + {RUNNING_SECONDS:.0f}, ARGV[1])
redis.call('EXPIRE', KEYS[1], {2 * RUNNING_SECONDS:.0f})
return 0
"""
_RENEW = f"""
local clock = redis.call('TIME')
for i, key in ipairs(KEYS) do
    redis.call('ZADD', key, 'XX', clock[1] + {RUNNING_SECONDS:.0f}, ARGV[i])
    redis.call('EXPIRE', key, {2 * RUNNING_SECONDS:.0f})
end
"""
_END = "redis.call('ZREM', KEYS[1], ARGV[1])"


class RedisBuckets:
    """Buckets in the Redis server at a URL. While that server can't be used, `take` raises
    UnavailableStoreError."""

    def __init__(self, url: str) -> None:
        """Raises ValueError for an invalid URL."""
        self._server = RedisServer(url)

    async def take(self, demands: Sequence[Demand]) -> Taken:
        keys: list[str] = []
        arguments: list[float] = []
        for each in demands:
            bucket = each.bucket
            keys.append(_PREFIX + bucket.id)
            arguments += [bucket.limit, bucket.period, each.amount, each.needed]
        granted, *levels = await self._server.run(_SCRIPT, *arguments, keys=keys)
        return Taken(bool(granted), [float(each) for each in levels])

    async def begin(self, key: str, call: str, limit: int) -> int:
        return int(await self._server.run(_BEGIN, call, limit, keys=[_RUNNING + key]))

    async def renew(self, calls: Sequence[tuple[str, str]]) -> None:
        keys, names = [_RUNNING + key for key, _ in calls], [call for _, call in calls]
        await self._server.run(_RENEW, *names, keys=keys)

    async def end(self, key: str, call: str) -> None:
        await self._server.run(_END, call, keys=[_RUNNING + key])

    async def close(self) -> None:
        await self._server.close()
