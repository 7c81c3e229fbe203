-- What the scripts share; it is put behind the first line of each.
--
-- A journal is one hash, so that a call about it is about one key:
--   head        MessagePack: incarnation, seq, first, size, created, updated; where they apply ttl,
--               expires, status, labels, meta, note (in base64), holder, epoch, until; writers.
--               Without a seq there is no journal, only a lease, or what is remembered of calls.
--   NUMBER      the record whose last entry has that number: time (8 bytes), count (4), whether it
--               has an id (1), body
--   id:NUMBER   the id of that record, where its caller gave one
--   by:ID       the number of the record with that id
-- Beside it, for all journals of a shard, and in the same hash slot:
--   index       a sorted set, all scores 0: the ids of the journals of one tenant and kind
--   kinds       a set: the tenants and kinds that have an index
--
-- Every script that writes to a journal is called with
--   KEYS  1 journal; where it may begin or end, 2 index  3 kinds
--   ARGV  1 writer  2 number  3 token  4 microseconds to remember the call; then its own
-- and answers with a word and a few values. Beside those that each script names there is `late`:
-- the writer has made later calls already, and nothing was done.

-- Add one or two values to a list.
local function add(list, a, b)
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
local function exists(head, now)
  return head.seq ~= nil and not expired(head, now)
end

-- The head as it is stored.
local function stored_head(key)
  local stored = redis.call('HGET', key, 'head')
  return stored and cmsgpack.unpack(stored) or {}
end

-- Whether the server keeps the key of the journal until it is told otherwise.
local persistent = false

-- Store the head, and other fields with it. The server frees the key by itself: not before the
-- journal has expired, nor before its last calls are forgotten. A lease without a journal stays for
-- an hour longer: until somebody else takes it, a late holder may write under it.
local function save(head, now, fields)
  redis.call('HSET', KEYS[1], 'head', cmsgpack.pack(head), unpack(fields or {}))
  if head.seq and not head.expires then
    if not persistent then
      redis.call('PERSIST', KEYS[1])
    end
    return
  end
  local free = head.expires or now
  if head['until'] then
    free = math.max(free, head['until'] + (head.seq and 0 or 3600 * 1000000))
  end
  for _, last in pairs(head.writers) do
    free = math.max(free, last[3])
  end
  redis.call('PEXPIREAT', KEYS[1], math.floor(free / 1000) + 1)
end

-- The head, to be changed. A journal that has expired is removed, except for what is remembered of
-- calls.
local function load(now)
  local head = stored_head(KEYS[1])
  head.writers = head.writers or {}
  if expired(head, now) then
    redis.call('UNLINK', KEYS[1])
    head = {writers = head.writers}
    save(head, now)
  end
  persistent = head.seq and not head.expires
  return head
end

-- What to answer without doing anything: this very call was carried out before, and its answer was
-- lost on its way; or it comes late. Of each writer the last call is remembered:
--   {number, token, until when, the answer's word, its values}
local function answered(head, now)
  local last = head.writers[ARGV[1]]
  local number = tonumber(ARGV[2])
  if not last or last[1] < number then
    return nil
  end
  if last[1] == number and last[2] == ARGV[3] then
    save(head, now) -- so that a WAIT behind this call has something to wait for
    return {unpack(last, 4)}
  end
  return {'late'}
end

-- Store the head with this answer to the call, forget the calls whose time has passed, and answer.
local function done(head, now, fields, ...)
  for writer, last in pairs(head.writers) do
    if last[3] <= now then
      head.writers[writer] = nil
    end
  end
  head.writers[ARGV[1]] = {tonumber(ARGV[2]), ARGV[3], now + ARGV[4], ...}
  save(head, now, fields)
  return {...}
end
