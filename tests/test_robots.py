"""robots.txt: what it says to one crawler, and the cache that fetches it."""

from __future__ import annotations

import json
import random
import subprocess
import sys
from datetime import time
from itertools import pairwise
from pathlib import Path
from typing import Any

import anyio
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from yarl import URL

from throttle import clock
from throttle.http import robots_cache
from throttle.http.robots import LARGEST, LONGEST_DELAY, RequestRate, Robots, product_of
from throttle.http.robots_cache import RobotsCache

VECTORS = json.loads((Path(__file__).parent / "vectors" / "headers.json").read_text("utf-8"))
NOON = 1_700_000_000 - 1_700_000_000 % 86400 + 12 * 3600
HOUR = 3600.0


def url(path: str) -> URL:
    return URL("http://site.test" + path, encoded=True)


# -------------------------------------------------------------------- delays


@pytest.mark.parametrize("vector", VECTORS["robots_vectors"], ids=lambda vector: vector["id"])
def test_vector(vector: dict[str, Any]) -> None:
    expect = vector["expect"]
    robots = Robots.parse(vector["robots"], "examplebot")
    assert robots.crawl_delay == expect["crawl_delay_s"]
    rates = [[rate.requests, rate.seconds] for rate in robots.rates]
    assert rates == ([] if expect["request_rate"] is None else [expect["request_rate"]])
    if "start" in expect:
        assert robots.rates[0].start == time.fromisoformat(expect["start"])
        assert robots.rates[0].end == time.fromisoformat(expect["end"])
    if "effective_interval_s" in expect:
        assert robots.interval(NOON) == expect["effective_interval_s"]


@pytest.mark.parametrize(
    ("text", "delay"),
    [
        ("0.2", 0.2),
        (".5", 0.5),
        ("7.", 7.0),
        ("10 # please", 10.0),
        ("\t3  ", 3.0),
        ("0", None),
        ("0.0", None),
        ("-1", None),
        ("+1", None),
        ("1e3", None),
        ("1_000", None),
        ("inf", None),
        ("1e308", None),
        ("1,5", None),
        ("0x10", None),
        ("10s", None),
        ("", None),
        ("٣", None),
        ("1\N{NO-BREAK SPACE}0", None),
        ("9" * 19, None),
        ("9" * 5000, None),
        ("999999999", LONGEST_DELAY),
    ],
)
def test_a_delay_is_a_plain_number_or_nothing(text: str, delay: float | None) -> None:
    robots = Robots.parse(f"User-agent: *\nCrawl-delay: {text}\nDisallow: /a", "bot")
    assert robots.crawl_delay == delay
    assert robots.interval(NOON) == (delay or 0)
    assert not robots.allows(url("/a"))


@pytest.mark.parametrize("spelling", ["Crawl-delay: 4", "crawl-DELAY:4", "Crawl delay 4"])
def test_spellings_of_the_directive(spelling: str) -> None:
    assert Robots.parse(f"User-agent: *\n{spelling}", "bot").crawl_delay == 4


@pytest.mark.parametrize(
    ("text", "rate"),
    [
        ("1/10", RequestRate(1, 10)),
        ("10/1m", RequestRate(10, 60)),
        ("2/1h", RequestRate(2, 3600)),
        ("1/1d", RequestRate(1, 86400)),
        ("1/5s", RequestRate(1, 5)),
        ("1 / 5", RequestRate(1, 5)),
        ("1/10m 1300-1659", RequestRate(1, 600, time(13, 0), time(16, 59))),
        ("1/10m 13:00 - 16:59", RequestRate(1, 600, time(13, 0), time(16, 59))),
        ("0/0", None),
        ("0/5", None),
        ("5/0", None),
        ("1/5w", None),
        ("1/10 2500-2600", None),
        ("-1/5", None),
        ("1/٣", None),
        ("1", None),
        ("", None),
        ("1/" + "9" * 5000, None),
    ],
)
def test_a_request_rate_is_read_strictly(text: str, rate: RequestRate | None) -> None:
    robots = Robots.parse(f"User-agent: *\nRequest-rate: {text}", "bot")
    assert robots.rates == (() if rate is None else (rate,))


