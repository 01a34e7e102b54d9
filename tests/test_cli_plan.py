"""How fast `throttle fetch` may go: the command line, a file of limits, and shared limits."""

from __future__ import annotations

import argparse
from pathlib import Path

import pytest
from helpers.fetching import fetch, manifest
from helpers.redis_servers import RedisServer, free_port

from throttle.choice import limiter_for
from throttle.cli import main
from throttle.cli.options import UsageError
from throttle.cli.plan import Plan, declare, plan
from throttle.cli.sharing import late
from throttle.rate import Rate
from throttle.shared.file import FileLimiter
from throttle.testing import RateLimitedServer

FILE = """
rate = ["2/s", "1000/hour"]
concurrency = 4
contact = "bot@example.org"

[limits]
"api.example.org" = "10/s"
"example.org/search" = ["1/3s", "500/day"]
"""


def planned(*words: str) -> Plan:
    parser = argparse.ArgumentParser()
    declare(parser)
    return plan(parser.parse_args(words))


@pytest.fixture
def file(tmp_path: Path) -> str:
    path = tmp_path / "limits.toml"
    path.write_text(FILE)
    return str(path)


def test_a_file_says_how_fast(file: str) -> None:
    made = planned("--limits", file)
    assert made.rates == (Rate(2), Rate(1000, 3600))
    assert made.limits == {
        "api.example.org": (Rate(10),),
        "example.org/search": (Rate(1, 3), Rate(500, 86400)),
    }
    assert (made.concurrency, made.contact) == (4, "bot@example.org")


def test_the_command_line_has_the_last_word(file: str) -> None:
    made = planned(
        "--limits", file, "--rate", "7/s", "--concurrency", "1", "--contact", "https://me.example/",
        "--limit", "api.example.org=1/s", "--limit", "api.example.org=9/minute",
        "--limit", "b.example=3/s",
    )  # fmt: skip
    assert made.rates == (Rate(7),)
    assert made.limits["api.example.org"] == (Rate(1), Rate(9, 60))
    assert made.limits["b.example"] == (Rate(3),)
    assert "example.org/search" in made.limits
    assert (made.concurrency, made.contact) == (1, "https://me.example/")


