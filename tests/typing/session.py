"""What checkers make of a ThrottledSession: checked, not run. Each ignore is an error wanted."""

from __future__ import annotations

from typing import assert_type

import aiohttp
from aiohttp import ClientResponse, ClientSession, ClientTimeout

from throttle import Rate, TokenBucket
from throttle.errors import ServerThrottled
from throttle.http.events import Retried, Signalled, Waited
from throttle.http.retry import Retry
from throttle.http.session import ThrottledSession, ThrottleMiddleware


def on_wait(event: Waited) -> None:
    assert_type(event.seconds, float)


def on_retry(event: Retried) -> None:
    assert_type(event.wait, float | None)


def on_signal(event: Signalled) -> None:
    assert_type(event.signal.remaining, int | None)


async def requests() -> None:
    async with ThrottledSession("https://example.com/", rate="10/s") as http:
        assert_type(http, ThrottledSession)
        async with http.get("path", params={"a": "b"}, timeout=ClientTimeout(total=5)) as response:
            assert_type(response, ClientResponse)
            assert_type(await response.text(), str)
        assert_type(await http.post("path", json={"a": 1}), ClientResponse)
        for call in (http.put, http.patch, http.delete, http.head, http.options):
            assert_type(await call("path"), ClientResponse)
        assert_type(await http.request("GET", "path", allow_redirects=False), ClientResponse)
        async with http.ws_connect("path", heartbeat=5) as socket:
            assert_type(await socket.receive_str(), str)
        assert_type(http.using(retry=Retry(attempts=2), buffer_body=True), ThrottledSession)
        assert_type(http.throttle, ThrottleMiddleware)
        assert_type(http.timeout, ClientTimeout)

        http.get("path", no_such_argument=1)  # type: ignore[call-arg]
        http.get("path", allow_redirects="yes")  # type: ignore[arg-type]
        http.get(5)  # type: ignore[arg-type]
        http.post()  # type: ignore[call-arg]
        http.using(retry=3)  # type: ignore[arg-type]
        await http.close()


def arguments() -> None:
    ThrottledSession()
    ThrottledSession(
        rate=["10/s", Rate(100, per=60), 5],
        burst=5,
        limits={"example.com": "5/s", "example.com/api": TokenBucket(5)},
        key=lambda url, method: (url.host, method),
        total=100,
        concurrency=4,
        settle=0.1,
        retry=Retry(attempts=3),
        signals={"example.com": {"reset": "ms-delta"}},
        buffer_bodies=True,
        on_wait=on_wait,
        on_retry=on_retry,
        on_signal=on_signal,
        headers={"User-Agent": "me"},
        connector=aiohttp.TCPConnector(limit=5),
        timeout=ClientTimeout(total=5),
        raise_for_status=True,
        middlewares=[],
    )
    ThrottledSession(limiter=TokenBucket(5))
    ThrottledSession(limiter=lambda origin: TokenBucket(len(origin)))
    ThrottledSession(no_such_argument=1)  # type: ignore[call-arg]
    ThrottledSession(rate=object())  # type: ignore[arg-type]
    ThrottledSession(concurrency="4")  # type: ignore[arg-type]
    ThrottledSession(on_wait=on_retry)  # type: ignore[arg-type]
    ThrottledSession(timeout=5)  # type: ignore[arg-type]


def middleware() -> None:
    ClientSession(middlewares=[ThrottleMiddleware(rate=10)])
    ClientSession(middlewares=(ThrottleMiddleware(limits={"example.com": "5/s"}),))
    ThrottleMiddleware(rates=10)  # type: ignore[call-arg]


def failures(error: ServerThrottled) -> None:
    assert_type(error.retry_after, float | None)
    assert_type(error.retry_at, float | None)
    assert_type(error.status, int | None)
    assert_type(error.origin, str | None)