@pytest.mark.parametrize(
    ("window", "inside", "outside"),
    [
        ("1300-1659", ["13:00", "15:00", "16:59"], ["12:59", "17:00", "00:00"]),
        ("2300-0100", ["23:00", "00:00", "01:00"], ["22:59", "01:01", "12:00"]),
    ],
)
def test_a_request_rate_holds_in_its_hours(
    window: str, inside: list[str], outside: list[str]
) -> None:
    robots = Robots.parse(f"User-agent: *\nRequest-rate: 1/10 {window}\nCrawl-delay: 2", "bot")
    midnight = NOON - 12 * 3600

    def at(text: str) -> float:
        moment = time.fromisoformat(text)
        return robots.interval(midnight + moment.hour * 3600 + moment.minute * 60 + 59.9)

    assert [at(text) for text in inside] == [10.0] * len(inside)
    assert [at(text) for text in outside] == [2.0] * len(outside)


def test_of_duplicates_the_slowest_over_all_groups() -> None:
    text = """
    User-agent: bot
    Crawl-delay: 9
    Crawl-delay: 2
    Request-rate: 1/30
    Request-rate: 1/5

    User-agent: other
    Crawl-delay: 100

    User-agent: BOT
    Crawl-delay: 3
    """
    robots = Robots.parse(text, "Bot")
    assert robots.crawl_delay == 9
    assert robots.interval(NOON) == 30
    assert Robots.parse(text, "other").interval(NOON) == 100
    assert Robots.parse(text, "nobody").interval(NOON) == 0


# -------------------------------------------------------------------- rules


def test_the_group_of_the_crawler_and_only_that() -> None:
    text = """\ufeff# hello
User-agent: *
Disallow: /
Sitemap: http://site.test/map.xml

User-agent: examplebot
User-agent: friend
Disallow: /private
Allow: /private/open$
Disallow: /*.pdf$
Disallow:
"""
    robots = Robots.parse(text, "ExampleBot")
    allowed = ["/", "/a", "/private/open", "/x.pdfs", "/robots.txt"]
    forbidden = ["/private", "/private/x", "/private/open/er", "/x.pdf"]
    assert [path for path in allowed + forbidden if robots.allows(url(path))] == allowed
    assert not Robots.parse(text, "stranger").allows(url("/a"))
    assert Robots.parse(text, "friend").allows(url("/a"))


def test_groups_of_one_name_are_combined() -> None:
    text = "User-agent: a\nDisallow: /1\nUser-agent: b\nDisallow: /2\nUser-agent: a\nDisallow: /3"
    robots = Robots.parse(text, "a")
    assert [robots.allows(url(path)) for path in ("/1", "/2", "/3")] == [False, True, False]


@pytest.mark.parametrize(
    "path", ["//other.test/a", "/a?x=/b", "/a;p", "/%61", "/ä", "/a#frag", "/a//b"]
)
def test_odd_paths_are_matched_as_paths(path: str) -> None:
    everything = Robots.parse("User-agent: *\nDisallow: /", "bot")
    assert not everything.allows(URL("http://site.test" + path))
    nothing = Robots.parse("User-agent: *\nDisallow: /nothing", "bot")
    assert nothing.allows(URL("http://site.test" + path))


def test_the_query_is_matched_and_the_fragment_is_not() -> None:
    robots = Robots.parse("User-agent: *\nDisallow: /*?s=\nDisallow: /*frag", "bot")
    assert not robots.allows(url("/find?s=1"))
    assert robots.allows(URL("http://site.test/find#frag"))


def test_robots_txt_itself_may_always_be_fetched() -> None:
    assert Robots.parse("User-agent: *\nDisallow: /", "bot").allows(url("/robots.txt"))
    assert Robots.unreachable("x").allows(url("/robots.txt"))


def test_half_a_megabyte_is_parsed_and_no_half_line_beyond() -> None:
    line = b"Disallow: /%06d\n"
    count = (LARGEST - 14) // len(line % 0)
    head = b"User-agent: *\n" + b"".join(line % number for number in range(count))
    text = head + b"Allow: /000000\nDisallow: /" + b"x" * 100_000
    assert len(head) <= LARGEST < len(text)
    robots = Robots.parse(text, "bot")
    assert not robots.allows(url(f"/{count - 1:06d}"))
    assert robots.allows(url("/other"))
    cut = Robots.parse(b"User-agent: *\n" + b"#" * (LARGEST - 24) + b"\nDisallow: /abc", "bot")
    assert cut.allows(url("/a"))


@given(st.binary(max_size=400) | st.text(max_size=400))
def test_garbage_neither_raises_nor_delays_for_ever(content: bytes | str) -> None:
    robots = Robots.parse(content, "bot")
    assert 0 <= robots.interval(NOON) <= LONGEST_DELAY
    assert robots.allows(url("/a")) in (True, False)


