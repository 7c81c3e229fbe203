#!lua flags=no-writes
-- The heads of those journals that are there and as they are wanted.
--
-- KEYS the journals
-- ARGV names and values, all of which must be so: status, label:NAME
-- Answers with the time, and for each key with its head as it is stored, or nothing.

local now = clock()

local function wanted(head)
  if not is_there(head, now) then
    return false
  end
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
  answer[i + 1] = stored and wanted(cmsgpack.unpack(stored)) and stored
end
return answer
