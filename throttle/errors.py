"""Everything that can go wrong, as one tree.

    ThrottleError
    ├── CostTooLarge    (ValueError)    can never fit, however long one waits
    ├── WaitTimeout     (TimeoutError)  the wait would be longer than `timeout`; nothing was taken
    ├── RateLimited                     refused, and the caller chose an error over waiting
    ├── KeysFull                        a `Keyed` remembers `max_keys` keys, all of them in use
    ├── QueueFull                       `max_waiting` callers stand in line already
    ├── ServerThrottled                 a server said stop, and the retries are over
    ├── RobotsDisallowed (PermissionError)  robots.txt does not let this crawler fetch the URL
    ├── FileLocked      (TimeoutError)  another process keeps the lock of a `FileLimiter`'s file
    └── FileRefused     (ValueError)    what lies at the path of a `FileLimiter` is not its state

What others raise passes through as it is: aiohttp's and httpx's errors, redis-py's where the server
of a `RedisLimiter` does not answer, the system's OSError.

Each of these is also the standard exception a caller would expect, and carries its data as
attributes, so that nobody has to read a number out of a text. Errors pickle, so that they cross
process pools.
"""

from __future__ import annotations

from math import inf
from typing import Any

__all__ = [
    "CostTooLarge",
    "FileLocked",
    "FileRefused",
    "KeysFull",
    "QueueFull",
    "RateLimited",
    "RobotsDisallowed",
    "ServerThrottled",
    "ThrottleError",
    "WaitTimeout",
]


class ThrottleError(Exception):
    """The root: catches whatever this library raises on purpose."""

    def __reduce__(self) -> tuple[Any, ...]:
        # The default rebuilds from `args`, which are the message only; the data live in __dict__.
        return (_rebuild, (type(self), self.args, self.__dict__))


def _rebuild(kind: type[ThrottleError], args: tuple[Any, ...], data: dict[str, Any]) -> Any:
    error = kind.__new__(kind, *args)
    error.args = args
    error.__dict__.update(data)
    return error


class CostTooLarge(ThrottleError, ValueError):
    """The cost can never fit: above the capacity, or nothing is ever earned.

    `cost` – what was asked, in permits; `capacity` – the most that can ever fit (inf: not known).
    """

    def __init__(self, cost: object, capacity: object) -> None:
        known = "" if capacity == inf else f": at most {capacity!r} ever do"
        super().__init__(f"cost={cost!r} can never fit{known}")
        self.cost = cost
        self.capacity = capacity


class WaitTimeout(ThrottleError, TimeoutError):
    """The wait would be longer than allowed. Nothing was taken and nobody slept for it.

    `delay` – the wait it would have taken, in seconds (inf: nobody can tell, as for a slot that is
    lent, or in a pause without an end); `timeout` – what was allowed.
    """

    def __init__(self, delay: float, timeout: float) -> None:
        known = f"the wait would be {delay:.6g} s"
        wait = known if delay < inf else "nobody can tell how long the wait would be"
        super().__init__(f"{wait}, timeout={timeout:.6g}")
        self.delay = delay
        self.timeout = timeout


class RateLimited(ThrottleError):
    """Refused at once, because the caller asked for an error instead of a wait.

    `retry_after` – seconds until the same call would be let in; inf: nobody can tell.
    """

    def __init__(self, retry_after: float) -> None:
        when = (
            f"retry after {retry_after:.6g} s"
            if retry_after < inf
            else "nobody can tell until when"
        )
        super().__init__(f"limit reached; {when}")
        self.retry_after = retry_after


class QueueFull(ThrottleError):
    """As many callers stand in line as are allowed. `max_waiting` – how many that is."""

    def __init__(self, max_waiting: int) -> None:
        super().__init__(f"max_waiting={max_waiting} callers are waiting already")
        self.max_waiting = max_waiting


class KeysFull(ThrottleError):
    """As many keys as `max_keys` allows are in use, and none of them may be forgotten yet.

    `max_keys` – that number.
    """

    def __init__(self, max_keys: int) -> None:
        super().__init__(f"max_keys={max_keys} keys are in use already, and none can be forgotten")
        self.max_keys = max_keys


class ServerThrottled(ThrottleError):
    """A server asked for a pause, and the retries are over, or the pause is too long to wait.

    `retry_after` – seconds the server asks for, counted from the receipt of its answer;
    `retry_at` – the same as an instant of the wall clock (epoch seconds);
    `status` – of the last answer; `origin` – who said it. Unknown values are None.
    """

    def __init__(
        self,
        message: str,
        *,
        retry_after: float | None = None,
        retry_at: float | None = None,
        status: int | None = None,
        origin: str | None = None,
    ) -> None:
        super().__init__(message)
        self.retry_after = retry_after
        self.retry_at = retry_at
        self.status = status
        self.origin = origin


class RobotsDisallowed(ThrottleError, PermissionError):
    """A site's robots.txt does not let this crawler fetch a URL. Nothing was sent.

    `url` – without its query; `user_agent` – the product token the rules were read for; `reason` –
    why, if it is not a rule: a robots.txt that cannot be had forbids everything.
    """

    def __init__(self, url: str, user_agent: str, reason: str | None = None) -> None:
        why = "its robots.txt says so" if reason is None else reason
        super().__init__(f"{user_agent} may not fetch {url}: {why}")
        self.url = url
        self.user_agent = user_agent
        self.reason = reason


class FileLocked(ThrottleError, TimeoutError):
    """Another process keeps the lock of the file: it was stopped or is stuck. Nothing was taken.

    `path` – which file; `seconds` – how long it was tried for.
    """

    def __init__(self, path: str, seconds: float) -> None:
        super().__init__(
            f"{path!r} has been locked by another process for {seconds:.3g} s (is it stopped?)"
        )
        self.path = path
        self.seconds = seconds


class FileRefused(ThrottleError, ValueError):
    """The file is not the state of this limiter; it was left as it is. `path` – which file."""

    def __init__(self, path: str, why: str) -> None:
        super().__init__(f"{path!r} {why}; the file was not touched")
        self.path = path