def test_without_a_word_a_host_is_asked_as_a_strangers(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("THROTTLE_CONTACT", raising=False)
    assert planned() == Plan((), {}, 1, None)
    assert planned().allowed("a.example") == (Rate(1),)


def test_the_contact_may_stand_in_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("THROTTLE_CONTACT", "me@example.org")
    assert planned().contact == "me@example.org"
    assert "(me@example.org)" in planned().user_agent("1.0")


def test_what_is_allowed_at_a_host_is_what_its_places_say() -> None:
    made = Plan((Rate(5),), {"a.example/x": (Rate(1),), "A.Example:80": (Rate(2),)})
    assert made.allowed("a.example") == (Rate(1), Rate(2))
    assert made.allowed("b.example") == (Rate(5),)


@pytest.mark.parametrize(
    ("rate", "concurrency", "width"),
    [("1/s", 16, 10), ("50/s", 16, 16), ("1/minute", 16, 1), ("inf", 16, 16), ("50/s", 2, 2)],
)
def test_no_more_workers_than_a_rate_can_keep_busy(rate: str, concurrency: int, width: int) -> None:
    assert Plan((Rate.parse(rate),), {}, concurrency).width("a.example") == width


@pytest.mark.parametrize(
    ("words", "named"),
    [
        (["--limit", "example.org"], "'example.org'"),
        (["--limit", "=5/s"], "''"),
        (["--limit", "example.org=often"], "'often'"),
        (["--limit", "example.org=0"], "'0'"),
        (["--limit", "[bad=1/s"], "'[bad'"),
        (["--concurrency", "0"], "--concurrency"),
        (["--contact", "nobody"], "'nobody'"),
        (["--contact", "a@b.example\n"], "--contact"),
        (["--limits", "missing.toml"], "missing.toml"),
        (["--shared", "x", "--redis", "redis://h"], "--redis"),
        (["--redis", "nonsense"], "--redis"),
        (["--max-wait", "-1"], "--max-wait"),
    ],
)
def test_what_is_wrong_is_named(
    words: list[str], named: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    code: object
    try:
        code = main(["fetch", "http://127.0.0.1:9/", "--out", str(tmp_path / "out"), *words])
    except SystemExit as error:
        code = error.code
    assert code == 2
    assert named in capsys.readouterr().err
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    ("text", "named"),
    [
        ("rate = 0", "0"),
        ("rate = []", "rate"),
        ("rate = true", "True"),
        ('rate = "often"', "'often'"),
        ("speed = 3", "'speed'"),
        ("concurrency = 1.5", "1.5"),
        ("contact = 3", "contact"),
        ("limits = 3", "limits"),
        ('[limits]\n"a.example" = "x"', "'x'"),
        ('[limits]\n"" = "1/s"', "''"),
        ("rate = ", "Invalid value"),
        ("\x00", "limits.toml"),
    ],
)
def test_what_is_wrong_in_a_file_is_named(text: str, named: str, tmp_path: Path) -> None:
    path = tmp_path / "limits.toml"
    path.write_text(text)
    with pytest.raises(UsageError) as caught:
        planned("--limits", str(path))
    assert named in str(caught.value)
    assert str(path) in str(caught.value)


# -------------------------------------------------------------------- at work


def test_each_host_has_its_own_limit(tmp_path: Path) -> None:
    with RateLimitedServer("inf", per="header:Host") as server:
        other = server.url.replace("127.0.0.1", "localhost")
        words = [f"{other}/{n}" for n in range(3)] + [server.url_for(f"/{n}") for n in range(3)]
        limits = ["--limit", "localhost=1/0.4s", "--no-robots"]
        assert fetch(tmp_path, *words, *limits) == 0
        hosts: dict[object, list[float]] = {}
        for arrival in server.requests:
            hosts.setdefault(str(arrival.client).partition(":")[0], []).append(arrival.instant)
    assert len(hosts["127.0.0.1"]) == len(hosts["localhost"]) == 3
    assert hosts["localhost"][2] - hosts["localhost"][0] >= 0.7
    # A host is not held up by those before it in the list.
    assert hosts["127.0.0.1"][2] < hosts["localhost"][2]


def test_who_asks_says_who_he_is(tmp_path: Path) -> None:
    with RateLimitedServer("inf", per="header:User-Agent") as server:
        assert fetch(tmp_path, server.url, "--contact", "me@example.org") == 0
        agents = {str(arrival.client) for arrival in server.requests}
    assert len(agents) == 1
    assert agents.pop().startswith("throttle-fetch/")


def test_strangers_are_not_asked_without_a_contact(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("THROTTLE_CONTACT", raising=False)
    assert fetch(tmp_path / "out", "http://stranger.invalid/") == 2
    said = capsys.readouterr().err
    assert "--contact" in said
    assert "stranger.invalid" in said
    assert said.count("\n") == 1


# -------------------------------------------------------------------- shared


def test_runs_share_a_limit_through_a_folder(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    shared = tmp_path / "pace"
    with RateLimitedServer("inf") as server:
        for number in range(2):
            words = [server.url_for(f"/{number}"), "--no-robots", "--shared", str(shared)]
            assert fetch(tmp_path / str(number), *words, rate="3/hour") == 0
        (path,) = shared.iterdir()
        limiter = FileLimiter(path, limiter_for(late(Rate(3, 3600))))
        assert limiter.available() == 1
        limiter.close()
        words = [server.url_for("/x"), "--no-robots", "--shared", str(shared)]
        assert fetch(tmp_path / "x", *words, rate="4/hour") == 2
    said = capsys.readouterr().err.splitlines()[-1]
    assert "shared limits" in said
    assert "limit=3" in said
    assert server_saw(tmp_path) == 2


def server_saw(folder: Path) -> int:
    return sum(len(manifest(out)) for out in folder.iterdir())


def test_a_pause_that_one_run_is_asked_for_is_everybodys(tmp_path: Path) -> None:
    shared = tmp_path / "pace"
    with RateLimitedServer("1/hour", dialect="retry-after") as server:
        words = [server.url_for("/a"), server.url_for("/b")]
        options = ["--no-robots", "--shared", str(shared), "--concurrency", "1"]
        assert fetch(tmp_path / "out", *words, *options, rate="100/s") == 1
        assert server.refused == 1
    (path,) = shared.iterdir()
    limiter = FileLimiter(path, limiter_for(late(Rate(100))))
    assert limiter.delay() > 3000
    limiter.close()


def test_runs_share_a_limit_through_a_redis(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with RateLimitedServer("inf") as server:
        words = [server.url_for("/a"), server.url_for("/b"), "--no-robots"]
        with RedisServer() as redis:
            url = f"redis://127.0.0.1:{redis.port}/0"
            assert fetch(tmp_path / "a", *words, "--redis", url, rate="50/hour") == 0
            assert list(redis.admin.scan_iter("*throttle-fetch:127.0.0.1*"))
        gone = f"redis://127.0.0.1:{free_port()}/0"
        assert fetch(tmp_path / "b", *words, "--redis", gone) == 2
        assert server.admitted == 2
    assert "shared limits" in capsys.readouterr().err.splitlines()[-1]


def test_the_last_of_a_window_may_arrive_late() -> None:
    assert late(Rate(10)) == Rate(10, 1.1)
    assert late(Rate(100, 60)) == Rate(100, 60.25)


def test_without_a_rate_one_request_follows_the_other_a_second_later(tmp_path: Path) -> None:
    with RateLimitedServer("inf") as server:
        words = [server.url_for("/a"), server.url_for("/b"), "--no-robots"]
        assert fetch(tmp_path, *words, rate=None) == 0
        first, second = (arrival.instant for arrival in server.requests)
    assert second - first >= 0.9
