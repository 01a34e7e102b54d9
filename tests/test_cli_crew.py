"""The list of `throttle fetch` and who works at it."""

from __future__ import annotations

import asyncio
import tracemalloc
from collections import Counter
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path

import pytest

from throttle.cli.crew import Crew
from throttle.cli.sources import pieces, read_ahead
from throttle.cli.tally import Tally
from throttle.cli.target import Target, is_here, target
from throttle.cli.todo import Todo
from throttle.testing import virtual_time


@pytest.fixture
def todo() -> Iterator[Todo]:
    made = Todo()
    yield made
    made.close()


def page(host: str, number: int) -> Target:
    return target(f"http://{host}/{number}")


def work_at(
    todo: Todo,
    targets: list[Target],
    work: Callable[[Crew, Target], Awaitable[None]],
    *,
    width: int,
    most: int = 100,
) -> None:
    """Have a crew do them all, on virtual time."""

    async def run() -> None:
        async with asyncio.TaskGroup() as group:
            crew = Crew(todo, lambda one: work(crew, one), group, width=lambda _: width, most=most)
            for one in targets:
                crew.add(one)

    with virtual_time() as time:
        time.run(run)


@pytest.mark.parametrize(("width", "most"), [(1, 1), (1, 3), (4, 3), (4, 8), (3, 100)])
def test_everything_is_done_once_by_no_more_than_may_work(
    width: int, most: int, todo: Todo
) -> None:
    done: list[str] = []
    busy: Counter[str] = Counter()
    peaks: list[int] = []
    at_host: list[int] = []

    async def work(crew: Crew, one: Target) -> None:
        busy[one.host] += 1
        peaks.append(busy.total())
        at_host.append(busy[one.host])
        await asyncio.sleep(len(one.url) % 3)
        busy[one.host] -= 1
        done.append(one.url)

    targets = [page(f"h{number % 7}", number) for number in range(60)]
    work_at(todo, targets, work, width=width, most=most)
    assert sorted(done) == sorted(one.url for one in targets)
    assert max(at_host) <= width
    assert max(peaks) <= max(most, width)


def test_a_host_is_not_held_up_by_those_before_it_in_the_list(todo: Todo) -> None:
    ended: dict[str, float] = {}

    async def work(crew: Crew, one: Target) -> None:
        await asyncio.sleep(1.0)
        ended[one.host] = asyncio.get_running_loop().time()

    targets = [page("slow", number) for number in range(5000)] + [page("other", 1)]
    work_at(todo, targets, work, width=1)
    assert ended == {"slow": 5000.0, "other": 1.0}


def test_what_comes_when_a_lane_has_ended_begins_another(todo: Todo) -> None:
    done: list[str] = []

    async def work(crew: Crew, one: Target) -> None:
        done.append(one.url)
        if len(done) < 5:
            crew.add(page("a", len(done)))

    work_at(todo, [page("a", 0)], work, width=2)
    assert done == [f"http://a/{number}" for number in range(5)]


def test_an_error_of_the_work_ends_all(todo: Todo) -> None:
    async def work(crew: Crew, one: Target) -> None:
        raise OSError("no space left")

    with pytest.raises(ExceptionGroup):
        work_at(todo, [page("a", 0), page("b", 0)], work, width=2)


def test_a_long_list_is_not_kept_in_memory(todo: Todo) -> None:
    todo.add(page("a", -1))
    tracemalloc.start()
    try:
        before, _ = tracemalloc.get_traced_memory()
        for number in range(5000):
            todo.add(Target(f"http://a/{number}", f"http://a/{number}", "a"))
        after, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert after - before < 20_000  # four bytes a URL


# -------------------------------------------------------------------- URLs


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("http://h", "http://h/"),
        ("HTTP://H/a", "http://h/a"),
        ("http://h./a", "http://h/a"),
        ("http://h:80/a", "http://h/a"),
        ("https://h:443/a", "https://h/a"),
        ("http://h/a#x", "http://h/a#y"),
        ("http://h/%41", "http://h/A"),
        ("http://h/x/../a", "http://h/a"),
        ("http://h/ä", "http://h/%C3%A4"),
        ("http://é.example/", "http://xn--9ca.example/"),
        ("http://h/\udcff", "http://h/%FF"),
    ],
)
def test_spellings_of_one_resource_are_one(one: str, other: str, todo: Todo) -> None:
    assert target(one).key == target(other).key
    assert todo.add(target(one))
    assert not todo.add(target(other))
    taken = todo.take(target(one).host)
    assert taken is not None
    assert taken.url == one  # as it was listed
    assert todo.take(target(one).host) is None


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("http://h/a", "http://h/A"),
        ("http://h/a", "https://h/a"),
        ("http://h/a", "http://h:8080/a"),
        ("http://h/a?x", "http://h/a?y"),
        ("http://h/a%2Fb", "http://h/a/b"),
        ("http://u:p@h/a", "http://h/a"),
        ("http://h/\udcff", "http://h/"),
    ],
)
def test_different_resources_are_two(one: str, other: str) -> None:
    assert target(one).key != target(other).key


