-- Every verb of a shared limiter, on top of what an algorithm says. (throttle/limiter.py in Python.)
--
-- State: KEYS[1], doubles one after the other (`fields` tells which; struct is faster than a hash, and
-- one command writes them with their time to live). Beside the clock and what the algorithm keeps:
--   born        the microsecond it was made: tells a state from the one that was lost before it
--   seq, count  number of the last script call that granted, and how many of its grants still stand
--   tail        the instant of the last reservation; nobody goes before it (first come, first served)
--   pause       the instant until which nobody goes
--   ice         equal to `pause` where the state stands still until then, because somebody waits
--   moved       seconds by which all reservations were moved so far, by pauses
--
-- Invariants: a refusal changes nothing but a clock that was ahead; all is written at the end, first
-- what may fail for want of memory; no key is left without a time to live.
--
-- Words: verb, microseconds ('-' asks the server), two parameters, then what the verb needs.
-- Reply: doubles, packed, since a reply would truncate them to integers: now, what is left of the
-- pause, born, moved, seq, whether reservations were taken back, tail; then the answer.

local verb = WORDS[1]
local YEARS = 3.2e11  -- milliseconds; the longest time to live: for a state that is never as new
local SLIP = 0.1      -- seconds a client's view of the line may lie ahead of ours (its network)

