#!lua flags=no-writes
-- The heads of those journals that are there and match.
--
-- KEYS the journals
-- ARGV names and values, all of which must match: status, label:NAME
-- Answers with the time, and for each key with its head as it is stored, or nothing.

local now = clock()

local function matches(head)
  for i = 1, #ARGV, 2 do
    local value = head.status
    if ARGV[i] ~= 'status' then
      value = (head.labels or {})[string.sub(ARGV[i], 7)]
    end
    if value ~= ARGV[i + 1] then
      return false
    end
  end
  return true
end

local answer = {now}
for i, key in ipairs(KEYS) do
  local stored = redis.call('HGET', key, 'head')
  local head = stored and cmsgpack.unpack(stored)
  answer[i + 1] = head and exists(head, now) and matches(head) and stored
end
return answer
