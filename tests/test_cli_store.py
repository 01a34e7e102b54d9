"""What `throttle fetch` keeps on disk: names, whole files, and a manifest that is true."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from throttle.cli.store import Store, file_name


def manifest(folder: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (folder / "manifest.jsonl").read_text().splitlines()]


HOSTILE = [
    "http://h/../../etc/passwd",
    "http://h/%2e%2e/%2e%2e/etc/passwd",
    "http://h/" + "a" * 5000,
    "http://" + "h" * 300 + "/x." + "e" * 300,
    "http://h/a%00b",
    "http://h/CON",
    "http://h/nul.txt",
    "http://h/.hidden",
    "http://h/..%5c..%5cwindows",
    "http://user:secret@h/x",
    "http://../x",
    "http://h/\udcff",
    "http://h/?q=" + "\x1b[31m",
    "http://h",
    "http://[::1]:8080/x",
    "http://manifest.jsonl/x",
    "http://AUX/x",
    "http://com1.example/x",
    "http://.parts/x",
]


@pytest.mark.parametrize("url", HOSTILE)
def test_a_hostile_url_gets_a_harmless_name(url: str, tmp_path: Path) -> None:
    name = file_name(url)
    path = (tmp_path / name).resolve()
    assert path.is_relative_to(tmp_path)
    assert len(name) < 200
    assert "secret" not in name
    assert not Path(name).name.startswith(".")
    for part in Path(name).parts:
        assert part.split(".")[0].upper() not in {"CON", "NUL", "AUX", "PRN", "COM1"}
        assert part not in (".parts", "manifest.jsonl")
    path.parent.mkdir(parents=True)
    path.write_bytes(b"")


def test_names_that_differ_only_in_case_are_different() -> None:
    assert file_name("http://h/A").lower() != file_name("http://h/a").lower()


def opened(folder: Path) -> tuple[Store, set[str]]:
    """The store of a folder, and what it says has been fetched."""
    seen: set[str] = set()

    def is_new(url: str) -> bool:
        known = url in seen
        seen.add(url)
        return not known

    return Store(folder, is_new), seen


def keep(store: Store, url: str, body: bytes) -> None:
    part = store.part()
    part.write_bytes(body)
    store.write({"url": url, "bytes": len(body), "file": store.keep(part, url)})


def test_a_torn_last_line_of_the_manifest_is_dropped(tmp_path: Path) -> None:
    with opened(tmp_path)[0] as store:
        keep(store, "http://h/x", b"body")
    with (tmp_path / "manifest.jsonl").open("a") as file:
        file.write('{"url": "http://h/y", "fi')
    store, seen = opened(tmp_path)
    with store:
        assert store.finished == 1
        assert seen == {"http://h/x"}
    assert [line["url"] for line in manifest(tmp_path)] == ["http://h/x"]


def test_what_a_kill_left_of_a_body_is_cleared_away_and_nothing_else(tmp_path: Path) -> None:
    mine = tmp_path / "mine.part"
    mine.write_text("of another program")
    store, _ = opened(tmp_path)
    store.part().write_bytes(b"half")
    store._manifest.close()  # killed: what the system does then
    store._unlock()
    store, seen = opened(tmp_path)
    with store:
        assert (store.finished, seen) == (0, set())
    assert set(tmp_path.iterdir()) == {mine, tmp_path / "manifest.jsonl"}


@pytest.mark.parametrize("name", ["keep", "sub", "1.bak"])
def test_a_folder_of_parts_that_was_there_before_loses_nothing(name: str, tmp_path: Path) -> None:
    theirs = tmp_path / "theirs"
    theirs.mkdir()
    (theirs / name).mkdir() if name == "sub" else (theirs / name).write_text("of another program")
    out = tmp_path / "out"
    out.mkdir()
    (out / ".parts").symlink_to(theirs)
    for _ in range(2):
        with opened(out)[0] as store:
            keep(store, "http://h/x", b"body")
    assert [path.name for path in theirs.iterdir()] == [name]


@pytest.mark.parametrize(
    "line",
    [
        "[" * 200_000,
        '{"url": "http://h/\\ud800", "file": "FILE", "bytes": 4}',
        '{"url": "http://[::1", "file": "FILE", "bytes": 4}',
        '{"url": "not a url", "file": "FILE", "bytes": 4}',
        '{"url": "http://h/y", "file": "a\\u0000b", "bytes": 4}',
        '{"url": "http://h/y", "file": "' + "x" * 5000 + '", "bytes": 4}',
        '{"url": ["http://h/y"], "file": 3}',
        '{"url": "http://h/y", "file": ".", "bytes": ' + "9" * 5000 + "}",
        "null",
        "\x00\x7f",
    ],
    ids=lambda line: line[:40],
)
def test_a_manifest_that_was_edited_by_hand_stops_no_run(line: str, tmp_path: Path) -> None:
    with opened(tmp_path)[0] as store:
        keep(store, "http://h/x", b"body")
    text = (tmp_path / "manifest.jsonl").read_text()
    (tmp_path / "manifest.jsonl").write_text(
        f"{line.replace('FILE', file_name('http://h/x'))}\n{text}"
    )
    store, seen = opened(tmp_path)
    with store:
        assert "http://h/x" in seen
    assert "http://h/x" in [one["url"] for one in manifest(tmp_path)]


@pytest.mark.parametrize("damage", ["gone", "short"])
def test_a_file_that_is_not_there_any_more_is_fetched_again(damage: str, tmp_path: Path) -> None:
    with opened(tmp_path)[0] as store:
        keep(store, "http://h/x", b"body")
        path = tmp_path / file_name("http://h/x")
    if damage == "gone":
        path.unlink()
    else:
        path.write_bytes(b"bo")
    store, seen = opened(tmp_path)
    with store:
        assert (store.finished, seen) == (0, set())
