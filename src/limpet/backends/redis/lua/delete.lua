#!lua flags=allow-oom
-- Remove a journal and its lease. What is remembered of calls stays for its time: a delete that
-- comes late must not hit the journal that came after, whether it found one at first or not.
--
-- ARGV 5 its member of the index  6 the index's member of the kinds; with a condition 7 the number
--      at which it is to be  8 the incarnation, or '' for any
-- Answers done 1, or done 0 if it was not there; conflict SEQ, or held EPOCH UNTIL HOLDER. What was
-- refused is remembered, too: should the call come once more, the lease may have ended.

local now = clock()
local head = load(now)
local answer = answered(head, now)
if answer then
  return answer
end
if ARGV[7] then
  local seq = head.seq or 0
  local other = seq > 0 and ARGV[8] ~= '' and ARGV[8] ~= head.incarnation
  if tonumber(ARGV[7]) ~= seq or other then
    return done(head, now, nil, 'conflict', seq)
  end
  if (head['until'] or 0) > now then
    return done(head, now, nil, 'held', head.epoch, head['until'], head.holder)
  end
end
redis.call('ZREM', KEYS[2], ARGV[5])
if redis.call('EXISTS', KEYS[2]) == 0 then
  redis.call('SREM', KEYS[3], ARGV[6])
end
redis.call('UNLINK', KEYS[1])
return done({writers = head.writers}, now, nil, 'done', head.seq and 1 or 0)
