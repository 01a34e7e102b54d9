-- Sliding window counter: two counts in place of a log. (throttle/algorithms/sliding_window_counter.py)
--
-- Windows count from `origin`; `previous` and `current` belong to those number `index - 1` and
-- `index`, which with reservations may lie ahead of now. `span` is the window they were counted in:
-- a process with another one starts its count of windows from the one that is current.

local limit, window = tonumber(WORDS[3]), tonumber(WORDS[4])

A.fields = {'origin', 'index', 'previous', 'current', 'span'}
A.ceiling = limit

function A.new(s)
  s.origin, s.index, s.previous, s.current, s.span = 0, 0, 0, 0, window
end

local function rolled(s, now)
  if s.span ~= window then
    s.origin, s.index, s.span = s.origin + s.index * s.span, 0, window
  end
  local empty = s.previous == 0 and s.current == 0
  if now < s.origin + (s.index + 1) * window or empty then
    return s.index, s.previous, s.current
  end
  if now < s.origin + (s.index + 2) * window then return s.index + 1, s.current, 0 end
  return max(s.index + 2, math.floor((now - s.origin) / window)), 0, 0
end

function A.ready(s, now, cost)
  local free = limit - cost
  if free < 0 then return huge end
  local index, previous, current = rolled(s, now)
  local ready
  if current > free then
    ready = s.origin + (index + 2) * window - free * window / current
  elseif previous > free - current then
    ready = s.origin + (index + 1) * window - (free - current) * window / previous
  else
    ready = now
  end
  if previous > 0 or current > 0 then
    -- Counts of a window ahead say nothing of the time before it.
    ready = max(ready, s.origin + index * window)
  end
  return ready <= now + tolerance(now) and now or ready
end

A.departs = A.ready

function A.take(s, at, cost)
  local index, previous, current = rolled(s, at)
  if previous == 0 and current == 0 then
    s.origin, index = at, 0
  end
  s.index, s.previous, s.current = index, previous, current + cost
end

function A.undo(s, cost)
  s.current = max(0, s.current - cost)
end

function A.refund(s, here, now, cost)
  s.index, s.previous, s.current = rolled(s, now)
  local given = min(cost, s.current)
  s.current = s.current - given
  s.previous = max(0, s.previous - (cost - given))
end

function A.available(s, now)
  local index, previous, current = rolled(s, now)
  if previous == 0 then return limit - current end
  local left = s.origin + (index + 1) * window - now - tolerance(now)
  return limit - current - previous * min(1, max(0, left / window))
end

function A.fresh(s)
  if s.previous == 0 and s.current == 0 then return 0 end
  return s.origin + (s.index + (s.current > 0 and 2 or 1)) * window
end

function A.shift(s, delta)
  s.origin = s.origin + delta
end
