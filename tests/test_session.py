"""ThrottledSession over real sockets: a ClientSession in all it does not own, throttled in all."""

from __future__ import annotations

import asyncio
import gc
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any

import aiohttp
import pytest
from aiohttp import ClientRequest, ClientResponse, ClientSession, ClientTimeout, web
from helpers.site import Site, answer, drop
from yarl import URL

from throttle import TokenBucket
from throttle.http.retry import Retry
from throttle.http.session import ThrottledSession, ThrottleMiddleware
from throttle.testing.on_asyncio import VirtualLoop

pytestmark = pytest.mark.anyio

Handler = Callable[[ClientRequest], Awaitable[ClientResponse]]


@pytest.fixture
def anyio_backend() -> tuple[str, dict[str, Any]]:
    return "asyncio", {"loop_factory": VirtualLoop}


def paced(**options: Any) -> ThrottledSession:
    """One request a second, evenly: each that pays shows in the instants of the others."""
    return ThrottledSession(rate="1/s", **options)


async def read(pending: Any) -> tuple[int, bytes]:
    async with pending as response:
        return response.status, await response.read()


async def pass_on(request: ClientRequest, handler: Handler) -> ClientResponse:
    return await handler(request)


# -------------------------------------------------------------------- every send pays


@pytest.mark.parametrize("method", ["get", "options", "head", "post", "put", "patch", "delete"])
async def test_each_method_waits_for_its_turn(method: str) -> None:
    async with Site() as site, paced() as http:
        for _ in range(3):
            response = await getattr(http, method)(site.url)
            assert response.status == 200
            response.release()
        assert site.instants == [0, 1, 2]
        assert {one.method for one in site.got} == {method.upper()}


async def test_request_and_a_burst_of_tasks_keep_to_the_rate() -> None:
    async with Site() as site, ThrottledSession(rate="5/s") as http:
        async with http.request("GET", site.url) as response:
            assert response.status == 200
        await asyncio.gather(*(read(http.get(site.url)) for _ in range(11)))
        assert [round(instant) for instant in site.instants] == [0] * 5 + [1] * 5 + [2] * 2


async def test_middlewares_of_a_request_do_not_bypass_the_throttle() -> None:
    async with Site() as site, paced(middlewares=[pass_on]) as http:
        for middlewares in (None, (), (pass_on,), [pass_on, pass_on]):
            await read(http.get(site.url, middlewares=middlewares))
        assert site.instants == [0, 1, 2, 3]


async def test_the_throttle_is_the_innermost_middleware() -> None:
    async def twice(request: ClientRequest, handler: Handler) -> ClientResponse:
        (await handler(request)).release()
        return await handler(request)

    async with Site() as site, paced(middlewares=[twice]) as http:
        await read(http.get(site.url))
        assert site.instants == [0, 1]


async def test_middlewares_run_in_the_order_of_the_list_and_those_of_a_request_replace_them() -> (
    None
):
    seen: list[str] = []

    def mark(name: str) -> Any:
        async def middleware(request: ClientRequest, handler: Handler) -> ClientResponse:
            seen.append(name)
            return await handler(request)

        return middleware

    async with Site() as site, ThrottledSession(middlewares=[mark("a"), mark("b")]) as http:
        await read(http.get(site.url))
        await read(http.get(site.url, middlewares=[mark("c")]))
        assert seen == ["a", "b", "c"]


async def test_a_redirect_hop_pays_at_the_host_it_goes_to() -> None:
    async with Site() as second:
        hop = answer(302, Location=f"{second.url}/there")
        async with Site(hop) as first:
            limits = {f"127.0.0.1:{URL(second.url).port}": TokenBucket(1, 1)}
            async with ThrottledSession(limits=limits) as http:
                for _ in range(2):
                    async with http.get(first.url) as response:
                        assert response.url.path == "/there"
                        assert [one.status for one in response.history] == [302]
            assert (first.instants, second.instants) == ([0, 0], [0, 1])


