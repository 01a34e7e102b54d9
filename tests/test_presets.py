"""Documented rates of services, as data."""

from __future__ import annotations

import re

import httpx
import pytest
from helpers.fake_httpx import FakeTransport
from yarl import URL

from throttle import Limiter
from throttle.http.presets import PRESETS, presets
from throttle.http.routes import Routes
from throttle.http.transport import ThrottledTransport


@pytest.mark.parametrize("name", PRESETS)
def test_a_row_is_complete_and_can_be_used(name: str) -> None:
    preset = PRESETS[name]
    assert re.fullmatch(r"[a-z]+(-[a-z]+)*", name)
    assert URL(preset.source).scheme == "https"
    assert re.fullmatch(r"20[0-9]{2}-(0[1-9]|1[0-2])", preset.as_of)
    limits = presets(name)
    assert tuple(limits) == preset.places
    routes = Routes(limits=limits)
    for place in preset.places:
        origin = routes.origin(URL(f"https://{place}/x"), "GET")
        assert origin.limiter is limits[place]


def test_rows_are_in_order_and_cannot_be_changed() -> None:
    assert list(PRESETS) == sorted(PRESETS)
    with pytest.raises(TypeError):
        PRESETS["own"] = PRESETS["arxiv"]  # type: ignore[index]


@pytest.mark.parametrize(
    ("name", "instants"),
    [
        ("nominatim", [0, 1, 2]),
        ("arxiv", [0, 3, 6]),
        ("crossref", [0, 0, 0, 1]),
        ("nasa-demo-key", [0.0] * 30 + [3600.0] * 20 + [86400.0]),
    ],
)
def test_the_rates_say_what_the_page_says(name: str, instants: list[float]) -> None:
    (limiter,) = presets(name).values()
    now, went = 0.0, []
    for _ in instants:
        now = limiter.ready_at(now)
        assert limiter.allow(now)
        went.append(now)
    assert went == instants


@pytest.mark.anyio
async def test_hosts_of_one_service_share_its_limit() -> None:
    inner = FakeTransport()
    limits = presets("sec-edgar", "nominatim")
    transport = ThrottledTransport(inner, limits=limits)
    async with httpx.AsyncClient(transport=transport) as http:
        for _ in range(6):
            await http.get("https://www.sec.gov/Archives")
            await http.get("https://data.sec.gov/submissions")
        await http.get("https://nominatim.openstreetmap.org/search")
    assert inner.instants == [0] * 10 + [1, 1, 1]


def test_each_call_makes_new_limits() -> None:
    one, two = presets("arxiv"), presets("arxiv")
    assert all(isinstance(limiter, Limiter) for limiter in one.values())
    assert one["export.arxiv.org"] is not two["export.arxiv.org"]
    assert presets() == {}


def test_wrong_names_are_named_and_the_right_ones_listed() -> None:
    with pytest.raises(ValueError, match="no preset 'arXiv'; there are arxiv, cloudflare, "):
        presets("arxiv", "arXiv")
    with pytest.raises(ValueError, match=r"'nasa-demo-key' and another speak of 'api.nasa.gov'"):
        presets("nasa", "nasa-demo-key")
