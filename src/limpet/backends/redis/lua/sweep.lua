#!lua flags=allow-oom
-- Take journals that are no longer there out of the index. The server frees their room by itself.
--
-- KEYS 1 index  2 kinds, then the journals
-- ARGV 1 the index's member of the kinds  2 how many at most, then the members of the index
-- Answers with how many.

local now = clock()
local gone, most = 0, tonumber(ARGV[2])
for i = 3, #KEYS do
  if gone == most then
    break
  end
  if not exists(stored_head(KEYS[i]), now) then
    gone = gone + redis.call('ZREM', KEYS[1], ARGV[i])
  end
end
if redis.call('EXISTS', KEYS[1]) == 0 then
  redis.call('SREM', KEYS[2], ARGV[1])
end
return gone
