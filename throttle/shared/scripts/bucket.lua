-- What both buckets are: an anchor, and what was spent since. (throttle/algorithms/bucket.py)
--
-- `anchor` is the last instant at which the bucket was full, `spent - carry` the exact sum of the
-- costs since (Kahan 1965). With reservations the anchor may lie ahead of now.

local rate, capacity = tonumber(WORDS[3]), tonumber(WORDS[4])

A.fields = {'anchor', 'spent', 'carry'}
A.ceiling = capacity

function A.new(s)
  s.anchor, s.spent, s.carry = 0, 0, 0
end

local function full_at(s)
  local spent = s.spent - s.carry
  if spent <= 0 or rate == huge then return s.anchor end
  return rate > 0 and s.anchor + spent / rate or huge
end

function A.ready(s, now, cost)
  if rate == huge then return now end
  if cost > capacity then return huge end
  local over = s.spent - s.carry + cost - capacity
  if rate == 0 then return over <= 0 and now or huge end
  local ready = s.anchor + over / rate
  return ready <= now + tolerance(now) and now or ready
end

function A.take(s, at, cost)
  if rate == huge then return end
  if full_at(s) <= at then
    s.anchor, s.spent, s.carry = at, cost, 0
    return
  end
  local exact = cost - s.carry
  local spent = s.spent + exact
  s.carry = (spent - s.spent) - exact
  s.spent = spent
end

-- The anchor may have come with the spending: the instant at which the bucket will be full moves
-- back by what the cost takes to come in, whichever of the two numbers holds it.
function A.undo(s, cost)
  local spent = s.spent - s.carry - cost
  if spent < 0 and rate > 0 and rate < huge then s.anchor = s.anchor + spent / rate end
  s.spent, s.carry = max(0, spent), 0
end

function A.refund(s, here, now, cost)
  now = max(now, s.anchor)
  if full_at(s) <= now then return end
  local spent = s.spent - s.carry - cost
  if spent <= rate * (now - s.anchor) then
    s.anchor, spent = now, 0
  end
  s.spent, s.carry = spent, 0
end

function A.available(s, now)
  if full_at(s) <= now + tolerance(now) then return capacity end
  local level = capacity - s.spent + s.carry + rate * (now - s.anchor)
  local whole = math.floor(level + 0.5)
  if level < whole and A.ready(s, now, whole) <= now then return whole end
  return level
end

A.fresh = full_at

function A.shift(s, delta)
  s.anchor = s.anchor + delta
end
