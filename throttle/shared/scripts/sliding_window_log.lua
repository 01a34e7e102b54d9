-- Sliding window log: an entry a spending, (instant, running sum). (throttle/algorithms/sliding_window_log.py)
--
-- The log is the sorted set KEYS[2]: the score is the instant less `offset`, the member the running
-- sum, padded so that entries of one instant sort by it. No two spendings are ever one member, and a
-- cost of 10,000 is one entry. `total` is all that was ever granted, `gone` the part of it that has
-- left the log; both only grow.
--
-- Within one run the log is what lies on the server up to rank `size`, then `added`.

local limit, window = tonumber(WORDS[3]), tonumber(WORDS[4])

A.fields = {'total', 'gone', 'offset'}
A.ceiling = limit

local KEY = KEYS[2]
local stored = redis.call('ZCARD', KEY)
local size, added, wiped = stored, {}, false
local seen = {}

function A.new(s)
  s.total, s.gone, s.offset = 0, 0, 0
  size, wiped = 0, stored > 0
end

-- Entry number i, oldest first, from 0: its instant and the running sum.
local function entry(s, i)
  if i >= size then
    local e = added[i - size + 1]
    return e[1], e[2]
  end
  local e = seen[i]
  if not e then
    local raw = redis.call('ZRANGE', KEY, i, i, 'WITHSCORES')
    e = {tonumber(raw[2]), tonumber(raw[1])}
    seen[i] = e
  end
  return e[1] + s.offset, e[2]
end

-- The running sum up to entry number i, without it.
local function sum_before(s, i)
  return i > 0 and select(2, entry(s, i - 1)) or s.gone
end

-- The first entry, from number `low` on, whose running sum is at least `sum`.
local function first_with(s, sum, low)
  local high = size + #added
  local step = 1
  while low < high do  -- a batch asks for one sum after the other: look near the last answer first
    local middle = low + step - 1
    if middle >= high then break end
    local _, total = entry(s, middle)
    if total >= sum then
      high = middle
      break
    end
    low, step = middle + 1, step * 2
  end
  while low < high do
    local middle = math.floor((low + high) / 2)
    local _, total = entry(s, middle)
    if total >= sum then high = middle else low = middle + 1 end
  end
  return low
end

local hint, hinted = 0, -1

function A.ready(s, now, cost)
  if cost > limit then return huge end
  local must_leave = s.total + cost - limit
  if must_leave <= s.gone then return now end
  if must_leave < hinted then hint = 0 end
  hint, hinted = first_with(s, must_leave, hint), must_leave
  if hint >= size + #added then return now end
  local ready = entry(s, hint) + window
  return ready <= now + tolerance(now) and now or ready
end

A.departs = A.ready

function A.take(s, at, cost)
  local count = size + #added
  if count > 0 then at = max(at, (entry(s, count - 1))) end
  s.total = s.total + cost
  local newest = added[#added]
  if newest and newest[1] == at then
    newest[2] = s.total
  else
    added[#added + 1] = {at, s.total}
  end
end

-- Cut the log back to a running sum. What comes after is lost.
local function cut(s, sum)
  local i = first_with(s, sum + 1, 0)
  if i < size + #added then
    local instant = entry(s, i)
    local before = sum_before(s, i)
    for j = #added, max(1, i - size + 1), -1 do added[j] = nil end
    size = min(size, i)
    if sum > before then added[#added + 1] = {instant, sum} end
  end
  s.total, hint, hinted = sum, 0, -1
end

function A.undo(s, cost)
  cut(s, max(s.gone, s.total - cost))
end

-- The newest permits spent up to now come back; later ones, reserved, keep their instants.
function A.refund(s, here, now, cost)
  local later, sum = {}, s.total
  for i = size + #added - 1, 0, -1 do
    local instant, total = entry(s, i)
    if instant <= here then
      sum = total
      break
    end
    later[#later + 1] = {instant, total}
    sum = s.gone
  end
  local given = min(cost, sum - s.gone)
  local total = s.total - given
  cut(s, sum - given)
  for i = #later, 1, -1 do
    added[#added + 1] = {later[i][1], later[i][2] - given}
  end
  s.total = total
end

-- How many entries have left the window at `now`.
local function expired(s, now)
  return min(size, redis.call('ZCOUNT', KEY, '-inf', now + tolerance(now) - window - s.offset))
end

function A.available(s, now)
  return limit - (s.total - sum_before(s, expired(s, now)))
end

function A.fresh(s)
  local count = size + #added
  return count > 0 and (entry(s, count - 1)) + window or 0
end

function A.shift(s, delta)
  s.offset = s.offset + delta
  for _, e in ipairs(added) do e[1] = e[1] + delta end
end

local leaving = 0

function A.keep(s, now)
  if wiped then return end
  leaving = expired(s, now)
  s.gone = sum_before(s, leaving)
end

function A.store(s)
  if wiped then
    redis.call('DEL', KEY)
  else
    if size < stored then redis.call('ZREMRANGEBYRANK', KEY, size, -1) end
    if leaving > 0 then redis.call('ZREMRANGEBYRANK', KEY, 0, leaving - 1) end
  end
  for first = 1, #added, 500 do
    local flat = {}
    for i = first, min(first + 499, #added) do
      flat[#flat + 1] = added[i][1] - s.offset
      flat[#flat + 1] = string.format('%016.0f', added[i][2])
    end
    redis.call('ZADD', KEY, unpack(flat))
  end
end