async def test_redirects_use_up_no_tries() -> None:
    hops = [answer(302, Location=f"/{n}") for n in range(4)]
    async with Site(*hops, 503, 200) as site:
        async with ThrottledSession(retry=Retry(attempts=2)) as http:
            assert (await read(http.get(site.url)))[0] == 200
        assert len(site.got) == 6


async def test_a_web_socket_handshake_waits_for_its_turn_and_not_at_the_cost_of_its_timeout() -> (
    None
):
    async def echo(request: web.Request) -> web.StreamResponse:
        socket = web.WebSocketResponse()
        await socket.prepare(request)
        await socket.send_str("hello")
        await socket.close()
        return socket

    async with Site(echo) as site, paced(timeout=ClientTimeout(total=0.5)) as http:
        for _ in range(2):
            async with http.ws_connect(site.url) as socket:
                assert await socket.receive_str() == "hello"
        socket = await http.ws_connect(site.url.replace("http", "ws"))
        assert await socket.receive_str() == "hello"
        await socket.close()
        assert site.instants == [0, 1, 2]
        assert len(http.throttle.engine.routes) == 1, "ws:// and http:// are one server"


async def test_a_refused_web_socket_handshake_is_tried_again() -> None:
    async def open_up(request: web.Request) -> web.StreamResponse:
        socket = web.WebSocketResponse()
        await socket.prepare(request)
        await socket.close()
        return socket

    async with Site(answer(429, Retry_After="3"), open_up) as site, ThrottledSession() as http:
        async with http.ws_connect(site.url) as socket:
            assert (await socket.receive()).type is aiohttp.WSMsgType.CLOSE
        assert site.instants[1] >= 3


# -------------------------------------------------------------------- aiohttp's own second try


@pytest.mark.parametrize("attempts", [1, 2, 3])
async def test_the_tries_of_a_session_are_counted_once(attempts: int) -> None:
    async with Site(drop) as site, ThrottledSession(retry=Retry(attempts=attempts)) as http:
        with pytest.raises(aiohttp.ClientConnectionError):
            await http.get(site.url)
        assert len(site.got) == attempts


@pytest.mark.parametrize("attempts", [1, 3])
async def test_the_tries_of_a_bare_middleware_are_counted_once(attempts: int) -> None:
    throttle = ThrottleMiddleware(retry=Retry(attempts=attempts))
    async with Site(drop) as site, ClientSession(middlewares=[throttle]) as http:
        for calls in (1, 2):
            with pytest.raises(aiohttp.ClientConnectionError):
                await http.get(site.url)
            assert len(site.got) == attempts * calls


async def test_what_the_policy_does_not_repeat_is_not_repeated_by_aiohttp_either() -> None:
    async with Site(drop) as site, ThrottledSession(retry=Retry(methods=())) as http:
        with pytest.raises(aiohttp.ClientConnectionError):
            await http.get(site.url)
        assert len(site.got) == 1


async def test_a_middleware_of_the_users_own_may_try_again() -> None:
    async def stubborn(request: ClientRequest, handler: Handler) -> ClientResponse:
        try:
            return await handler(request)
        except aiohttp.ClientConnectionError:
            return await handler(request)

    policy = Retry(attempts=1)
    async with Site(drop, 200) as site:
        async with ThrottledSession(middlewares=[stubborn], retry=policy) as http:
            assert (await read(http.get(site.url)))[0] == 200
        assert len(site.got) == 2


# -------------------------------------------------------------------- a ClientSession otherwise


async def test_what_get_answers_can_be_awaited_entered_and_made_a_task_of() -> None:
    async with Site() as site, ThrottledSession() as http:
        pending = http.get(site.url)
        assert asyncio.iscoroutine(pending)
        assert isinstance(pending, Coroutine)
        statuses = [(await pending).status]
        async with http.get(site.url) as response:
            statuses.append(response.status)
        statuses.append((await asyncio.create_task(http.get(site.url))).status)
        statuses += [one.status for one in await asyncio.gather(http.get(site.url))]
        statuses.append((await asyncio.wait_for(http.get(site.url), 1)).status)
        async with asyncio.timeout(1):
            statuses.append((await http.get(site.url)).status)
        assert statuses == [200] * 6
    gc.collect()


