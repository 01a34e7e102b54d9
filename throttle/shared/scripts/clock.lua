-- What time it is, and how exactly a double can tell. (throttle/clock.py says the same in Python.)
--
-- The server's TIME decides, so a client with a wrong clock changes nothing. A limiter counts on an
-- axis of its own, in seconds: 0 is the server's microsecond `zero`, and `at` is the latest one it
-- has seen. When the server's clock steps back, `zero` steps with it: time stands still for that
-- one call and goes on from there, whatever the clock says. A step forward is idle time, which a
-- limiter cannot tell from any other: worth one burst.

local huge = math.huge
local max, min = math.max, math.min

-- One argument holds all words: unpacked here, they cost a client less than one by one.
local WORDS = {}
for word in string.gmatch(ARGV[1], '%S+') do WORDS[#WORDS + 1] = word end

local micros
if WORDS[2] == '-' then
  local time = redis.call('TIME')
  micros = time[1] * 1000000 + time[2]
else
  micros = tonumber(WORDS[2])
end

local function tolerance(instant)
  if math.abs(instant) < 1048576 then return 0.5e-9 end
  local _, exponent = math.frexp(instant)
  return math.ldexp(1, exponent - 52)
end

-- An algorithm fills this table: `fields` (names of its numbers), `ceiling` (the largest cost that
-- ever fits), and functions of the state `s`:
--   ready(s, now, cost)    the earliest instant from `now` on at which a cost fits; huge: never
--   departs(s, now, cost)  the same for a caller who waits
--   take(s, at, cost)      spend at an instant, which may lie ahead: a reservation
--   undo(s, cost)          take back the last spending of all
--   refund(s, here, now, cost)  give back; `here` is the present, `now` the end of the line
--   available(s, now), fresh(s), shift(s, delta), new(s)
-- and, where the state is more than `fields`: keep(s, now) before and store(s) after they are written.
local A = {}
