"""The page Models & endpoints: the policy and the price list, beside what was measured."""

from __future__ import annotations

from pathlib import Path

import pytest

from gateway.core import PriceRow
from gateway.dashboard.app import desk_of
from gateway.dashboard.catalogue import catalogue_of, listed_price
from tests.support.dashboard_world import add_model, dashboard
from tests.support.relaying import chat

pytestmark = pytest.mark.anyio


async def test_page_and_api_tell_the_same_of_every_endpoint(tmp_path: Path) -> None:
    async with dashboard(tmp_path) as world:
        never = catalogue_of(desk_of(world.gateway)).models[0].endpoints[0]
        await world.edge.ask("/v1/chat/completions", chat(stream=False))
        browser = await world.logged_in("viewer")
        page = await browser.get("/admin/endpoints")
        told = (await browser.http.get("/admin/api/endpoints")).json()

    assert (never.num_samples, never.sample_age_s, never.success) == (0, None, None)
    [model] = told["models"]
    [endpoint] = model["endpoints"]
    assert (model["name"], endpoint["id"], endpoint["quantisation"]) == ("chat", "a/m", "fp8")
    assert (endpoint["has_key"], endpoint["network"]) == (True, "private")
    assert endpoint["num_samples"] == 1
    assert [(row["tier"], row["input"], row["output"]) for row in endpoint["prices"]] == [
        ("standard", "1", "2")
    ]
    assert page.status_code == 200
    for shown in ("a/m", "fp8", "1.00 · 2.00", endpoint["address"]):
        assert shown in page.text


async def test_page_needs_a_log_in_and_shows_names_as_text(tmp_path: Path) -> None:
    evil = '"><script>alert(1)</script>'
    async with dashboard(tmp_path) as world:
        add_model(world.gateway, evil)
        stranger = await world.browser().http.get("/admin/endpoints")
        page = await (await world.logged_in("viewer")).get("/admin/endpoints")

    assert stranger.status_code == 303
    assert "<script>alert" not in page.text
    assert "&lt;script&gt;alert(1)" in page.text


def test_listed_price_takes_the_fallback_of_a_bucket_without_a_price_of_its_own() -> None:
    row = listed_price(PriceRow(source="policy", input=3_000_000, output=15_000_000))
    free = listed_price(PriceRow(source="policy", input=3_000_000, free=("cached_read",)))

    assert (row.input, row.cached_read, row.cache_write) == ("3", "3", "3")
    assert free.cached_read == "0"
