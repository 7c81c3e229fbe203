-- What the scripts share; it is put behind the first line of each.
--
-- A journal is one hash, so that a call about it is about one key:
--   head        MessagePack: seq, floor, size, created, updated; where they apply ttl, expires,
--               status, labels, holder, epoch, until; writers. No seq: there is no journal, only a
--               lease, or what is remembered of calls.
--   NUMBER      the record whose last entry has that number: time (8 bytes), count (4), whether it
--               has an id (1), body
--   id:NUMBER   the id of that record, where its caller gave one
--   by:ID       the number of the record with that id
-- Beside it, for all journals of a shard, and in the same hash slot:
--   index       a sorted set, all scores 0: the ids of the journals of one tenant and kind
--   kinds       a set: the tenants and kinds that have an index
--
-- Every script that writes to a journal is called with
--   KEYS  1 journal; where it may come or go, 2 index  3 kinds
--   ARGV  1 writer  2 number  3 token  4 microseconds to remember it; then its own
-- and answers with a word and up to two numbers.

-- Add one or two values to a list.
local function put(list, a, b)
  list[#list + 1] = a
  list[#list + 1] = b
end

-- Microseconds since 1970 by this server. A double is exact for them until 2255.
local function clock()
  local time = redis.call('TIME')
  return time[1] * 1000000 + time[2]
end

-- Whether a journal has expired; not while it is leased.
local function expired(head, now)
  return head.expires and head.expires <= now and (head['until'] or 0) <= now
end

-- Whether there is a journal.
local function is_there(head, now)
  return head.seq and not expired(head, now)
end

-- The head as it is stored.
local function peek(key)
  local stored = redis.call('HGET', key, 'head')
  return stored and cmsgpack.unpack(stored) or {}
end

-- Store the head, and other fields with it. The server frees the key by itself: not before the
-- journal has expired, nor before its last calls are forgotten. A lease that came to nothing stays
-- for an hour: its holder may be late, and is not fenced before a takeover.
local function save(head, now, fields)
  redis.call('HSET', KEYS[1], 'head', cmsgpack.pack(head), unpack(fields or {}))
  if head.seq and not head.expires then
    redis.call('PERSIST', KEYS[1])
    return
  end
  local free = head.expires or now
  if head['until'] then
    free = math.max(free, head['until'] + (head.seq and 0 or 3600 * 1000000))
  end
  for _, last in pairs(head.writers or {}) do
    free = math.max(free, last.till)
  end
  redis.call('PEXPIREAT', KEYS[1], math.floor(free / 1000) + 1)
end

-- The head; what has expired goes, except for what is remembered of calls.
local function load(now)
  local head = peek(KEYS[1])
  if expired(head, now) then
    redis.call('UNLINK', KEYS[1])
    head = {writers = head.writers}
    save(head, now)
  end
  head.writers = head.writers or {}
  return head
end

-- The answer to this very call, if it was carried out before and the answer was lost on its way.
-- A call with a number lower than its writer's last is one that came too late: the writer has gone
-- on without it.
local function done_before(head, now)
  local last = head.writers[ARGV[1]]
  if not last then
    return nil
  end
  if last.number == tonumber(ARGV[2]) and last.token == ARGV[3] then
    save(head, now) -- so that a WAIT or WAITAOF behind this call has something to wait for
    return {last.word, last.a, last.b}
  end
  if last.number >= tonumber(ARGV[2]) then
    return {'late'}
  end
end

-- Store the head, and with it the answer, for a while: one for each writer.
local function done(head, now, fields, word, a, b)
  for writer, last in pairs(head.writers) do
    if last.till <= now then
      head.writers[writer] = nil
    end
  end
  head.writers[ARGV[1]] =
    {number = tonumber(ARGV[2]), token = ARGV[3], word = word, a = a, b = b, till = now + ARGV[4]}
  save(head, now, fields)
  return {word, a, b}
end
