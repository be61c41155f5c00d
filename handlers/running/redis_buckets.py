"""Token buckets in a Redis server, which the servers of several machines may share.

One script in the Redis server makes all changes of a request at once.
"""

from collections.abc import Sequence

from specllama.handlers.running.buckets import ROUNDING, Demand, Taken
from specllama.handlers.running.redis_server import RedisServer

_PREFIX = "specllama:bucket:"

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

    async def close(self) -> None:
        await self._server.close()
