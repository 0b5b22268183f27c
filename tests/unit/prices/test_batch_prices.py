"""What a line of a provider's own batch costs, whoever tells the price."""

from __future__ import annotations

import pytest

from gateway.catalogue.native_batch import NATIVE_BATCH, native_batch_of
from gateway.catalogue.providers import PROVIDERS
from gateway.core import Endpoint, PriceRow
from gateway.prices.book import PriceBook
from gateway.prices.rows import batch_rows, complete_row, cost_nanos, pick_row
from gateway.wire.pieces import Dialect, Surface
from gateway.wire.usage import Usage

NOW_S = 1_796_000_000.0  # November 2026
BOOK = PriceBook()
USAGE = Usage(input=1_000, cached_read=500, output=300, reasoning=7)


def endpoint(base_url: str, model: str = "m", **more: object) -> Endpoint:
    given = {"id": f"p/{model}", "provider": "p", "api": Dialect.OPENAI, **more}
    return Endpoint(base_url=base_url, model=model, **given)  # type: ignore[arg-type]  # test data


@pytest.mark.parametrize(
    ("base_url", "model", "api"),
    [
        ("https://api.openai.com/v1", "gpt-4o", Dialect.OPENAI),
        ("https://api.anthropic.com", "claude-sonnet-4-6", Dialect.ANTHROPIC),
        ("https://generativelanguage.googleapis.com/v1beta/openai", "gemini-2.5-flash",
         Dialect.OPENAI),
        ("https://api.mistral.ai/v1", "mistral-small-latest", Dialect.OPENAI),
        ("https://api.groq.com/openai/v1", "openai/gpt-oss-120b", Dialect.OPENAI),
        ("https://api.together.xyz/v1", "meta-llama/Llama-3.3-70B-Instruct-Turbo", Dialect.OPENAI),
    ],
)  # fmt: skip
def test_every_provider_with_a_batch_api_has_a_batch_price_at_half(
    base_url: str, model: str, api: Dialect
) -> None:
    rows = BOOK.rows(endpoint(base_url, model, id=base_url, api=api), NOW_S)
    standard, batch = pick_row(rows), pick_row(rows, tier="batch")

    assert standard.is_priced
    assert batch.tier == "batch"
    assert (2 * batch.input, 2 * batch.output) == (standard.input, standard.output)


def test_operators_price_of_a_known_provider_gets_its_discount() -> None:
    own = complete_row(PriceRow(source="policy", price_id="own", input=3, output=7, cached_read=1))
    priced = endpoint("https://api.openai.com/v1", "gpt-4o", prices=(own,))
    [first, batch] = BOOK.rows(priced, NOW_S)

    assert first == own
    assert (batch.input, batch.cached_read, batch.output, batch.reasoning) == (2, 1, 4, 4)
    assert batch.price_id == f"own × 1/2 ({NATIVE_BATCH[0].source})"
    assert BOOK.rows(priced, NOW_S) is BOOK.rows(priced, NOW_S + 9)


def test_model_without_a_batch_price_in_the_list_keeps_none() -> None:
    """Where the list tells a provider's batch prices, a model that has none has no batch API."""
    from genai_prices.data import providers

    openai = next(p for p in providers if p.id == "openai")
    without = next(m for m in openai.models if not m.price_variants and m.id == "gpt-4o-mini-tts")
    rows = BOOK.rows(endpoint("https://api.openai.com/v1", without.id), NOW_S)

    assert {row.tier for row in rows} == {"standard"}


@pytest.mark.parametrize(
    ("more", "halved"),
    [
        ({"quirks": frozenset({"native_batch"}), "is_simulated": True}, True),
        ({"quirks": frozenset({"native_batch"})}, False),
        ({"is_simulated": True}, False),
    ],
)
def test_discount_of_an_unlisted_provider_is_assumed_only_of_a_simulated_one(
    more: dict[str, object], halved: bool
) -> None:
    own = complete_row(PriceRow(source="policy", input=2_000_000, output=4_000_000))
    rows = BOOK.rows(endpoint("http://127.0.0.1:9/v1", prices=(own,), id=str(more), **more), NOW_S)
    standard = cost_nanos(pick_row(rows), USAGE)
    batch = cost_nanos(pick_row(rows, tier="batch"), USAGE)

    assert batch * (2 if halved else 1) == standard


def test_each_context_step_and_the_flat_fee_come_along() -> None:
    steps = (
        PriceRow(source="policy", input=10, output=20, request_nanos=5),
        PriceRow(source="policy", input=30, output=40, context_tokens_min=1_000, request_nanos=5),
        PriceRow(source="policy", input=1, output=1, tier="flex"),
        PriceRow(source="unpriced"),
    )
    made = batch_rows(steps, (3, 4), "because")

    assert [(r.tier, r.context_tokens_min, r.input, r.output) for r in made] == [
        ("batch", 0, 8, 15),
        ("batch", 1_000, 23, 30),
    ]
    assert {row.request_nanos for row in made} == {5}


def test_table_is_consistent_and_hosts_are_matched_whole() -> None:
    known = {provider.name for provider in PROVIDERS} | {"gemini"}
    for facts in NATIVE_BATCH:
        over, under = facts.price_of_standard
        assert facts.name in known
        assert 0 < over <= under
        assert facts.source.startswith("https://")
        assert facts.surfaces <= {surface.value for surface in Surface}
        assert facts.window_s <= facts.window_s_max
        assert 0 < facts.lines_max <= 1_000_000
        assert 0 < facts.bytes_max <= 512_000_000
        assert native_batch_of(endpoint(f"https://{facts.hosts[0].strip('.')}/v1")) is facts
    assert len({facts.name for facts in NATIVE_BATCH}) == len(NATIVE_BATCH)
    assert native_batch_of(endpoint("https://api.openai.com.example/v1")) is None
    assert native_batch_of(endpoint("https://eu.api.openai.com/v1")) is NATIVE_BATCH[0]
    assert native_batch_of(endpoint("https://api.openai.com/v1", machine="own")) is None