async def test_a_coroutine_that_is_never_awaited_sends_and_holds_nothing() -> None:
    async with Site() as site, ThrottledSession(concurrency=1) as http:
        http.get(site.url).close()
        assert (await read(http.get(site.url)))[0] == 200
        assert len(site.got) == 1


async def test_arguments_and_attributes_are_those_of_a_client_session() -> None:
    jar = aiohttp.DummyCookieJar()
    connector = aiohttp.TCPConnector(limit=3)
    timeout = ClientTimeout(total=7, sock_read=3)
    options: dict[str, Any] = {
        "base_url": "http://localhost/api/",
        "headers": {"X-One": "1"},
        "cookie_jar": jar,
        "connector": connector,
        "timeout": timeout,
        "trust_env": True,
        "raise_for_status": True,
        "auto_decompress": False,
        "requote_redirect_url": False,
    }
    raw = ClientSession(**options, connector_owner=False)
    async with raw, ThrottledSession(**options) as http:
        names = [name for name in dir(ClientSession) if not name.startswith("_")]
        for name in set(names) - {"loop", "ATTRS", "connector_owner"}:
            theirs, ours = getattr(raw, name), getattr(http, name)
            assert callable(ours) if callable(theirs) else ours == theirs, name
        assert http.timeout is timeout
        assert not http.closed
        with pytest.warns(DeprecationWarning, match="requote_redirect_url"):
            http.requote_redirect_url = True
        assert http.requote_redirect_url is True
        assert "ThrottledSession" in repr(http)
    assert http.closed
    assert http.connector is None


async def test_the_default_timeout_is_aiohttps() -> None:
    async with ClientSession() as raw, ThrottledSession() as http:
        assert http.timeout == raw.timeout
    async with ThrottledSession(timeout=None) as http:
        assert http.timeout == raw.timeout
    with pytest.warns(DeprecationWarning, match="read_timeout"):
        old = ThrottledSession(read_timeout=3)
    async with old:
        assert old.timeout.total == 3


async def test_base_url_headers_cookies_and_parameters_reach_the_server() -> None:
    async with Site() as site:
        async with ThrottledSession(
            f"{site.url}/api/", headers={"X-One": "1"}, cookies={"a": "b"}
        ) as http:
            http.headers["X-Two"] = "2"
            await read(http.get("users", params={"q": "x"}, headers={"X-Three": "3"}))
        got = site.got[0]
        assert got.path == "/api/users"
        fields = [got.headers.get(name) for name in ("X-One", "X-Two", "X-Three")]
        assert fields == ["1", "2", "3"]


async def test_closing_and_misuse_raise_what_aiohttp_raises() -> None:
    http = ThrottledSession()
    await http.close()
    await http.close()
    with pytest.raises(RuntimeError, match="Session is closed"):
        await http.get("http://localhost/")
    with pytest.raises(TypeError):
        ThrottledSession(no_such_argument=1)  # type: ignore[call-arg]
    with pytest.raises(ValueError, match="timeout parameter cannot be of"):
        ThrottledSession(timeout=5)  # type: ignore[arg-type]
    async with ThrottledSession() as http:
        with pytest.raises(TypeError):
            await http.get("http://localhost/", no_such_argument=1)  # type: ignore[call-arg]
        with pytest.raises(aiohttp.InvalidURL):
            await http.get("http:///nowhere")
        with pytest.raises(AttributeError, match="no_such_attribute"):
            _ = http.no_such_attribute


