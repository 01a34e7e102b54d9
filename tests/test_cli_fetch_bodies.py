"""`throttle fetch` and what comes over the wire: broken bodies, codings, redirects, robots.txt."""

from __future__ import annotations

import gzip
import socket
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from aiohttp import web
from helpers.fetching import check_files, fetch, manifest

from throttle.testing import RateLimitedServer

TEXT = b"all work and no play " * 5000
ZIPPED = gzip.compress(TEXT)


def test_a_body_that_is_cut_short_is_fetched_again(tmp_path: Path) -> None:
    with RateLimitedServer("inf", faults=["truncate", None]) as server:
        assert fetch(tmp_path, server.url_for("/a?bytes=50000"), "--no-robots") == 0
        assert server.admitted == 2
    (line,) = manifest(tmp_path)
    assert (line["bytes"], line["tries"]) == (50000, 2)
    check_files(tmp_path)


def test_a_body_that_is_always_cut_short_is_never_kept(tmp_path: Path) -> None:
    with RateLimitedServer("inf", faults={"truncate": 1.0}) as server:
        url = server.url_for("/a?bytes=50000")
        assert fetch(tmp_path, url, "--no-robots", "--tries", "2") == 1
        assert server.admitted == 2
    (line,) = manifest(tmp_path)
    assert line["tries"] == 2
    assert "ClientPayloadError" in line["error"]
    assert "file" not in line
    check_files(tmp_path)


@pytest.mark.parametrize("tries", [1, 3])
def test_all_kinds_of_failures_together_make_no_more_than_the_tries(
    tries: int, tmp_path: Path
) -> None:
    faults = ["truncate", 503, "drop", "truncate", 503]
    with RateLimitedServer("inf", faults=faults) as server:
        url = server.url_for("/a?bytes=50000")
        assert fetch(tmp_path, url, "--no-robots", "--tries", str(tries)) == 1
        assert server.admitted == tries
    assert manifest(tmp_path)[0]["tries"] == tries


def coded(body: bytes, coding: str = "gzip", status: int = 200) -> Callable[..., object]:
    async def handler(request: web.Request) -> web.Response:
        assert request.headers["Accept-Encoding"] == "gzip"
        return web.Response(status=status, body=body, headers={"Content-Encoding": coding})

    return handler


@pytest.mark.parametrize(
    "body",
    [
        ZIPPED,
        gzip.compress(TEXT[:7]) + gzip.compress(TEXT[7:]),
        ZIPPED + b"\0" * 100,
        gzip.compress(TEXT, 0),
    ],
    ids=["one member", "two members", "padded", "stored"],
)
def test_a_gzip_coding_is_undone(body: bytes, tmp_path: Path) -> None:
    with RateLimitedServer("inf", handler=coded(body)) as server:
        assert fetch(tmp_path, server.url_for("/a"), "--no-robots") == 0
    (line,) = manifest(tmp_path)
    assert (tmp_path / line["file"]).read_bytes() == TEXT
    check_files(tmp_path)


@pytest.mark.parametrize("size", [1, 65535, 65536, 65537, 3 * 65536, 10_000_000])
def test_a_gzip_coding_is_undone_to_the_last_byte(size: int, tmp_path: Path) -> None:
    with RateLimitedServer("inf", handler=coded(gzip.compress(bytes(size)))) as server:
        assert fetch(tmp_path, server.url_for("/a"), "--no-robots") == 0
    assert manifest(tmp_path)[0]["bytes"] == size


