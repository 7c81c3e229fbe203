#!lua flags=no-writes
-- The records that hold entries numbered over `after`, up to and with `upto`, in portions.
--
-- KEYS 1 journal
-- ARGV 1 after  2 upto, or ''  3 how many records at most  4 forward or backward
--      5 bytes after which to stop: other callers wait meanwhile
-- Answers with the journal's incarnation ('' where there is none), whether there may be more,
-- numbers and records in turn, numbers and ids in turn.

local head = stored_head(KEYS[1])
if not exists(head, clock()) then
  return {'', 0, {}, {}}
end
local first = math.max(tonumber(ARGV[1]) + 1, head.first)
local last = math.min(tonumber(ARGV[2]) or head.seq, head.seq)
local most, room = tonumber(ARGV[3]), tonumber(ARGV[5])
local records, ids = {}, {}
if last < head.first or first > head.seq or most < 1 then
  return {head.incarnation, 0, records, ids}
end

-- The record that holds `last` ends there or behind it. If it is missing, another one does.
local wanted = last
while redis.call('HEXISTS', KEYS[1], last) == 0 and last < head.seq do
  last = last + 1
end
if last > wanted then
  local record = redis.call('HGET', KEYS[1], last)
  if record and last - struct.unpack('>I4', record, 9) >= wanted then
    last = wanted
  end
end

-- Numbers at which no record ends are asked for in vain; that costs less than to know them.
local step = math.ceil(room * (head.seq - head.first + 1) / (head.size + 1))
step = math.max(1, math.min(step, 200, 2 * most))
local at, to, by = first, last, 1
if ARGV[4] == 'backward' then
  at, to, by = last, first, -1
end
while (to - at) * by >= 0 do
  local numbers = {}
  for i = 0, math.min(step - 1, (to - at) * by) do
    add(numbers, at + i * by)
  end
  for i, record in ipairs(redis.call('HMGET', KEYS[1], unpack(numbers))) do
    if record then
      add(records, numbers[i], record)
      room = room - #record
      if string.byte(record, 13) == 1 then
        add(ids, numbers[i], redis.call('HGET', KEYS[1], 'id:' .. numbers[i]))
      end
      if #records == 2 * most or room <= 0 then
        return {head.incarnation, numbers[i] ~= to and 1 or 0, records, ids}
      end
    end
  end
  at = at + step * by
end
return {head.incarnation, 0, records, ids}
