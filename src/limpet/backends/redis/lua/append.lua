#!lua
-- Add one record, or only change attributes (count 0), as `Backend.append` has it.
--
-- ARGV 5 count  6 body; then names and values of what else was asked: id, expect, epoch, status,
--      label:NAME, ttl, default_ttl; at, created, floor of a copy; no-status, no-label:NAME, no-ttl;
--      and with all three keys name and kind, the members of index and kinds.
-- Answers done SEQ AT, known SEQ AT, fenced, conflict SEQ, or absent: call again with all keys.

local now = clock()
local head = load(now)
local answer = done_before(head, now)
if answer then
  return answer
end
local count = tonumber(ARGV[5])
local asked = {}
for i = 7, #ARGV, 2 do
  asked[ARGV[i]] = ARGV[i + 1]
end

-- Conditions, in the order of the contract.
if asked.id then
  local seq = redis.call('HGET', KEYS[1], 'by:' .. asked.id)
  if seq then
    local at = struct.unpack('>I8', redis.call('HGET', KEYS[1], seq))
    return done(head, now, nil, 'known', tonumber(seq), at)
  end
end
if asked.epoch and head.epoch ~= tonumber(asked.epoch) then
  return {'fenced'}
end
if asked.expect and tonumber(asked.expect) ~= (head.seq or 0) then
  return {'conflict', head.seq or 0}
end
if count == 0 and not head.seq and not head.epoch then
  return {'done', 0, now}
end

-- A journal that begins is in the index from then on.
local at = tonumber(asked.at) or now
if asked.ttl or asked['no-ttl'] then
  head.ttl = tonumber(asked.ttl)
elseif not head.seq then
  head.ttl = tonumber(asked.default_ttl)
end
if not head.seq and count > 0 then
  if not KEYS[2] then
    return {'absent'}
  end
  redis.call('ZADD', KEYS[2], 0, asked.name)
  redis.call('SADD', KEYS[3], asked.kind)
  head.floor = tonumber(asked.floor) or 0
  head.created = tonumber(asked.created) or head.created or now
  head.updated = tonumber(asked.created) or now
  head.seq, head.size = head.floor, 0
end

-- The record.
local fields = {}
if count > 0 then
  head.seq = head.seq + count
  head.size = head.size + #ARGV[6]
  head.updated = math.max(at, head.updated) -- a clock may be set back, a journal's times do not
  put(fields, head.seq, struct.pack('>I8I4B', head.updated, count, asked.id and 1 or 0) .. ARGV[6])
  if asked.id then
    put(fields, 'id:' .. head.seq, asked.id)
    put(fields, 'by:' .. asked.id, head.seq)
  end
end

-- The head.
if count > 0 or asked.ttl or asked['no-ttl'] then
  head.expires = head.ttl and at + head.ttl
end
head.status = asked.status or (not asked['no-status'] and head.status or nil)
local labels = head.labels or {}
for name, value in pairs(asked) do
  if string.sub(name, 1, 6) == 'label:' then
    labels[string.sub(name, 7)] = value
  elseif string.sub(name, 1, 9) == 'no-label:' then
    labels[string.sub(name, 10)] = nil
  end
end
head.labels = next(labels) and labels -- an empty table would be stored as a list
return done(head, now, fields, 'done', head.seq or 0, head.updated)
