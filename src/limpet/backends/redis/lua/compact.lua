#!lua flags=allow-oom
-- Drop records all of whose entries are numbered under `before`, in portions.
--
-- ARGV 5 before  6 how many numbers to look at: other callers wait meanwhile
-- Answers done ENTRIES MORE.

local now = clock()
local head = load(now)
local answer = answered(head, now)
if answer then
  return answer
end
local first = head.first or 1
local last = math.min(tonumber(ARGV[5]) - 1, head.seq or 0)
local number, stop = first - 1, first - 1 + tonumber(ARGV[6])
local gone = {}
-- A record that is longer than the portion is dropped whole all the same.
while number < last and (number < stop or head.first == first) do
  number = number + 1
  local length = redis.call('HSTRLEN', KEYS[1], number)
  if length > 0 then
    head.first, head.size = number + 1, head.size - (length - 13)
    add(gone, number)
    local id = redis.call('HGET', KEYS[1], 'id:' .. number)
    if id then
      add(gone, 'id:' .. number, 'by:' .. id)
    end
  end
end
for i = 1, #gone, 1000 do
  redis.call('HDEL', KEYS[1], unpack(gone, i, math.min(i + 999, #gone)))
end
local entries = (head.first or 1) - first
return done(head, now, nil, 'done', entries, entries > 0 and number < last and 1 or 0)