@pytest.mark.parametrize("wait", ["turn", "slot", "retry"])
async def test_a_call_that_waits_while_its_session_is_closed_is_told(wait: str) -> None:
    limits: dict[str, Any] = {
        "turn": {"rate": "1/2s"},
        "slot": {"concurrency": 1},
        "retry": {"retry": Retry(base=2, minimum=2)},
    }

    async def page(request: web.Request) -> web.StreamResponse:
        await asyncio.sleep(1 if wait == "slot" else 0)
        return web.Response(status=429 if wait == "retry" else 200)

    async with Site(page) as site:
        http = ThrottledSession(**limits[wait])
        calls = [asyncio.ensure_future(http.get(site.url)) for _ in range(3)]
        await asyncio.sleep(0.5)
        for call in calls:
            if call.done():
                call.result().release()
        await http.close()
        outcomes = await asyncio.gather(*calls, return_exceptions=True)
        late = [one for one in outcomes if isinstance(one, RuntimeError)]
        assert len(late) >= 2
        assert {str(one) for one in late} == {"Session is closed"}
        for origin in http.throttle.engine.routes:
            assert (origin.waiting, origin.in_flight) == (0, 0)
            assert origin.slots is None or not origin.slots.taken


async def test_a_session_that_is_not_closed_warns_as_aiohttp_does() -> None:
    sessions = [ThrottledSession()]
    connector = sessions[0].connector
    complaints: list[Any] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, context: complaints.append(context))
    with pytest.warns(ResourceWarning, match="Unclosed client session"):
        sessions.clear()
    assert [one["message"] for one in complaints] == ["Unclosed client session"]
    assert connector is not None
    await connector.close()


async def test_errors_of_the_network_are_aiohttps() -> None:
    async with Site() as site:
        dead = site.url
    async with ThrottledSession(retry=Retry(attempts=1)) as http:
        with pytest.raises(aiohttp.ClientConnectorError):
            await http.get(dead)


@pytest.mark.parametrize("where", ["session", "request"])
async def test_raise_for_status_raises_at_the_end_of_the_tries(where: str) -> None:
    mine, its = ({"raise_for_status": True}, {}) if where == "session" else ({}, True)
    options: dict[str, Any] = {} if where == "session" else {"raise_for_status": its}
    session: dict[str, Any] = dict(mine)
    async with Site(503) as site, ThrottledSession(retry=Retry(attempts=3), **session) as http:
        with pytest.raises(aiohttp.ClientResponseError) as caught:
            await http.get(site.url, **options)
        assert caught.value.status == 503
        assert len(site.got) == 3


async def test_without_it_the_last_response_is_returned_and_can_be_read() -> None:
    async with (
        Site(answer(503, "sorry")) as site,
        ThrottledSession(retry=Retry(attempts=3)) as http,
    ):
        assert await read(http.get(site.url)) == (503, b"sorry")
        assert len(site.got) == 3


async def test_a_view_has_its_own_policy_and_shares_all_else() -> None:
    async with Site(503) as site, paced(retry=Retry(attempts=3, base=0.001)) as http:
        once = http.using(retry=Retry(attempts=1))
        assert (await read(once.get(site.url)))[0] == 503
        assert len(site.got) == 1
        await read(http.get(site.url))
        assert len(site.got) == 4
        assert site.instants == [0, 1, 2, 3]
        assert once.cookie_jar is http.cookie_jar
        assert once.timeout is http.timeout
        with pytest.raises(TypeError, match="retry must be a Retry"):
            http.using(retry=3)  # type: ignore[arg-type]


async def test_tracing_shows_one_start_and_one_end_a_call() -> None:
    seen: list[str] = []
    config = aiohttp.TraceConfig()

    async def start(*_: Any) -> None:
        seen.append("start")

    async def end(*_: Any) -> None:
        seen.append("end")

    config.on_request_start.append(start)
    config.on_request_end.append(end)
    async with Site(503, 200) as site, ThrottledSession(trace_configs=[config]) as http:
        await read(http.get(site.url))
        assert (seen, len(site.got)) == (["start", "end"], 2)


async def test_digest_credentials_are_sent_with_a_permit_each_and_in_one_slot() -> None:
    challenge = answer(401, WWW_Authenticate='Digest realm="r", nonce="n", qop="auth"')
    digest = aiohttp.DigestAuthMiddleware(login="user", password="secret")
    async with Site(challenge, 200) as site, paced(middlewares=[digest], concurrency=1) as http:
        assert (await read(http.get(site.url)))[0] == 200
        assert site.instants == [0, 1]
        assert "Authorization" in site.got[1].headers
        assert (await read(http.get(site.url, middlewares=())))[0] == 200
