#!lua flags=allow-oom
-- Drop records all of whose entries are numbered under `before`, in portions.
--
-- ARGV 5 before  6 how many numbers to look at: other callers wait meanwhile
-- Answers done ENTRIES MORE.

local now = clock()
local head = load(now)
local answer = done_before(head, now)
if answer then
  return answer
end
local before = head.floor or 0
local last = math.min(tonumber(ARGV[5]) - 1, head.seq or 0)
local stop = before + tonumber(ARGV[6])
local number, gone = before, {}
-- A record that is longer than the portion is dropped whole all the same.
while number < last and (number < stop or head.floor == before) do
  number = number + 1
  local length = redis.call('HSTRLEN', KEYS[1], number)
  if length > 0 then
    head.floor, head.size = number, head.size - (length - 13)
    put(gone, number)
    local id = redis.call('HGET', KEYS[1], 'id:' .. number)
    if id then
      put(gone, 'id:' .. number, 'by:' .. id)
    end
  end
end
if #gone == 0 then
  return {'done', 0, 0}
end
for i = 1, #gone, 1000 do
  redis.call('HDEL', KEYS[1], unpack(gone, i, math.min(i + 999, #gone)))
end
return done(head, now, nil, 'done', head.floor - before, number < last and 1 or 0)
