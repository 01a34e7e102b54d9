-- Leaky bucket: who waits leaves when all that was poured before has leaked out, so that the output
-- of a whole fleet is even. (throttle/algorithms/leaky_bucket.py)

function A.departs(s, now, cost)
  local fits = A.ready(s, now, cost)
  if fits == huge or rate == huge then return fits end
  local dry = full_at(s)
  return dry <= now + tolerance(now) and now or dry
end