@pytest.mark.parametrize(
    "url",
    ["", "x", "mailto:a@b", "ftp://h/", "http://", "http:///x", "http://[bad", "http://h:99999/",
     "http://..//x", "//h/x", "http://h\\x/"],
)  # fmt: skip
def test_what_is_no_url_is_told(url: str) -> None:
    with pytest.raises(ValueError, match="not an http"):
        target(url)


def test_this_machine_is_known_by_its_names() -> None:
    here = ["localhost", "a.localhost", "127.0.0.1", "127.9.9.9", "::1"]
    assert [
        host for host in [*here, "example.org", "10.0.0.1", "localhost.example"] if is_here(host)
    ] == here


# -------------------------------------------------------------------- lists


@pytest.mark.parametrize(
    ("content", "urls"),
    [
        (b"http://a/\nhttp://b/\n", ["http://a/", "http://b/"]),
        (b"http://a/\r\n\r\n  http://b/  ", ["http://a/", "http://b/"]),
        (b"\xef\xbb\xbfhttp://a/\n# no\n\n", ["http://a/"]),
        (b"http://a/\xff\n", ["http://a/\udcff"]),
        (b"", []),
        (b"x" * 3_000_000, None),
    ],
)
def test_a_list_has_one_url_a_line(content: bytes, urls: list[str] | None, tmp_path: Path) -> None:
    path = tmp_path / "list"
    path.write_bytes(content)
    found = [url for piece in pieces([str(path)]) for url in piece]
    if urls is None:  # no list at all: it is not gathered in memory
        assert sum(map(len, found)) == len(content)
        assert max(map(len, found)) < 2_000_000
    else:
        assert found == urls


def test_a_long_list_comes_in_pieces(tmp_path: Path) -> None:
    path = tmp_path / "list"
    path.write_text("".join(f"http://a/{number}\n" for number in range(50_000)))
    parts = list(pieces([str(path)]))
    assert [url for part in parts for url in part] == [f"http://a/{n}" for n in range(50_000)]
    assert max(map(len, parts)) < 2000


def test_a_list_that_cannot_be_read_is_an_error(tmp_path: Path) -> None:
    async def read() -> None:
        async for _ in read_ahead(pieces([str(tmp_path)])):  # a folder
            pass

    with pytest.raises(IsADirectoryError):
        asyncio.run(read())


def test_reading_does_not_run_ahead_of_the_use() -> None:
    given: list[int] = []

    def source() -> Iterator[list[str]]:
        for number in range(1000):
            given.append(number)
            yield [str(number)]

    async def read() -> list[str]:
        got: list[str] = []
        async for piece in read_ahead(source()):
            got += piece
            assert len(given) <= len(got) + 6
        return got

    assert asyncio.run(read()) == [str(number) for number in range(1000)]


# -------------------------------------------------------------------- numbers


def test_who_keeps_to_a_limit_is_never_told_to_have_been_faster() -> None:
    tally = Tally()
    for number in range(200):  # 50 at the beginning of each second
        tally.note(float(number // 50), 1)
    assert tally.rate(1.0) == 50.0
    assert Tally().rate(1.0) == 0.0


def test_the_sum_counts_along() -> None:
    total = Tally()
    one, other = Tally(together=total), Tally(together=total)
    one.count(listed=2, fetched=1, size=10)
    other.count(listed=1, failed=1)
    assert (total.listed, total.done, total.size) == (3, 2, 10)
    assert (one.listed, other.listed) == (2, 1)


@pytest.mark.parametrize("key", ["http://h/\ud800", "", "not a url", "x" * 10**6], ids=len)
def test_any_text_can_be_asked_about(todo: Todo, key: str) -> None:
    assert [todo.is_new(key), todo.is_new(key), todo.is_new(key + "x")] == [True, False, True]
