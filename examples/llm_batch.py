"""A batch of prompts under two limits at once: requests a minute and tokens a minute.

What a call costs in tokens is known only after the answer. So an estimate is taken before it, and
settled after it: the rest of too high an estimate is given back, what was missing is charged. The
model is a stand-in, and time is virtual: ten minutes of batch run in a moment.
"""

from __future__ import annotations

import asyncio
import random

from throttle import SlidingWindowLog, TokenBucket
from throttle.testing import virtual_time

REQUESTS = SlidingWindowLog.from_rate("60/minute")
TOKENS = TokenBucket("90000/minute", 90_000)
LIMIT = REQUESTS & TOKENS


async def model(prompt: str) -> tuple[str, int]:
    """A stand-in: an answer, and the tokens it took."""
    await asyncio.sleep(0.8)
    return f"answer to {prompt}", 500 + random.Random(prompt).randrange(3000)


async def ask(prompt: str) -> int:
    """One prompt; the tokens it took."""
    estimate = 2000
    await LIMIT.acquire((1, estimate))
    _, used = await model(prompt)
    if used > estimate:
        TOKENS.charge(used - estimate)
    else:
        TOKENS.refund(estimate - used)
    return used


async def batch(count: int) -> None:
    loop = asyncio.get_running_loop()
    used = await asyncio.gather(*(ask(f"prompt {number}") for number in range(count)))
    minutes = loop.time() / 60
    allowed = 90_000 + 90_000 * minutes
    print(f"{count} prompts, {sum(used)} tokens in {minutes:.1f} minutes")
    print(f"tokens allowed by then: {allowed:.0f}, used {sum(used) / allowed:.0%} of them")
    assert sum(used) <= allowed


if __name__ == "__main__":
    with virtual_time() as time:
        time.run(batch, 500)