local fields = {'at', 'zero', 'born', 'seq', 'count', 'tail', 'pause', 'ice', 'moved'}
for _, field in ipairs(A.fields) do fields[#fields + 1] = field end

local form = '<' .. string.rep('d', #fields)
local s, new, dirty = {}, false, false
local raw = redis.call('GET', KEYS[1])
if raw then
  if #raw ~= 8 * #fields then
    return redis.error_reply('THROTTLE the key holds something else than the state of a limiter')
  end
  local values = {struct.unpack(form, raw)}
  for i, field in ipairs(fields) do s[field] = values[i] end
else
  new = true
end
if new then
  s = {at = micros, zero = micros, born = micros, seq = 0, count = 0, tail = 0, pause = 0, ice = 0, moved = 0}
  A.new(s)
elseif micros < s.at then
  s.zero, s.at, dirty = s.zero - (s.at - micros), micros, true
end

local now = (micros - s.zero) / 1000000
local here = now  -- the present as the state sees it: the end of a pause in which it stands still
local frozen = s.pause > now and s.ice == s.pause
if frozen then here = s.pause end

local function freeze(delta)
  A.shift(s, delta)
  s.ice, here, frozen = s.pause, s.pause, true
end

-- For one who never waits: true, or false and nothing changed.
local function try(cost)
  if s.pause > now or s.tail > now + tolerance(now) then return false end
  if A.ready(s, now, cost) > now then return false end
  A.take(s, now, cost)
  return true
end

-- For one who waits no longer than `longest`: the instant, and whether it was taken.
local function reserve(cost, longest)
  local thaw = 0
  if s.pause > now and not frozen then thaw = s.pause - now end
  local at = A.departs(s, max(here, s.tail), cost) + thaw
  if at == huge or at - now > longest + 0.5e-9 then return at, false end
  if thaw > 0 then freeze(thaw) end
  A.take(s, at, cost)
  s.tail = max(s.tail, at)
  return at, true
end

-- A process tells how long its own line is. If ours is much shorter, the state was lost, or the
-- clock leapt: those who wait hold their places all the same.
local function claim(ahead, held, born, moved)
  if born == s.born then ahead = ahead + s.moved - moved end
  if ahead <= SLIP or s.tail >= now + ahead - SLIP then return end
  s.tail = now + ahead
  A.take(s, s.tail, min(held, A.ceiling))
  if s.pause > now and not frozen then freeze(0) end
  s.count, dirty = 0, true
end

local answer, undone, tail = {}, 0, s.tail

if verb == 'go' then
  claim(tonumber(WORDS[5]), tonumber(WORDS[6]), tonumber(WORDS[7]), tonumber(WORDS[8]))
  local undos, born, moved = tonumber(WORDS[9]), tonumber(WORDS[7]), tonumber(WORDS[8])
  if undos > 0 and born == s.born and tonumber(WORDS[10]) == s.seq and tonumber(WORDS[11]) == s.count then
    for i = 1, undos do A.undo(s, tonumber(WORDS[12 + i])) end
    s.count, s.tail = s.count - undos, tonumber(WORDS[12]) + s.moved - moved
    undone, dirty = 1, true
  end
  tail = s.tail
  local granted = 0
  for i = 13 + undos, #WORDS, 4 do
    local waits, cost = WORDS[i] == 'w', tonumber(WORDS[i + 1])
    local longest, callers = tonumber(WORDS[i + 2]), tonumber(WORDS[i + 3])
    if waits then
      -- How many are let in and when each; and when the next would have been, and all after him.
      local head, let = #answer + 1, 0
      answer[head] = 0
      for _ = 1, callers do
        local at, taken = reserve(cost, longest)
        answer[#answer + 1] = at
        if not taken then break end
        let = let + 1
      end
      answer[head], granted = let, granted + let
    else
      local let = 0
      while let < callers and try(cost) do let = let + 1 end
      granted = granted + let
      answer[#answer + 1] = let
    end
  end
  if granted > 0 then
    s.seq, s.count, dirty = s.seq + 1, granted, true
  end
elseif verb == 'delay' then
  local from = max(here, s.tail)
  if not frozen then from = max(from, s.pause) end
  -- Up to a whole microsecond, which is all the clock can tell: one wait is then enough.
  local wait = A.ready(s, from, tonumber(WORDS[5])) - now
  answer[1] = wait == huge and huge or math.ceil(wait * 1000000 - 0.0005) / 1000000
elseif verb == 'available' then
  local shut = s.pause > now or s.tail > now + tolerance(now)
  answer[1] = shut and 0 or max(0, A.available(s, now))
elseif verb == 'charge' then
  A.take(s, max(here, s.tail), tonumber(WORDS[5]))
  s.seq, s.count, dirty = s.seq + 1, 0, true
elseif verb == 'refund' then
  A.refund(s, here, max(here, s.tail), tonumber(WORDS[5]))
  s.seq, s.count, dirty = s.seq + 1, 0, true
elseif verb == 'pause' then
  local until_, before = now + tonumber(WORDS[5]), max(now, s.pause)
  if until_ > before then
    s.pause, dirty = until_, true
    if frozen or s.tail > now then
      local delta = until_ - before
      freeze(delta)
      s.tail, s.moved = s.tail + delta, s.moved + delta
    end
  end
elseif verb == 'resume' then
  if frozen then
    local delta = now - s.pause
    freeze(delta)
    s.tail, s.moved = s.tail + delta, s.moved + delta
  end
  s.pause, s.ice, dirty = 0, 0, not new
elseif verb == 'reset' then
  redis.call('DEL', unpack(KEYS))
  new, dirty = true, false
end

if dirty or not new then
  local life = max(0, A.fresh(s) - now, s.tail - now, s.pause - now)
  local ttl = string.format('%.0f', min(YEARS, math.ceil(life * 1000) + 1000))
  if dirty then
    s.at = micros
    if A.keep then A.keep(s, now) end
    local values = {}
    for i, field in ipairs(fields) do values[i] = s[field] end
    redis.call('SET', KEYS[1], struct.pack(form, unpack(values)), 'PX', ttl)
    if A.store then A.store(s) end
  end
  for i, key in ipairs(KEYS) do
    if (dirty and i > 1) or redis.call('PTTL', key) == -1 then redis.call('PEXPIRE', key, ttl) end
  end
end

return struct.pack(
  '<ddddddd' .. string.rep('d', #answer),
  now, max(0, s.pause - now), s.born, s.moved, s.seq, undone, tail, unpack(answer)
)
