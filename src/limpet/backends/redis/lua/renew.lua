#!lua flags=allow-oom
-- Move the end of the lease.
--
-- ARGV 5 epoch  6 microseconds from now; 0 to end it
-- Answers done EPOCH UNTIL, or lost.

local now = clock()
local head = load(now)
local answer = answered(head, now)
if answer then
  return answer
end
if head.epoch ~= tonumber(ARGV[5]) then
  return {'lost'}
end
-- One that is ended ended before all times: the clock may be ahead, and be set right later.
head['until'] = tonumber(ARGV[6]) > 0 and now + ARGV[6] or 0
return done(head, now, nil, 'done', head.epoch, head['until'])