LINES = st.sampled_from(
    [
        "User-agent: *",
        "User-agent: bot",
        "useragent bot*",
        "User agent: b",
        "Disallow: /a",
        "Disallow: /",
        "Allow: /a/b",
        "Crawl-delay: 3",
        "Crawl-delay: 1e9",
        "Request-rate: 1/7 0000-2359",
        "Visit-time: 0100-0200",
        "Sitemap: http://site.test/s",
        "Host: site.test",
        "nonsense",
        "two words",
        "unknown: field",
        "Disallow /c",
        "dissalow: /c",
        "# comment",
        "",
    ]
)


@given(st.lists(LINES, max_size=12), st.sampled_from(["bot", "b", "other"]))
@example(["User-agent: *", "nonsense", "User-agent: bot", "Disallow: /a"], "b")
@example(["User-agent: *", "unknown: field", "User-agent: bot", "Disallow: /a"], "b")
@example(["User-agent: *", "Disallow /a", "User-agent: bot", "Disallow: /"], "b")
@settings(max_examples=500)
def test_what_is_kept_of_a_file_decides_as_the_whole_file_does(
    lines: list[str], product: str
) -> None:
    from protego import Protego

    text = "\n".join(lines)
    whole = Protego.parse(text)
    robots = Robots.parse(text, product)
    for path in ("/", "/a", "/a/b", "/c"):
        assert robots.allows(url(path)) == whole.can_fetch(str(url(path)), product), path
    assert robots.crawl_delay == whole.crawl_delay(product) or "Crawl-delay: 1e9" in text


# -------------------------------------------------------------------- answers


@pytest.mark.parametrize("status", [200, 204, 206, 299])
def test_a_success_is_obeyed(status: int) -> None:
    robots = Robots.answered(status, b"User-agent: *\nDisallow: /a", "bot")
    assert not robots.is_unreachable
    assert [robots.allows(url(path)) for path in ("/a", "/b")] == [False, True]


@pytest.mark.parametrize("status", [300, 304, 400, 401, 403, 404, 410, 451, 499])
def test_no_file_means_no_rules(status: int) -> None:
    robots = Robots.answered(status, b"User-agent: *\nDisallow: /", "bot")
    assert robots.allows(url("/a"))
    assert not robots.is_unreachable


@pytest.mark.parametrize("status", [100, 429, 500, 502, 503, 504, 599, 999])
def test_an_unreachable_file_forbids_everything(status: int) -> None:
    robots = Robots.answered(status, b"User-agent: *\nAllow: /", "bot")
    assert not robots.allows(url("/a"))
    assert robots.is_unreachable
    assert str(status) in (robots.reason or "")


@pytest.mark.parametrize(
    ("agent", "product"),
    [
        ("examplebot/1.0 (+https://example.org)", "examplebot"),
        ("example_bot-2", "example_bot-2"),
        ("Mozilla/5.0 (compatible; examplebot/1.0; +https://example.org)", "examplebot"),
        ("(nobody) x", ""),
    ],
)
def test_the_product_token(agent: str, product: str) -> None:
    assert product_of(agent) == product


# -------------------------------------------------------------------- the cache


class Site:
    """Counts fetches; answers from a script, then an empty file for ever."""

    def __init__(self, *script: Any, seconds: float = 0.0) -> None:
        self.script = list(script)
        self.seconds = seconds
        self.fetches: list[tuple[str, float]] = []

    async def __call__(self, origin: URL) -> Robots:
        self.fetches.append((str(origin), clock.now()))
        await anyio.sleep(self.seconds)
        step = self.script.pop(0) if self.script else Robots()
        if isinstance(step, BaseException):
            raise step
        return step


SITE = URL("http://site.test")
RULES = Robots.parse("User-agent: *\nDisallow: /a", "bot")
DOWN = Robots.unreachable("status 503")


@pytest.mark.anyio
async def test_many_at_once_fetch_once() -> None:
    site = Site(RULES, seconds=2)
    cache = RobotsCache(site)
    got = []

    async def one() -> None:
        got.append((await cache.get(SITE)).robots)

    async with anyio.create_task_group() as tasks:
        for _ in range(10):
            tasks.start_soon(one)
    assert got == [RULES] * 10
    assert len(site.fetches) == 1
    assert clock.now() == 2


@pytest.mark.anyio
async def test_an_answer_is_asked_for_again_after_a_day() -> None:
    site = Site(RULES)
    cache = RobotsCache(site)
    for _ in range(3):
        await cache.get(SITE)
        await anyio.sleep(24 * HOUR - 1 if clock.now() == 0 else 1)
    assert [instant for _, instant in site.fetches] == [0, 86400]
    assert (await cache.get(SITE)).robots == Robots()


