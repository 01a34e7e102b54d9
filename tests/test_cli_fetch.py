"""`throttle fetch`: what it downloads, what it keeps, how it ends, and what it shows."""

from __future__ import annotations

import asyncio
import io
import os
import pty
import random
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web
from helpers.fetching import check_files, fetch, manifest, program

from throttle.cli import main
from throttle.cli.store import Store
from throttle.testing import RateLimitedServer


@pytest.fixture
def server() -> Iterator[RateLimitedServer]:
    """A server that refuses nobody."""
    with RateLimitedServer("inf") as running:
        yield running


def test_a_list_is_fetched_without_a_single_refusal(tmp_path: Path) -> None:
    with RateLimitedServer("50/s") as server:
        urls = tmp_path / "urls.txt"
        urls.write_text("\n".join(server.url_for(f"/{n}") for n in range(100)))
        assert main(["fetch", str(urls), "--rate", "50/s", "--out", str(tmp_path / "out")]) == 0
        assert (server.admitted, server.refused) == (101, 0)  # robots.txt too
    lines = manifest(tmp_path / "out")
    assert len({line["url"] for line in lines}) == len(lines) == 100
    assert all(line["status"] == 200 and line["tries"] == 1 for line in lines)
    check_files(tmp_path / "out")


def test_urls_come_from_arguments_and_standard_input_and_twice_is_once(
    server: RateLimitedServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    a, b = server.url_for("/a"), server.url_for("/b")
    monkeypatch.setattr(sys, "stdin", io.StringIO(f"# a list\n\n{b}\n{a}\n"))
    assert main(["fetch", a, "-", a, "--rate", "100/s", "--out", str(tmp_path)]) == 0
    assert [line["url"] for line in manifest(tmp_path)] == [a, b]
    assert sorted(arrival.path for arrival in server.requests) == ["/a", "/b", "/robots.txt"]


def test_a_failure_is_told_and_the_rest_goes_on(tmp_path: Path) -> None:
    with RateLimitedServer("inf", handler={"/good": b"yes"}) as server:
        good, bad = server.url_for("/good"), server.url_for("/bad")
        assert main(["fetch", bad, good, "--rate", "100/s", "--out", str(tmp_path)]) == 1
    lines = {line["url"]: line for line in manifest(tmp_path)}
    assert lines[bad]["status"] == 404
    assert "404" in lines[bad]["error"]
    assert (tmp_path / lines[good]["file"]).read_bytes() == b"yes"


def test_a_second_run_fetches_only_what_is_missing(tmp_path: Path) -> None:
    content = {"/good": b"yes"}
    with RateLimitedServer("inf", handler=content) as server:
        urls = [server.url_for("/good"), server.url_for("/bad")]
        assert main(["fetch", *urls, "--rate", "100/s", "--out", str(tmp_path)]) == 1
        assert main(["fetch", *urls, "--rate", "100/s", "--out", str(tmp_path)]) == 1
        assert [arrival.path for arrival in server.requests].count("/good") == 1
    assert sorted(line["url"] for line in manifest(tmp_path)) == sorted(urls)


def test_a_body_that_is_too_large_leaves_nothing_behind(
    server: RateLimitedServer, tmp_path: Path
) -> None:
    url = server.url_for("/big?bytes=100000")
    assert fetch(tmp_path, url, "--max-bytes", "10k") == 1
    assert "10240" in manifest(tmp_path)[0]["error"]
    assert [path for path in tmp_path.rglob("*") if path.is_file()] == [tmp_path / "manifest.jsonl"]


async def slowly(request: web.Request) -> web.StreamResponse:
    """A body that takes a while, so that a kill finds it half done."""
    if request.path == "/robots.txt":
        raise web.HTTPNotFound
    body = request.path.encode() * 4000
    response = web.StreamResponse()
    response.content_length = len(body)
    with suppress(ConnectionError):  # the other side was killed
        await response.prepare(request)
        for start in range(0, len(body), 2000):
            await response.write(body[start : start + 2000])
            await asyncio.sleep(0.01)
    return response


def listed(server: RateLimitedServer, folder: Path, count: int) -> Path:
    path = folder / "urls.txt"
    path.write_text("\n".join(server.url_for(f"/{n}") for n in range(count)))
    return path


def test_kills_at_any_moment_lose_and_repeat_nothing_that_was_finished(tmp_path: Path) -> None:
    out, dice, count = tmp_path / "out", random.Random(7), 120
    finished: dict[str, dict[str, Any]] = {}
    half_done = 0
    with RateLimitedServer("inf", handler=slowly) as server:
        urls = listed(server, tmp_path, count)
        for _ in range(6):
            running = program(out, str(urls), "--concurrency", "4", rate="60/s")
            seen = len(manifest(out))
            while len(manifest(out)) < seen + 5:  # it is at work
                assert running.poll() is None
            time.sleep(dice.random() * 0.05)
            running.kill()
            running.communicate(timeout=30)
            half_done += any((out / ".parts").iterdir())
            check_files(out, killed=True)
            before, finished = finished, {line["url"]: line for line in manifest(out)}
            assert before.items() <= finished.items()
            asked = len(server.requests)
            done_before = {url.removeprefix(server.url) for url in finished}
        assert fetch(out, str(urls)) == 0
        assert not done_before & {arrival.path for arrival in server.requests[asked:]}
    assert half_done
    check_files(out)
    assert sorted(line["url"] for line in manifest(out)) == sorted(urls.read_text().split())
    assert not (out / ".parts").exists()


@pytest.mark.parametrize(
    ("number", "code", "said"),
    [(signal.SIGINT, 130, "interrupted"), (signal.SIGTERM, 143, "terminated")],
)
def test_ctrl_c_ends_with_a_true_manifest(
    number: signal.Signals, code: int, said: str, tmp_path: Path
) -> None:
    out = tmp_path / "out"
    with RateLimitedServer("inf", handler=slowly) as server:
        urls = listed(server, tmp_path, 500)
        running = program(out, str(urls), rate="50/s")
        while not manifest(out):
            assert running.poll() is None
        running.send_signal(number)
        _, told = running.communicate(timeout=30)
        assert running.returncode == code, told
        assert said in told
        assert "50/s" in told  # the summary is there all the same
        check_files(out)
        assert not (out / ".parts").exists()
        done = {line["url"] for line in manifest(out)}
        assert 0 < len(done) < 500
        assert all("file" in line for line in manifest(out))


def test_a_slow_list_holds_up_nobody_and_ctrl_c_ends_it(
    server: RateLimitedServer, tmp_path: Path
) -> None:
    running = program(tmp_path, "-", stdin=subprocess.PIPE)
    assert running.stdin is not None
    running.stdin.write(server.url_for("/a") + "\n")
    running.stdin.flush()
    while not manifest(tmp_path):  # the list has not ended
        assert running.poll() is None
    running.send_signal(signal.SIGINT)
    _, told = running.communicate(timeout=30)
    assert running.returncode == 130
    assert "Traceback" not in told
    assert "Fatal" not in told
    check_files(tmp_path)


def test_lines_that_are_no_urls_are_told_and_the_rest_goes_on(
    server: RateLimitedServer, tmp_path: Path
) -> None:
    lines = [b"garbage", b"http://", b"http://[bad/", b"mailto:a@b", b"\xff\xfe", b"garbage"]
    lines += [server.url_for("/a").encode(), server.url_for("/").encode() + b"\xe4"]
    urls = tmp_path / "urls.txt"
    urls.write_bytes(b"\n".join(lines))
    assert fetch(tmp_path / "out", str(urls), "--no-robots") == 1
    made = manifest(tmp_path / "out")
    assert len(made) == 7  # each once
    assert sum("file" in line for line in made) == 2
    assert {arrival.path for arrival in server.requests} == {"/a", "/%E4"}
    assert fetch(tmp_path / "out", str(urls), "--no-robots") == 1
    assert len(server.requests) == 2
    assert len(manifest(tmp_path / "out")) == 7


def test_an_empty_list_is_no_failure(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "urls.txt").write_text("# nothing today\n")
    assert fetch(tmp_path / "out", str(tmp_path / "urls.txt")) == 0
    assert "0 fetched" in capsys.readouterr().err


def test_spellings_of_one_url_are_fetched_once(server: RateLimitedServer, tmp_path: Path) -> None:
    url = server.url_for("/a")
    words = [url, url + "#part", url.replace("/a", "/x/../%61"), url.replace("http:", "HTTP:")]
    assert fetch(tmp_path, *words, "--no-robots") == 0
    assert [line["url"] for line in manifest(tmp_path)] == [url]
    assert fetch(tmp_path, *reversed(words), "--no-robots") == 0
    assert server.admitted == 1


def test_a_disk_that_cannot_be_written_to_ends_the_run(
    server: RateLimitedServer, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "out"
    out.mkdir()
    (out / server.url.removeprefix("http://").replace(":", "_")).write_text("in the way")
    words = [server.url_for(f"/{n}") for n in range(50)]
    assert fetch(out, *words, "--no-robots", "--concurrency", "1") == 2
    said = capsys.readouterr().err
    assert str(out) in said
    assert said.count("\n") == 1
    assert server.admitted == 1  # it does not go on asking for what it cannot keep
    assert not [path for path in out.iterdir() if path.is_dir()]


def test_refusals_are_counted(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with RateLimitedServer("4/s", dialect="none") as server:
        words = [server.url_for(f"/{n}") for n in range(6)]
        assert fetch(tmp_path, *words, "--no-robots", "--tries", "9") == 0
        refused = server.refused
    assert refused > 0
    assert sum(line["tries"] - 1 for line in manifest(tmp_path)) == refused
    told = capsys.readouterr().err.splitlines()
    (row,) = [line.split() for line in told if "127.0.0.1" in line]
    assert row[1:4] == ["6", "0", str(refused)]


# -------------------------------------------------------------------- what is shown


def in_a_terminal(command: list[str], **environment: str) -> str:
    """What a program writes to a terminal of 100 columns."""
    ours, theirs = pty.openpty()
    running = subprocess.Popen(
        command,
        stdin=theirs,
        stdout=theirs,
        stderr=theirs,
        env={**os.environ, "TERM": "xterm-256color", "COLUMNS": "100", **environment},
    )
    os.close(theirs)
    shown = b""
    with suppress(OSError):  # the other end was closed: the program has ended
        while chunk := os.read(ours, 65536):
            shown += chunk
    os.close(ours)
    assert running.wait(timeout=30) == 0
    return shown.decode()


@pytest.mark.parametrize(
    ("environment", "moves", "colours"),
    [({}, True, True), ({"NO_COLOR": "1"}, True, False), ({"TERM": "dumb"}, False, False)],
    ids=["terminal", "no colour", "dumb"],
)
def test_a_terminal_shows_how_it_goes(
    environment: dict[str, str],
    moves: bool,
    colours: bool,
    server: RateLimitedServer,
    tmp_path: Path,
) -> None:
    words = [server.url_for(f"/{n}") for n in range(9)]
    command = [sys.executable, "-m", "throttle", "fetch", *words, "--rate", "6/s"]
    shown = in_a_terminal([*command, "--out", str(tmp_path)], **environment)
    assert "9 fetched" in shown
    assert ("next in" in shown) == moves
    assert ("of 9" in shown) == moves
    assert bool(re.search(r"\x1b\[(3|4)[0-9;]+m", shown)) == colours


def test_a_pipe_gets_the_table_and_nothing_that_moves(
    server: RateLimitedServer, tmp_path: Path
) -> None:
    running = program(tmp_path, server.url_for("/a"), server.url_for("/b"))
    _, told = running.communicate(timeout=30)
    assert "\x1b" not in told
    assert "\r" not in told
    assert "next in" not in told
    assert [line.split()[:4] for line in told.splitlines() if "127.0.0.1" in line] == [
        ["127.0.0.1", "2", "0", "0"]
    ]


@pytest.mark.parametrize(
    ("words", "named"),
    [
        (["fetch", "https://a.example/", "--rate", "often"], "'often'"),
        (["fetch", "https://a.example/", "--rate", "0/s"], "0"),
        (["fetch", "https://a.example/", "--max-bytes", "lots"], "'lots'"),
        (["fetch", "https://a.example/", "--tries", "0"], "--tries"),
        (["fetch", "no-such-file"], "'no-such-file'"),
        (["fetch", "ftp://a.example/"], "'ftp://a.example/'"),
        (["fetch"], "URL"),
        (["dance"], "'dance'"),
        ([], "COMMAND"),
    ],
)
def test_a_wrong_command_line_is_named(
    words: list[str], named: str, capsys: pytest.CaptureFixture[str]
) -> None:
    try:
        code: Any = main(words)
    except SystemExit as exit_:
        code = exit_.code
    assert code == 2
    assert named in capsys.readouterr().err


def test_a_file_where_the_folder_should_be_is_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "out").write_text("mine")
    assert main(["fetch", "http://127.0.0.1:9/", "--out", str(tmp_path / "out")]) == 2
    assert "out" in capsys.readouterr().err
    assert (tmp_path / "out").read_text() == "mine"


def test_two_runs_do_not_work_in_one_folder(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with Store(tmp_path, lambda url: True):
        assert main(["fetch", "http://127.0.0.1:9/", "--out", str(tmp_path)]) == 2
    assert "another run" in capsys.readouterr().err


def test_a_comment_behind_a_url_is_not_part_of_it(
    server: RateLimitedServer, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    lines = [server.url_for("/a") + " # home", "\t# nothing", server.url_for("/b") + "#part"]
    (tmp_path / "urls").write_text("\n".join(lines))
    out = tmp_path / "out"
    words = ["fetch", str(tmp_path / "urls"), "--rate", "100/s", "--no-robots", "--out", str(out)]
    assert main(words) == 0
    assert sorted(arrival.path for arrival in server.requests) == ["/a", "/b"]
    assert "why" not in capsys.readouterr().err


def test_the_first_failures_are_told_and_where_the_rest_are(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with RateLimitedServer("inf", handler={}) as server:
        urls = [server.url_for(f"/{number}") for number in range(5)]
        out = str(tmp_path / "out")
        assert main(["fetch", *urls, "--rate", "100/s", "--no-robots", "--out", out]) == 1
    said = capsys.readouterr().err
    assert sum("404" in line for line in said.splitlines()) == 3
    assert "manifest.jsonl" in said


async def delayed(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, late: float) -> None:
    """Pass bytes on, the first ones late."""
    with suppress(OSError):
        while data := await reader.read(65536):
            await asyncio.sleep(late)
            late = 0.0
            writer.write(data)
            await writer.drain()
    writer.close()


@pytest.mark.anyio
@pytest.mark.parametrize("anyio_backend", ["asyncio"])
async def test_requests_that_arrive_late_earn_no_refusal(tmp_path: Path) -> None:
    """Every new connection is 0.4 s late: the next window's requests must not catch up with it."""
    async with RateLimitedServer("20/s") as server:

        async def relay(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            there = await asyncio.open_connection("127.0.0.1", int(server.url.rpartition(":")[2]))
            back = asyncio.ensure_future(delayed(there[0], writer, 0.0))
            await delayed(reader, there[1], 0.4)
            await back

        proxy = await asyncio.start_server(relay, "127.0.0.1", 0)
        url = f"http://127.0.0.1:{proxy.sockets[0].getsockname()[1]}"
        words = ["fetch", *(f"{url}/{number}" for number in range(50)), "--no-robots"]
        words += ["--rate", "20/s", "--out", str(tmp_path / "out")]
        code = await asyncio.to_thread(main, words)
        proxy.close()
        assert (code, server.admitted, server.refused) == (0, 50, 0)
