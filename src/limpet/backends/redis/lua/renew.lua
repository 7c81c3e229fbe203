#!lua flags=allow-oom
-- Move the end of the lease.
--
-- ARGV 5 epoch  6 microseconds from now; none to end it
-- Answers done EPOCH UNTIL, or fenced.

local now = clock()
local head = load(now)
local answer = done_before(head, now)
if answer then
  return answer
end
if head.epoch ~= tonumber(ARGV[5]) then
  return {'fenced'}
end
head['until'] = now + ARGV[6]
return done(head, now, nil, 'done', head.epoch, head['until'])
