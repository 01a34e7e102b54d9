"""A scraper of a site that did not invite it: follow the links, ask robots.txt, keep its pace.

The site is served here: 300 pages that link to each other, a part that robots.txt forbids, and a
Crawl-delay of two seconds. The scraper asks for one page at a time; who owns the site finds a
contact in its log. Time is virtual: a quarter of an hour of crawling runs in a moment.

    python examples/polite_scraper.py
"""

from __future__ import annotations

import asyncio
import re
from collections import deque
from itertools import pairwise
from urllib.parse import urljoin

from throttle import PoliteSession, RobotsDisallowed
from throttle.testing import RateLimitedServer, virtual_time

PAGES = 300
ROBOTS = "User-agent: *\nDisallow: /private/\nCrawl-delay: 2\n"
LINK = re.compile(r'href="([^"#]+)"')


def site() -> dict[str, str]:
    """Each page links to the next two, back to the first, and to something private."""
    pages = {"/robots.txt": ROBOTS, "/private/diary": "nobody should read this"}
    for number in range(PAGES):
        links = [f"/page/{(2 * number + step) % PAGES}" for step in (1, 2)]
        links += ["/page/0", "/private/diary"]
        text = "".join(f'<a href="{link}">{link}</a>' for link in links)
        pages[f"/page/{number}"] = f"<h1>Page {number}</h1>{text}"
    return pages


async def crawl(http: PoliteSession, start: str) -> tuple[dict[str, str], set[str]]:
    """Every page that can be reached from the start, and the URLs that robots.txt forbids."""
    pages: dict[str, str] = {}
    forbidden: set[str] = set()
    todo, seen = deque([start]), {start}
    while todo:
        url = todo.popleft()
        try:
            async with http.get(url) as response:
                response.raise_for_status()
                pages[url] = await response.text()
        except RobotsDisallowed:
            forbidden.add(url)
            continue
        for link in LINK.findall(pages[url]):
            target = urljoin(url, link)
            if target not in seen:
                seen.add(target)
                todo.append(target)
    return pages, forbidden


async def main() -> None:
    agent = "examplebot/1.0 (+https://example.org/bot; bot@example.org)"
    async with (
        RateLimitedServer("1/s", handler=site()) as server,
        PoliteSession(user_agent=agent) as http,
    ):
        pages, forbidden = await crawl(http, server.url_for("/page/0"))
        delay = http.delay(server.url)
    minutes = asyncio.get_running_loop().time() / 60
    instants = [arrival.instant for arrival in server.requests]
    closest = min(later - earlier for earlier, later in pairwise(instants[1:]))
    print(f"{len(pages)} pages in {minutes:.0f} minutes, {len(forbidden)} URL left alone")
    print(f"asked for {delay:g} s between requests, never less than {closest:.1f} s")
    print(f"refused: {server.refused}")
    assert len(pages) == PAGES
    assert closest >= 2


if __name__ == "__main__":
    with virtual_time() as time:
        time.run(main)
