"""`throttle inspect`: a live server, and recorded responses."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from throttle.cli import main
from throttle.testing import RateLimitedServer


def har(path: Path, *responses: dict[str, Any]) -> Path:
    """A HAR export, as browsers write them."""
    entries = [
        {
            "startedDateTime": "2026-01-01T00:00:00.000Z",
            "time": 120.5,
            "request": {
                "method": "GET",
                "url": one.get("url", "https://api.example.org/items?k=1"),
            },
            "response": {
                "status": one["status"],
                "headers": [{"name": n, "value": v} for n, v in one["headers"]],
                "content": {"size": 0, "mimeType": "application/json", "text": one.get("text", "")},
            },
        }
        for one in responses
    ]
    text = json.dumps({"log": {"version": "1.2", "entries": entries}})
    path.write_text(text, encoding="utf-8-sig")
    return path


@pytest.mark.parametrize(
    ("dialect", "said"),
    [
        ("ietf", ["RateLimit-Policy", '"127.0.0.1": "2/minute"']),
        ("github", ["X-RateLimit-Remaining", "names no window"]),
        ("openai", ["x-ratelimit-reset-requests"]),
        ("none", ["says nothing about limits"]),
    ],
)
def test_a_server_is_asked_once(
    dialect: str, said: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    with RateLimitedServer("2/minute", dialect=dialect) as server:
        assert main(["inspect", server.url_for("/x?secret=1")]) == 0
        assert server.admitted == 1
    out = capsys.readouterr().out
    assert all(text in out for text in said)
    assert "secret" not in out
    assert "\x1b" not in out


def test_a_refusal_is_decoded(capsys: pytest.CaptureFixture[str]) -> None:
    with RateLimitedServer("1/minute") as server:
        assert main(["inspect", server.url]) == 0
        assert main(["inspect", "--method", "HEAD", "--header", "X-A: b", server.url]) == 0
    out = capsys.readouterr().out
    assert "429" in out
    assert "throttled" in out
    assert "wait_s" in out


def test_recorded_responses_are_read(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = har(
        tmp_path / "x.har",
        {"status": 200, "headers": [("Content-Type", "text/html")]},
        {"status": 200, "headers": [("RateLimit-Policy", '"a";q=10;w=1, "b";q=500;w=3600')]},
        {
            "status": 403,
            "headers": [("Content-Type", "application/json")],
            "text": '{"message": "You have exceeded a secondary rate limit"}',
        },
    )
    assert main(["inspect", "--har", str(path)]) == 0
    out = capsys.readouterr().out
    assert "3 responses, 2 of them speak of limits" in out
    assert '{"api.example.org": ["10/s", "500/hour"]}' in out.replace("\n", "")
    assert "403" in out


def repeated(url: str, count: int, *headers: tuple[str, str]) -> list[dict[str, Any]]:
    """Responses that differ in what is left only."""
    return [
        {
            "url": f"{url}?page={n}",
            "status": 200,
            "headers": [*headers, ("X-RateLimit-Remaining", str(90 - n))],
        }
        for n in range(count)
    ]


def test_a_session_of_several_hosts_is_told_by_host_and_kind(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = har(
        tmp_path / "x.har",
        *repeated("https://api.example.org/list", 20, ("X-RateLimit-Limit", "100")),
        *9 * [{"url": "https://static.example.org/x.js", "status": 200, "headers": []}],
        {"url": "https://blocked.example/", "status": 0, "headers": []},
        {
            "url": "https://new.example/a?token=secret",
            "status": 200,
            "headers": [
                ("RateLimit-Policy", '"a";q=10;w=1, "b";q=500;w=3600'),
                ("RateLimit", '"a";r=3;t=1, "b";r=499;t=3600'),
            ],
        },
        {
            "url": "https://new.example/b",
            "status": 200,
            "headers": [("RateLimit-Policy", '"c";q=5;w=86400'), ("RateLimit", '"c";r=4;t=10')],
        },
        {"url": "https://old.example/", "status": 429, "headers": [("Retry-After", "7")]},
    )  # fmt: skip
    assert main(["inspect", "--har", str(path)]) == 0
    out = capsys.readouterr().out
    assert "32 responses, 23 of them speak of limits" in out
    rows = {line.split()[0]: line.split()[1:] for line in out.splitlines() if ".example" in line}
    assert rows["api.example.org"] == ["20", "0", "71", "x-ratelimit"]
    assert rows["static.example.org"] == ["9", "0"]
    assert rows["old.example"] == ["1", "1"]
    assert "blocked.example" not in out
    assert out.count("https://api.example.org/list") == 1
    assert "(20 alike, this is the last)" in out
    assert "3 of 10 requests in 1 s, renewed in 1 s" in out
    assert '{"new.example": ["10/s", "500/hour", "5/day"]}' in out
    assert "secret" not in out


def test_a_hostile_answer_is_shown_as_it_is(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = har(
        tmp_path / "x.har",
        {"status": 429, "headers": [("Retry-After", "\x1b[31m[bold]9[/bold][/nonsense]")]},
    )
    assert main(["inspect", "--har", str(path)]) == 0
    out = capsys.readouterr().out
    assert "\x1b" not in out
    assert "[bold]9[/bold][/nonsense]" in out


def test_a_server_that_does_not_answer_is_a_failure(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["inspect", "http://127.0.0.1:9/"]) == 1
    said = capsys.readouterr().err
    assert "http://127.0.0.1:9/" in said
    assert said.count("\n") == 1


@pytest.mark.parametrize(
    ("words", "named"),
    [
        ([], "URL"),
        (["http://127.0.0.1:9/", "--har", "x"], "either"),
        (["nonsense"], "nonsense"),
        (["--har", "missing.har"], "missing.har"),
        (["http://127.0.0.1:9/", "--header", "no-colon"], "'no-colon'"),
    ],
)
def test_what_is_wrong_is_named(
    words: list[str], named: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["inspect", *words]) == 2
    assert named in capsys.readouterr().err


@pytest.mark.parametrize(
    "text", ["", "{}", "[]", '{"log": {"entries": [{}]}}', '{"log": 3}', "\x00"]
)
def test_a_file_that_is_no_har_is_named(
    text: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "x.har").write_text(text)
    assert main(["inspect", "--har", str(tmp_path / "x.har")]) == 2
    assert "x.har" in capsys.readouterr().err
