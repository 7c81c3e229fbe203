#!lua flags=allow-oom
-- Remove a journal, whatever there is of it. What is remembered of calls stays for its time: a
-- delete that comes late must not hit the journal that came after.
--
-- ARGV 5 name  6 its member of the index  7 kind  8 the index's member of the kinds
-- Answers done 1 0, or done 0 0 if it was not there.

local now = clock()
local head = load(now)
local answer = done_before(head, now)
if answer then
  return answer
end
redis.call('ZREM', KEYS[2], ARGV[6])
if redis.call('EXISTS', KEYS[2]) == 0 then
  redis.call('SREM', KEYS[3], ARGV[8])
end
if not head.seq and not head.epoch then
  return {'done', 0, 0}
end
redis.call('UNLINK', KEYS[1])
return done({writers = head.writers}, now, nil, 'done', head.seq and 1 or 0, 0)
