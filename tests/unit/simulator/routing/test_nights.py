"""Nights of real price changes: the clock, the price list's own rows, and who reacts."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest

from gateway.core import Endpoint
from gateway.prices.book import PriceBook
from gateway.prices.rows import pick_row
from gateway.simulator.routing.bench import Cell, Task, run_task
from gateway.simulator.routing.nights import listed_rows
from gateway.simulator.routing.world import World
from gateway.simulator.routing.worlds import make_world
from gateway.wire.pieces import Dialect

MIDNIGHT = datetime(2026, 9, 10, tzinfo=UTC)


def _night(name: str, hours: float = 0.5) -> World:
    return make_world(name, seed=1, duration_s=hours * 3_600.0)


@pytest.mark.parametrize(("name", "minute"), [("midnight", 0), ("off-peak", 30)])
def test_the_clock_passes_the_change_halfway_and_the_price_doubles_there(
    name: str, minute: int
) -> None:
    world = _night(name)
    (place,) = [each for each in world.places((), 1) if each.spec.id in world.event_ids]
    assert world.event_s == 900.0
    at = datetime.fromtimestamp(world.epoch_s + world.event_s, UTC)
    assert at == MIDNIGHT.replace(minute=minute)
    before, after = place.price(world.event_s - 0.001), place.price(world.event_s)
    assert before.source == after.source == "genai-prices"
    assert after.input == pytest.approx(2.0 * before.input, rel=0.05)
    assert after.output == pytest.approx(2.0 * before.output, rel=0.05)


def test_a_long_night_holds_every_window_of_the_price_book() -> None:
    """Second by second what `PriceBook` answers, off-peak end and peak begin included."""
    world = _night("off-peak", hours=4.0)
    book = PriceBook()
    model = "deepseek-flash"
    endpoint = Endpoint(
        id="deepseek/x",
        provider="deepseek",
        api=Dialect.OPENAI,
        base_url="https://api.deepseek.com",
        model=model,
    )
    rows = listed_rows(endpoint.base_url, model, world.epoch_s, 4.0 * 3_600.0)
    assert rows == world.listed[world.specs[1].id][: len(rows)]
    place = world.places((), 1)[1]
    seen = set()
    for at_s in range(0, 4 * 3_600, 60):
        row = pick_row(book.rows(endpoint, world.epoch_s + at_s))
        assert place.price(float(at_s)) == row
        seen.add(row.output)
    assert len(seen) == 2  # peak hours begin at 01:00


def test_routers_that_look_at_prices_leave_the_one_that_doubled() -> None:
    played = run_task(
        Task(cell=Cell(world="midnight"), seed=1, duration_s=300.0, routers=("cheapest", "fastest"))
    )
    found = played.figures["cheapest"]
    assert found.event_share_before is not None
    assert found.event_share is not None
    assert found.event_share_before > 0.5
    assert found.event_share < 0.1


def test_a_model_that_the_list_does_not_have_is_named() -> None:
    with pytest.raises(ValueError, match=r"has no 'none-such' at https://api\.deepseek\.com"):
        listed_rows("https://api.deepseek.com", "none-such", MIDNIGHT.timestamp(), 60.0)
