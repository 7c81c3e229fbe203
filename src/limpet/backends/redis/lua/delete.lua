#!lua flags=allow-oom
-- Remove a journal and its lease. What is remembered of calls stays for its time: a delete that
-- comes late must not hit the journal that came after, whether it found one at first or not.
--
-- ARGV 5 its member of the index  6 the index's member of the kinds
-- Answers done 1, or done 0 if it was not there.

local now = clock()
local head = load(now)
local answer = answered(head, now)
if answer then
  return answer
end
redis.call('ZREM', KEYS[2], ARGV[5])
if redis.call('EXISTS', KEYS[2]) == 0 then
  redis.call('SREM', KEYS[3], ARGV[6])
end
redis.call('UNLINK', KEYS[1])
return done({writers = head.writers}, now, nil, 'done', head.seq and 1 or 0)
