"""The scripts that a Redis server runs for stored responses and conversations.

A response is a hash, with a field for each of its items, and so is a conversation, which has the
field `kind` as well. For each item there is a hash of the responses and conversations that have
it. Three further keys are for the bounds, which hold for all servers together: the order of use,
and the sizes with their sum. The scripts that make them larger also remove the least recently used
ones.
"""

from typing import Final

PREFIX: Final = "specllama:responses:"
"""The beginning of the names of all keys. The buckets of quotas have another one."""
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

local function evict(max_responses, max_bytes)
    local sum, number = tonumber(redis.call('GET', SUM)), redis.call('ZCARD', USED)
    while number > 1 and (number > max_responses or sum > max_bytes) do
        remove(redis.call('ZRANGE', USED, 0, 0)[1])
        sum, number = tonumber(redis.call('GET', SUM)), number - 1
    end
end

-- The owner must be the same; with `claimed`, the response must be claimed now.
local function is_there(id, owner, claimed)
    local found = redis.call('HMGET', record(id), 'owner', 'claimed_until', 'kind')
    return found[1] == owner and not found[3] and (not claimed or tonumber(found[2]) > now)
end

local function is_conversation(id, owner)
    local found = redis.call('HMGET', record(id), 'owner', 'kind')
    return found[1] == owner and found[2] == 'conversation'
end

local function grow(id, bytes)
    redis.call('HINCRBY', SIZES, id, bytes)
    redis.call('INCRBY', SUM, bytes)
    redis.call('ZADD', USED, newest() + 1, id)
end

-- Adds the items in the arguments from `first` on to a conversation: for each, two arguments, the
-- digest of its id and the item.
local function append(id, first, step)
    local digests, bytes = {redis.call('HGET', record(id), 'items')}, 0
    for i = first, #ARGV, step do
        local digest, body = ARGV[i], ARGV[i + 1]
        local field = 'i' .. (redis.call('HINCRBY', record(id), 'next', 1) - 1)
        redis.call('HSET', record(id), field, body)
        redis.call('HSET', having(digest), id, field)
        digests[#digests + 1] = digest
        bytes = bytes + #body
    end
    redis.call('HSET', record(id), 'items', table.concat(digests, ' '))
    grow(id, bytes)
end
""".replace("PREFIX", f"'{PREFIX}'")

SAVE = (
    _SHARED
    + """
local owner, id, previous, status, head = unpack(ARGV, 1, 5)
local claim, if_claimed = tonumber(ARGV[6]), ARGV[7] == '1'
local size, max_responses, max_bytes = tonumber(ARGV[8]), tonumber(ARGV[9]), tonumber(ARGV[10])
local append_to = ARGV[11]
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
for i = 12, #ARGV, 3 do
    local field, item, body = ARGV[i], ARGV[i + 1], ARGV[i + 2]
    redis.call('HSET', record(id), field, body)
    redis.call('HSET', having(item), id, field)
    items[#items + 1] = item
end
redis.call('HSET', record(id), 'items', table.concat(items, ' '))
redis.call('ZADD', USED, newest() + 1, id)
redis.call('HSET', SIZES, id, size)
redis.call('INCRBY', SUM, size)
if append_to ~= '' and is_conversation(append_to, owner) then append(append_to, 13, 3) end
evict(max_responses, max_bytes)
return 1
"""
)

CREATE = (
    _SHARED
    + """
local owner, id, head, size = unpack(ARGV, 1, 4)
redis.call('HSET', record(id), 'owner', owner, 'kind', 'conversation', 'head', head, 'items', '')
if redis.call('ZCARD', USED) == 0 then redis.call('DEL', SIZES, SUM) end
grow(id, size)
append(id, 7, 2)
evict(tonumber(ARGV[5]), tonumber(ARGV[6]))
"""
)

CONVERSATION = (
    _SHARED
    + """
if not is_conversation(ARGV[2], ARGV[1]) then return false end
use(ARGV[2])
return redis.call('HGETALL', record(ARGV[2]))
"""
)

UPDATE = (
    _SHARED
    + """
local owner, id, head = unpack(ARGV, 1, 3)
if not is_conversation(id, owner) then return 0 end
local before = redis.call('HSTRLEN', record(id), 'head')
redis.call('HSET', record(id), 'head', head)
grow(id, #head - before)
evict(tonumber(ARGV[4]), tonumber(ARGV[5]))
return 1
"""
)

APPEND = (
    _SHARED
    + """
if not is_conversation(ARGV[2], ARGV[1]) then return 0 end
append(ARGV[2], 5, 2)
evict(tonumber(ARGV[3]), tonumber(ARGV[4]))
return 1
"""
)

# A digest has only hexadecimal digits, which are not special in a pattern.
REMOVE_ITEM = (
    _SHARED
    + """
local owner, id, digest = unpack(ARGV, 1, 3)
if not is_conversation(id, owner) then return 0 end
local items, removed = redis.call('HGET', record(id), 'items'), 0
for i = 4, #ARGV do
    local bytes = redis.call('HSTRLEN', record(id), ARGV[i])
    if redis.call('HDEL', record(id), ARGV[i]) == 1 then
        items = string.gsub(items, ' ?' .. digest, '', 1)
        grow(id, -bytes)
        removed = 1
    end
end
redis.call('HSET', record(id), 'items', items)
redis.call('HDEL', having(digest), id)
return removed
"""
)

DELETE_CONVERSATION = (
    _SHARED
    + """
if not is_conversation(ARGV[2], ARGV[1]) then return 0 end
remove(ARGV[2])
return 1
"""
)

SECRET = """
redis.call('SET', KEYS[1], ARGV[1], 'NX')
return redis.call('GET', KEYS[1])
"""

RENEW = (
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

CHAIN = (
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

DELETE = (
    _SHARED
    + """
if not is_there(ARGV[2], ARGV[1]) then return 0 end
remove(ARGV[2])
return 1
"""
)

ITEM = (
    _SHARED
    + """
local found = redis.call('HGETALL', having(ARGV[2]))
for i = 1, #found, 2 do
    local id, field = found[i], found[i + 1]
    if is_there(id, ARGV[1]) or is_conversation(id, ARGV[1]) then
        return redis.call('HGET', record(id), field)
    end
end
return false
"""
)
