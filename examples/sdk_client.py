"""A small API client with limits for each endpoint, as an SDK would ship it.

The service allows 25 calls a second; of those the client gives 20 to reads and 5 to writes. It
keeps to all three, repeated tries too, so that its users never see a 429. It sends an idempotency
key with each order, so that a try whose answer was
lost may be repeated without ordering twice. Its test, below, runs an hour of use on virtual time.

Run it: it starts a server of its own that enforces a limit.
"""

from __future__ import annotations

import asyncio
import json
import uuid
from dataclasses import dataclass
from types import TracebackType
from typing import Self

from aiohttp import web

from throttle import Retry, ThrottledSession, throttle
from throttle.testing import RateLimitedServer, virtual_time


@dataclass(frozen=True, slots=True)
class Order:
    """An order as the service stores it."""

    id: int
    item: str


class Shop:
    """The client. Use as an async context manager."""

    def __init__(self, url: str) -> None:
        self._http = ThrottledSession(url, rate="25/s", retry=Retry(attempts=6))

    async def __aenter__(self) -> Self:
        await self._http.__aenter__()
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        tb: TracebackType | None,
    ) -> None:
        await self._http.__aexit__(kind, error, tb)

    @throttle("20/s")
    async def price(self, item: str) -> int:
        """The price of an item, in cents."""
        async with self._http.get(f"/prices/{item}") as response:
            response.raise_for_status()
            return int((await response.json())["cents"])

    @throttle("5/s")
    async def order(self, item: str) -> Order:
        """Order one item. Safe to repeat: the key is made once, before the first try."""
        key = {"Idempotency-Key": str(uuid.uuid4())}
        async with self._http.post("/orders", json={"item": item}, headers=key) as response:
            response.raise_for_status()
            return Order(**await response.json())


class Service:
    """The other side: prices, and orders that are stored once for each key."""

    def __init__(self) -> None:
        self.orders: dict[str, Order] = {}

    async def answer(self, request: web.Request) -> web.Response:
        if request.method == "GET":
            return web.json_response({"cents": 100 * len(request.path)})
        item = (await request.json())["item"]
        key = request.headers["Idempotency-Key"]
        is_new = key not in self.orders
        order = self.orders.setdefault(key, Order(len(self.orders) + 1, item))
        if is_new and order.id <= 2:
            # Stored, but the answer is lost on the way: the client cannot know, and asks again.
            return web.Response(status=503)
        return web.Response(
            text=json.dumps({"id": order.id, "item": order.item}), content_type="application/json"
        )


async def main() -> None:
    service = Service()
    server = RateLimitedServer("25/s", handler=service.answer)
    async with server, Shop(server.url) as shop:
        prices = await asyncio.gather(*(shop.price(f"item-{n}") for n in range(30)))
        orders = await asyncio.gather(*(shop.order(f"item-{n}") for n in range(8)))
    print(f"{len(prices)} prices, {len(orders)} orders, {len(service.orders)} stored")
    print(f"refused: {server.refused}")
    assert sorted(order.id for order in orders) == list(range(1, 9))


def test_an_hour_of_orders() -> None:
    """What a user's test looks like: no server, no waiting, exact instants."""

    class Offline(Shop):
        def __init__(self) -> None:
            pass

        @throttle("5/s")
        async def order(self, item: str) -> Order:
            instants.append(asyncio.get_running_loop().time())
            return Order(0, item)

    async def an_hour() -> None:
        shop = Offline()
        await asyncio.gather(*(shop.order("tea") for _ in range(18_000)))

    instants: list[float] = []
    with virtual_time() as time:
        time.run(an_hour)
    assert instants[:7] == [0.0] * 5 + [1.0] * 2
    assert instants[-1] == 3599.0


if __name__ == "__main__":
    asyncio.run(main())
    test_an_hour_of_orders()
    print("an hour of orders, tested")
