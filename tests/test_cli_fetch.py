"""`throttle fetch`: what it downloads, what it keeps, and how it ends."""

from __future__ import annotations

import hashlib
import io
import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from helpers.fetching import check_files, manifest

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
    assert main(["fetch", url, "--max-bytes", "10k", "--out", str(tmp_path)]) == 1
    assert "10240" in manifest(tmp_path)[0]["error"]
    assert [path for path in tmp_path.rglob("*") if path.is_file()] == [tmp_path / "manifest.jsonl"]


def test_ctrl_c_ends_with_a_true_manifest(server: RateLimitedServer, tmp_path: Path) -> None:
    urls = tmp_path / "urls.txt"
    urls.write_text("\n".join(server.url_for(f"/{n}?bytes=1000") for n in range(500)))
    out = tmp_path / "out"
    command = [sys.executable, "-m", "throttle", "fetch", str(urls)]
    program = subprocess.Popen(
        [*command, "--rate", "50/s", "--out", str(out)], stderr=subprocess.PIPE, text=True
    )
    while not (out / "manifest.jsonl").exists() or not manifest_lines(out):
        assert program.poll() is None
    os.kill(program.pid, signal.SIGINT)
    _, said = program.communicate(timeout=30)
    assert program.returncode == 130, said
    assert "interrupted" in said
    check_files(out)
    assert main(["fetch", str(urls), "--rate", "2000/s", "--out", str(out)]) == 0
    assert len({line["url"] for line in manifest(out)}) == len(manifest(out)) == 500


def manifest_lines(folder: Path) -> int:
    return (folder / "manifest.jsonl").read_bytes().count(b"\n")


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
