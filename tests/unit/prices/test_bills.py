"""Hand-checked bills, and the rules by which rows are picked, completed and held."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from pathlib import Path

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.core import Endpoint, PriceRow
from gateway.prices.book import PriceBook
from gateway.prices.rows import (
    UNPRICED,
    bucket_picos,
    complete_row,
    cost_nanos,
    hold_nanos,
    pick_row,
    tier_of,
)
from gateway.wire.pieces import Dialect
from gateway.wire.usage import BUCKETS, Usage

GOLDEN = Path(__file__).parents[2] / "golden" / "bills.json"
BILLS = json.loads(GOLDEN.read_text())["bills"]
BOOK = PriceBook()


def endpoint(base_url: str, model: str, **more: object) -> Endpoint:
    return Endpoint(
        id=f"p/{model}", provider="p", api=Dialect.OPENAI, base_url=base_url, model=model, **more
    )


@pytest.mark.parametrize("bill", BILLS, ids=[bill["name"] for bill in BILLS])
def test_bill_equals_the_one_worked_out_by_hand(bill: dict) -> None:
    at = datetime.fromisoformat(bill["at"]).timestamp()
    usage = msgspec.convert(bill["usage"], Usage)
    rows = BOOK.rows(endpoint(bill["base_url"], bill["model"]), at)
    row = pick_row(rows, tier=bill["tier"], context_tokens=usage.input_total)

    assert row.source == "genai-prices"
    assert bill["nanos"] == cost_nanos(row, usage)


def test_rounding_up_happens_once_over_the_whole_answer() -> None:
    row = PriceRow(source="policy", input=1, output=1)

    assert cost_nanos(row, Usage(input=499, output=501)) == 1
    assert cost_nanos(row, Usage(input=500, output=501)) == 2


def test_bucket_the_row_lacks_falls_back_and_is_never_free() -> None:
    row = PriceRow(source="policy", input=3_000_000, output=15_000_000)

    assert bucket_picos(row, "cached_read") == 3_000_000
    assert bucket_picos(row, "cache_write_1h") == 3_000_000
    assert bucket_picos(row, "reasoning") == 15_000_000
    assert bucket_picos(row, "audio_output") == 15_000_000


def test_bucket_stated_as_free_costs_nothing() -> None:
    row = PriceRow(source="policy", input=3_000_000, output=1, free=("cached_read",))

    assert cost_nanos(row, Usage(cached_read=1_000)) == 0


def test_one_hour_write_falls_back_to_the_five_minute_write() -> None:
    row = PriceRow(source="policy", input=4, cache_write_5m=5, output=1)

    assert bucket_picos(row, "cache_write_1h") == 5


def test_completed_row_charges_cache_writes_as_the_provider_does() -> None:
    row = PriceRow(source="policy", input=3_000_001, output=15_000_000)
    done = complete_row(row, write_5m_of_input=(5, 4), write_1h_of_input=(2, 1))

    assert done.cache_write_5m == 3_750_002
    assert done.cache_write_1h == 6_000_002
    assert done.reasoning == 15_000_000


@given(st.lists(st.integers(0, 10**7), min_size=9, max_size=9), st.data())
def test_completing_a_row_never_changes_a_bill(prices: list[int], data: st.DataObject) -> None:
    row = PriceRow(source="policy", **dict(zip(BUCKETS, prices, strict=True)))
    usage = Usage(**{b: data.draw(st.integers(0, 10**6)) for b in BUCKETS})

    assert cost_nanos(row, usage) == cost_nanos(complete_row(row), usage)


@given(st.lists(st.integers(0, 10**7), min_size=9, max_size=9), st.data())
def test_hold_covers_every_bill_within_its_bounds(prices: list[int], data: st.DataObject) -> None:
    row = PriceRow(source="policy", **dict(zip(BUCKETS, prices, strict=True)))
    usage = Usage(**{b: data.draw(st.integers(0, 10**5)) for b in BUCKETS})
    hold = hold_nanos(
        (row,),
        prompt_tokens_max=usage.input_total,
        output_tokens_max=usage.output_total,
        has_audio=True,
    )

    assert cost_nanos(row, usage) <= hold


def test_hold_takes_the_dearest_step_the_prompt_may_reach() -> None:
    rows = (
        PriceRow(source="policy", input=1_000, output=1_000),
        PriceRow(source="policy", input=2_000, output=3_000, context_tokens_min=201),
    )

    assert hold_nanos(rows, prompt_tokens_max=200, output_tokens_max=10) == 200 + 10
    assert hold_nanos(rows, prompt_tokens_max=201, output_tokens_max=10) == 2 * 201 + 3 * 10


def test_tier_without_rows_of_its_own_is_billed_as_standard() -> None:
    rows = (PriceRow(source="policy", input=7, output=9),)

    assert rows[0] is pick_row(rows, tier="flex")
    assert UNPRICED is pick_row((), tier="flex")


def test_service_tiers_of_both_dialects_name_our_tiers() -> None:
    assert tier_of("auto") == "standard"
    assert tier_of("standard_only") == "standard"
    assert tier_of("fast") == "priority"
    assert tier_of("something new") == "standard"


def test_operators_price_comes_before_the_list() -> None:
    own = PriceRow(source="policy", input=1, output=2)
    priced = endpoint("https://api.openai.com/v1", "gpt-4o", prices=(own,))

    assert BOOK.rows(priced, 1.8e9)[0] == own


def test_unknown_model_is_unpriced_and_never_priced_at_zero() -> None:
    rows = BOOK.rows(endpoint("https://api.openai.com/v1", "no-such-model"), 1.8e9)
    elsewhere = BOOK.rows(endpoint("http://127.0.0.1:9/v1", "gpt-4o"), 1.8e9)

    assert (UNPRICED,) == rows == elsewhere
    assert not rows[0].is_priced


def test_unpriced_cap_bills_every_bucket_at_the_cap() -> None:
    book = PriceBook(unpriced_cap_picos=30_000_000)
    row = book.rows(endpoint("http://127.0.0.1:9/v1", "x"), 1.8e9)[0]

    assert not row.is_priced
    assert cost_nanos(row, Usage(input=1, output=1, reasoning=1)) == 3 * 30_000


def test_live_price_of_an_own_machine_wins_once_it_is_measured() -> None:
    live = PriceRow(source="self_hosted", input=5, output=5)
    measured: list[PriceRow] = []
    book = PriceBook(live_rows=lambda _endpoint, _at: tuple(measured))
    assumed = PriceRow(source="self_hosted", input=9, output=9)
    own = endpoint("http://h/v1", "m", usd_per_hour_nanos=1, prices=(assumed,))

    assert (assumed,) == book.rows(own, 0.0)
    measured.append(live)
    assert (live,) == book.rows(own, 0.0)


def test_rows_are_remembered_until_their_window_ends() -> None:
    book = PriceBook()
    deepseek = endpoint("https://api.deepseek.com/v1", "deepseek-v4-pro")
    monday = datetime(2026, 11, 2, tzinfo=UTC).timestamp()
    night = book.rows(deepseek, monday)
    before_peak = book.rows(deepseek, monday + 3_599.9)
    peak = book.rows(deepseek, monday + 3_600)

    assert night is before_peak
    assert 2 * night[0].output == peak[0].output
    assert peak is book.rows(deepseek, monday + 4 * 3_600 - 0.1)
    assert night[0].output == book.rows(deepseek, monday + 4 * 3_600)[0].output


def test_asking_about_the_past_does_not_disturb_the_present() -> None:
    book = PriceBook()
    sonnet = endpoint("https://api.anthropic.com", "claude-sonnet-4-6")
    now = datetime(2026, 11, 2, 9, tzinfo=UTC).timestamp()
    march = datetime(2026, 3, 1, tzinfo=UTC).timestamp()
    present = book.rows(sonnet, now)
    past = book.rows(sonnet, march)

    assert {0, 200_001} == {row.context_tokens_min for row in past}
    assert {0} == {row.context_tokens_min for row in present}
    assert present is book.rows(sonnet, now)
    assert past is book.rows(sonnet, march + 60)


def test_rows_agree_with_genai_prices_over_every_openai_and_anthropic_model() -> None:
    """Compiled integers against the package's own decimals, standard tier, today."""
    from genai_prices.data import providers
    from genai_prices.types import Usage as TheirUsage

    at = datetime(2026, 11, 3, 12, tzinfo=UTC)
    urls = {"openai": "https://api.openai.com/v1", "anthropic": "https://api.anthropic.com"}
    usage = Usage(input=1_000, cached_read=500, output=300)
    theirs = TheirUsage(input_tokens=1_500, cache_read_tokens=500, output_tokens=300)
    compared = 0
    for provider in (p for p in providers if p.id in urls):
        for model in provider.models:
            row = BOOK.rows(endpoint(urls[provider.id], model.id), at.timestamp())[0]
            matched = provider.find_model(model.id)
            prices = matched.get_prices(at) if matched else None
            if prices is None or not row.is_priced or prices.output_mtok is None:
                continue
            if "cache_read_mtok" not in prices.__dict__ or "requests_kcount" in prices.__dict__:
                continue
            expected = matched.calc_price(theirs, provider, genai_request_timestamp=at).total_price
            compared += 1

            assert abs(cost_nanos(row, usage) - expected * 10**9) < 1, model.id

    assert compared > 40
