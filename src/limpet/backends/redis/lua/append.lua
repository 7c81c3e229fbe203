#!lua
-- Add one record, or only change attributes (count 0). The rules are those of `decide` in decide.py.
--
-- ARGV 5 count  6 body  7 how many records come before this one, then count and body of each; then
--      names and values of what else the request has: id, expect,
--      expect-incarnation, epoch, ttl, no-ttl, default-ttl, status, no-status, meta, no-meta,
--      note, label:NAME, no-label:NAME; of a copy at, created, first, origin (its incarnation);
--      and with all three keys, for a journal that begins: index and kinds (the members that are to
--      be in them), incarnation.
-- Answers done SEQ AT INCARNATION, known SEQ AT INCARNATION, lost, conflict SEQ; or absent: the
-- journal begins, call again with all three keys.

local now = clock()
local head = load(now)
local answer = answered(head, now)
if answer then
  return answer
end
local count = tonumber(ARGV[5])
local request = {}
local earlier = 2 * tonumber(ARGV[7])
for i = 8 + earlier, #ARGV, 2 do
  request[ARGV[i]] = ARGV[i + 1]
end

-- Conditions, in the order of the contract.
if request.id then
  local seq = redis.call('HGET', KEYS[1], 'by:' .. request.id)
  if seq then
    local at = struct.unpack('>I8', redis.call('HGET', KEYS[1], seq))
    return done(head, now, nil, 'known', tonumber(seq), at, head.incarnation)
  end
end
if request.epoch and head.epoch ~= tonumber(request.epoch) then
  return {'lost'}
end
if request.expect then
  local seq, incarnation = head.seq or 0, request['expect-incarnation']
  local other = seq > 0 and incarnation and incarnation ~= head.incarnation
  if tonumber(request.expect) ~= seq or other then
    return {'conflict', seq}
  end
end
if count == 0 and not head.seq and not head.epoch then
  return done(head, now, nil, 'done', 0, now, '')
end

-- The beginning: until now there was at most a lease. From here on it is in the index.
if count > 0 and not head.seq then
  if not KEYS[2] then
    return {'absent'}
  end
  redis.call('ZADD', KEYS[2], 0, request.index)
  redis.call('SADD', KEYS[3], request.kinds)
  head.incarnation = request.origin or request.incarnation
  head.first = tonumber(request.first) or 1
  head.seq, head.size = head.first - 1, 0
  head.created = tonumber(request.created) or now -- not when the lease was taken
  head.updated = head.created
  head.ttl = tonumber(request['default-ttl'])
end

-- Attributes.
local at = math.max(tonumber(request.at) or now, head.updated) -- a journal's times do not go back
if request.ttl or request['no-ttl'] then
  head.ttl = tonumber(request.ttl)
end
if count > 0 or request.ttl or request['no-ttl'] then
  head.expires = head.ttl and at + head.ttl
end
head.status = request.status or (not request['no-status'] and head.status or nil)
head.meta = request.meta or (not request['no-meta'] and head.meta or nil)
local labels = head.labels or {}
for name, value in pairs(request) do
  if string.sub(name, 1, 6) == 'label:' then
    labels[string.sub(name, 7)] = value
  elseif string.sub(name, 1, 9) == 'no-label:' then
    labels[string.sub(name, 10)] = nil
  end
end
head.labels = next(labels) and labels -- an empty table would be stored as a list

-- The records.
local fields = {}
local function record(count, body, has_id)
  head.seq = head.seq + count
  head.size = head.size + #body
  add(fields, head.seq, struct.pack('>I8I4B', at, count, has_id) .. body)
end
if count > 0 then
  for i = 8, 6 + earlier, 2 do
    record(tonumber(ARGV[i]), ARGV[i + 1], 0)
  end
  record(count, ARGV[6], request.id and 1 or 0)
  head.updated = at
  head.note = request.note
  if request.id then
    add(fields, 'id:' .. head.seq, request.id)
    add(fields, 'by:' .. request.id, head.seq)
  end
end
return done(head, now, fields, 'done', head.seq or 0, head.updated, head.incarnation or '')