@pytest.mark.anyio
async def test_who_fetches_may_be_cancelled_and_another_takes_over() -> None:
    site = Site(RULES, seconds=2)
    cache = RobotsCache(site)
    got = []

    async def impatient() -> None:
        with anyio.move_on_after(1):
            await cache.get(SITE)

    async def patient() -> None:
        got.append((await cache.get(SITE)).robots)

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(impatient)
        await anyio.sleep(0.5)
        tasks.start_soon(patient)
        tasks.start_soon(patient)
    assert got == [RULES, RULES]
    assert [instant for _, instant in site.fetches] == [0, 1]


@pytest.mark.anyio
async def test_a_fetch_that_raises_is_no_answer() -> None:
    site = Site(RuntimeError("closed"))
    cache = RobotsCache(site)
    with pytest.raises(RuntimeError, match="closed"):
        await cache.get(SITE)
    assert (await cache.get(SITE)).robots == Robots()
    assert len(cache) == 1


@pytest.mark.anyio
async def test_a_site_that_is_down_is_asked_less_and_less_often() -> None:
    site = Site(*[DOWN] * 100)
    cache = RobotsCache(site)
    for _ in range(2000):
        known = await cache.get(SITE)
        assert not known.robots.allows(url("/b"))
        await anyio.sleep(10)
    instants = [instant for _, instant in site.fetches]
    gaps = [later - earlier for earlier, later in pairwise(instants)]
    assert gaps[:6] == [60, 120, 240, 480, 960, 1920]
    assert set(gaps[6:]) == {3600}


@pytest.mark.anyio
async def test_an_old_answer_is_kept_while_the_site_is_down_for_a_month() -> None:
    site = Site(RULES, *[DOWN] * 2000)
    cache = RobotsCache(site)
    await cache.get(SITE)
    await anyio.sleep(24 * HOUR)
    assert (await cache.get(SITE)).robots == RULES
    await anyio.sleep(28 * 24 * HOUR)
    assert (await cache.get(SITE)).robots == RULES
    await anyio.sleep(2 * 24 * HOUR)
    assert (await cache.get(SITE)).robots == DOWN
    site.script.clear()
    await anyio.sleep(HOUR)
    assert (await cache.get(SITE)).robots == Robots()


@pytest.mark.anyio
async def test_sites_and_characters_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(robots_cache, "_LARGEST_TOTAL", 1000)
    big = Robots(rules="x" * 300)
    site = Site(*[big] * 50)
    cache = RobotsCache(site, max_sites=10)
    for number in range(50):
        await cache.get(URL(f"http://{number}.test"))
        assert len(cache) <= 3
    for number in range(50):
        await cache.get(URL(f"http://{number}.small.test"))
    assert len(cache) == 10
    await cache.get(URL("http://40.small.test"))
    await cache.get(URL("http://new.test"))  # the one used just now stays
    before = len(site.fetches)
    await cache.get(URL("http://40.small.test"))
    assert len(site.fetches) == before


@pytest.mark.anyio
async def test_the_count_of_characters_does_not_drift() -> None:
    dice = random.Random(4)
    site = Site()
    cache = RobotsCache(site, max_sites=5, max_age=10)
    for _ in range(300):
        site.script = [dice.choice([RULES, DOWN, Robots(), Robots(rules="y" * 50)])]
        await cache.get(URL(f"http://{dice.randrange(8)}.test"))
        await anyio.sleep(dice.random() * 9)
        assert cache._size == sum(len(one.robots.rules) for one in cache._known.values())


def test_wrong_arguments_are_named() -> None:
    site = Site()
    with pytest.raises(ValueError, match="max_age must be at most a day"):
        RobotsCache(site, max_age=86401)
    with pytest.raises(ValueError, match="max_age must be above 0"):
        RobotsCache(site, max_age=0)
    with pytest.raises(ValueError, match="max_sites must be at least 1"):
        RobotsCache(site, max_sites=0)


@pytest.mark.parametrize(
    "code",
    [
        "import throttle.http.robots",
        "from throttle import *; PoliteSession(user_agent='a@b.example')",
    ],
)
def test_without_protego_one_line_says_what_to_install(code: str) -> None:
    hidden = f"import sys; sys.modules['protego'] = None; {code}"
    done = subprocess.run(
        [sys.executable, "-c", hidden], capture_output=True, text=True, check=False
    )
    last = done.stderr.strip().splitlines()[-1]
    assert (
        last == "ImportError: robots.txt is read by Protego: pip install 'throttle-asyncio[scrape]'"
    )
    assert "During handling" not in done.stderr
