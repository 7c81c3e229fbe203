#!lua flags=no-writes
-- The records that hold entries numbered over `after`, up to and with `upto`, in portions.
--
-- KEYS 1 journal
-- ARGV 1 after  2 upto, or ''  3 how many records at most  4 forward or backward
--      5 bytes after which to stop: other callers wait meanwhile
-- Answers with when the journal was created (0 for one that is not there), whether there may be
-- more, numbers and records in turn, numbers and ids in turn.

local head = peek(KEYS[1])
if not is_there(head, clock()) then
  return {0, 0, {}, {}}
end
local seq, floor = head.seq, head.floor
local first = math.max(tonumber(ARGV[1]), floor) + 1
local last = math.min(tonumber(ARGV[2]) or seq, seq)
local most, room = tonumber(ARGV[3]), tonumber(ARGV[5])
local records, ids = {}, {}
if last <= floor or first > seq or most < 1 then
  return {head.created, 0, records, ids}
end

-- The record that holds `last` ends there or behind it.
while redis.call('HEXISTS', KEYS[1], last) == 0 and last < seq do
  last = last + 1
end

-- Numbers at which no record ends are asked for in vain; that costs less than to know them.
local step = math.ceil(room * (seq - floor) / (head.size + 1))
step = math.max(1, math.min(step, 200, 2 * most))
local at, to, by = first, last, 1
if ARGV[4] == 'backward' then
  at, to, by = last, first, -1
end
while (to - at) * by >= 0 do
  local asked = {}
  for i = 0, math.min(step - 1, (to - at) * by) do
    put(asked, at + i * by)
  end
  for i, record in ipairs(redis.call('HMGET', KEYS[1], unpack(asked))) do
    if record then
      put(records, asked[i], record)
      room = room - #record
      if string.byte(record, 13) == 1 then
        put(ids, asked[i], redis.call('HGET', KEYS[1], 'id:' .. asked[i]))
      end
      if #records == 2 * most or room <= 0 then
        return {head.created, asked[i] ~= to and 1 or 0, records, ids}
      end
    end
  end
  at = at + step * by
end
return {head.created, 0, records, ids}
