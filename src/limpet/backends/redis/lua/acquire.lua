#!lua
-- Take the lease.
--
-- ARGV 5 holder  6 microseconds  7 the epoch that may be taken over, or ''
-- Answers done EPOCH UNTIL, or held EPOCH UNTIL HOLDER.

local now = clock()
local head = load(now)
local answer = answered(head, now)
if answer then
  return answer
end
if (head['until'] or 0) > now and head.epoch ~= tonumber(ARGV[7]) then
  return {'held', head.epoch, head['until'], head.holder}
end
-- Over the last one, and over those that went with a journal: time does not go back.
head.epoch = math.max((head.epoch or 0) + 1, now)
head['until'] = now + ARGV[6]
head.holder = ARGV[5]
head.created = head.created or now
head.updated = head.updated or now
return done(head, now, nil, 'done', head.epoch, head['until'])