@pytest.mark.parametrize(
    ("body", "coding", "said"),
    [
        (ZIPPED[:-9], "gzip", "cut short"),
        (ZIPPED[: len(ZIPPED) // 2], "gzip", "cut short"),
        (ZIPPED[:5], "gzip", "cut short"),
        (ZIPPED[:-1] + b"\xff", "gzip", "broken"),
        (TEXT, "gzip", "broken"),
        (ZIPPED + TEXT, "gzip", "broken"),
        (TEXT, "br", "'br'"),
    ],
)
def test_a_coding_that_cannot_be_undone_is_a_failure(
    body: bytes, coding: str, said: str, tmp_path: Path
) -> None:
    with RateLimitedServer("inf", handler=coded(body, coding)) as server:
        assert fetch(tmp_path, server.url_for("/a"), "--no-robots", "--tries", "1") == 1
    assert said in manifest(tmp_path)[0]["error"]
    check_files(tmp_path)


def test_some_kilobytes_that_stand_for_gigabytes_are_given_up(tmp_path: Path) -> None:
    bomb = gzip.compress(bytes(50_000_000))
    with RateLimitedServer("inf", handler=coded(bomb)) as server:
        assert fetch(tmp_path, server.url_for("/a"), "--no-robots", "--max-bytes", "1M") == 1
        assert server.admitted == 1  # another try would be as large
    assert "--max-bytes 1048576" in manifest(tmp_path)[0]["error"]
    check_files(tmp_path)


@pytest.mark.parametrize("status", [204, 200])
def test_nothing_is_a_body_too(status: int, tmp_path: Path) -> None:
    async def nothing(request: web.Request) -> web.Response:
        return web.Response(status=status)

    with RateLimitedServer("inf", handler=nothing) as server:
        assert fetch(tmp_path, server.url_for("/a"), "--no-robots") == 0
    assert manifest(tmp_path)[0]["bytes"] == 0
    check_files(tmp_path)


@pytest.mark.parametrize("status", [206, 304, 404, 410, 500])
def test_an_answer_that_is_not_the_resource_is_not_kept(status: int, tmp_path: Path) -> None:
    async def other(request: web.Request) -> web.Response:
        return web.Response(status=status, body=None if status == 304 else b"not it")

    with RateLimitedServer("inf", handler=other) as server:
        assert fetch(tmp_path, server.url_for("/a"), "--no-robots") == 1
    (line,) = manifest(tmp_path)
    assert (line["status"], line["error"]) == (status, f"status {status}")
    check_files(tmp_path)


def test_a_redirect_leads_to_another_host(tmp_path: Path) -> None:
    async def handler(request: web.Request) -> web.Response:
        if request.path == "/robots.txt":
            raise web.HTTPNotFound
        if request.path == "/from":
            raise web.HTTPFound(f"http://localhost:{request.url.port}/to")
        return web.Response(text=request.host)

    with RateLimitedServer("inf", handler=handler) as server:
        assert fetch(tmp_path, server.url_for("/from")) == 0
        paths = [arrival.path for arrival in server.requests]
    (line,) = manifest(tmp_path)
    assert line["url"].endswith("/from")
    assert line["final"].endswith("/to")
    assert (tmp_path / line["file"]).read_bytes().startswith(b"localhost:")
    assert paths == ["/robots.txt", "/from", "/robots.txt", "/to"]  # each host has its own


@pytest.mark.parametrize("to", ["/from", "gopher://x.example/", "http://[bad/"])
def test_a_redirect_that_leads_nowhere_is_a_failure(to: str, tmp_path: Path) -> None:
    async def handler(request: web.Request) -> web.Response:
        return web.Response(status=302, headers={"Location": to})

    with RateLimitedServer("inf", handler=handler) as server:
        assert fetch(tmp_path, server.url_for("/from"), "--no-robots") == 1
    assert "Redirect" in manifest(tmp_path)[0]["error"]


# -------------------------------------------------------------------- robots.txt


@pytest.fixture
def guarded() -> Iterator[RateLimitedServer]:
    """A site that forbids a part of itself, and wants to be left alone between requests."""
    rules = "User-agent: throttle-fetch\nCrawl-delay: 0.2\nDisallow: /no\n"
    pages = {"/robots.txt": rules, "/yes": "1", "/no": "2", "/too": "3", "/also": "4"}
    with RateLimitedServer("inf", handler=pages) as server:
        yield server


def test_what_robots_txt_forbids_is_not_fetched(
    guarded: RateLimitedServer, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert fetch(tmp_path, guarded.url_for("/no"), guarded.url_for("/yes")) == 1
    assert sorted(arrival.path for arrival in guarded.requests) == ["/robots.txt", "/yes"]
    lines = {line["url"]: line for line in manifest(tmp_path)}
    refused = lines[guarded.url_for("/no")]
    assert (refused["tries"], refused["status"]) == (0, None)
    assert "robots.txt" in refused["error"]
    assert "forbidden by robots.txt: 1 of those that failed" in capsys.readouterr().err
    assert fetch(tmp_path, guarded.url_for("/no"), "--no-robots") == 0


def test_a_crawl_delay_holds_whatever_the_rate(
    guarded: RateLimitedServer, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    urls = [guarded.url_for(path) for path in ("/yes", "/too", "/also")]
    assert fetch(tmp_path, *urls) == 0
    instants = [arrival.instant for arrival in guarded.requests if arrival.path != "/robots.txt"]
    assert len(instants) == 3
    assert instants[2] - instants[0] >= 0.35
    row = next(line for line in capsys.readouterr().err.splitlines() if "127.0.0.1" in line)
    assert row.split()[-1] == "5/s"  # what was allowed, which is not the 2000/s


# -------------------------------------------------------------------- hosts that do not answer


def closed_port() -> int:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return int(free.getsockname()[1])


def test_a_dead_host_is_given_up_and_the_others_are_not(tmp_path: Path) -> None:
    port = closed_port()
    dead = [f"http://localhost:{port}/{n}" for n in range(200)]
    with RateLimitedServer("inf") as server:
        words = [*dead, server.url_for("/a"), "--no-robots", "--tries", "1"]
        assert fetch(tmp_path, *words, "--concurrency", "2") == 1
    lines = {line["url"]: line for line in manifest(tmp_path)}
    assert len(lines) == 201
    assert "file" in lines[server_url(lines)]
    tried = [line for line in lines.values() if line["tries"] and "error" in line]
    assert 5 <= len(tried) <= 6
    assert sum("in a row got no answer" in line.get("error", "") for line in lines.values()) >= 194


def server_url(lines: dict[str, object]) -> str:
    (url,) = [url for url in lines if "127.0.0.1" in url]
    return url


def test_a_host_whose_robots_txt_cannot_be_had_is_told_as_such(tmp_path: Path) -> None:
    url = f"http://127.0.0.1:{closed_port()}/"
    assert fetch(tmp_path, url) == 1
    (line,) = manifest(tmp_path)
    assert "unreachable" in line["error"]
    assert line["tries"] == 0
