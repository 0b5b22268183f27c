"""What the page Models & endpoints shows: what each is, costs by its list, and really did."""

from __future__ import annotations

from typing import Any

import msgspec

from gateway.core import Endpoint, PriceRow, dollars_per_million
from gateway.dashboard.board import Estimate, estimate_of
from gateway.dashboard.holding import Standing, standing_of
from gateway.dashboard.page import Desk
from gateway.dashboard.probing import Prober, ProbeResult
from gateway.pipeline import Gateway
from gateway.prices.rows import bucket_picos


class ListedPrice(msgspec.Struct, frozen=True, kw_only=True):
    """One row of an endpoint's price list that is in force now, in $ per million tokens."""

    source: str
    price_id: str
    tier: str
    context_tokens_min: int
    input: str
    cached_read: str
    cache_write: str  # for five minutes
    output: str


class ListedEndpoint(msgspec.Struct, frozen=True, kw_only=True):
    """One endpoint as the policy and the catalogue describe it, beside what was measured."""

    id: str
    provider: str
    model: str  # the provider's own name of it
    canonical_model: str  # "" = unknown
    dialect: str
    address: str
    network: str
    region: str
    quantisation: str
    context_tokens_max: int | None
    output_tokens_max: int | None
    capabilities: list[str]
    surfaces: list[str]
    stores_data: bool | None
    zero_retention: bool | None
    has_key: bool
    is_simulated: bool
    is_own: bool
    breaker: str
    standing: Standing
    is_probing: bool
    last_probe: ProbeResult | None  # of this process
    prices: list[ListedPrice]
    tokens_per_s: Estimate | None
    listed_tokens_per_s: float | None  # as the policy states it: `listed_tok_s`
    speed_of_listed: Estimate | None  # measured over listed
    ttft_p50_s: Estimate | None
    success: Estimate | None
    num_samples: int
    sample_age_s: float | None  # null = never measured


class ListedModel(msgspec.Struct, frozen=True, kw_only=True):
    """A public model and who can serve it, in the policy's order."""

    name: str
    endpoints: list[ListedEndpoint]


class Catalogue(msgspec.Struct, frozen=True, kw_only=True):
    """All of the policy in force."""

    policy_version: str
    models: list[ListedModel]


def catalogue_of(desk: Desk) -> Catalogue:
    gateway, prober = desk.gateway, desk.only(Prober)
    policy = gateway.policy()
    listed = {each.id: listed_endpoint(gateway, each, prober) for each in policy.endpoints.values()}
    return Catalogue(
        policy_version=policy.version,
        models=[
            ListedModel(name=name, endpoints=[listed[each] for each in ids])
            for name, ids in policy.models.items()
        ],
    )


def listed_endpoint(gateway: Gateway, endpoint: Endpoint, prober: Prober) -> ListedEndpoint:
    measured: dict[str, Any] = gateway.fleet.metrics(endpoint.id)
    tokens_per_s = estimate_of(measured["decode_tokens_per_s"])
    rows = gateway.fleet.snapshot().prices.get(endpoint.id, ())
    return ListedEndpoint(
        id=endpoint.id,
        provider=endpoint.provider,
        model=endpoint.model,
        canonical_model=endpoint.canonical_model,
        dialect=endpoint.api.value,
        address=endpoint.base_url,
        network=endpoint.network.value,
        region=endpoint.region,
        quantisation=endpoint.quantisation,
        context_tokens_max=endpoint.context_tokens_max,
        output_tokens_max=endpoint.output_tokens_max,
        capabilities=sorted(endpoint.capabilities),
        surfaces=sorted(endpoint.surfaces),
        stores_data=endpoint.stores_data,
        zero_retention=endpoint.zero_retention,
        has_key=gateway.policy().providers[endpoint.provider].has_key,
        is_simulated=endpoint.is_simulated,
        is_own=endpoint.usd_per_hour_nanos is not None,
        breaker=measured["breaker"],
        standing=standing_of(gateway, endpoint.id, measured),
        is_probing=endpoint.id in prober.running,
        last_probe=prober.last.get(endpoint.id),
        prices=[listed_price(row) for row in rows if row.is_priced],
        tokens_per_s=tokens_per_s,
        listed_tokens_per_s=endpoint.listed_tok_s,
        speed_of_listed=over(tokens_per_s, endpoint.listed_tok_s),
        ttft_p50_s=estimate_of(measured["ttft_visible_p50_s"]),
        success=estimate_of(measured["success"]),
        num_samples=measured["n"],
        sample_age_s=measured["sample_age_s"],
    )


def listed_price(row: PriceRow) -> ListedPrice:
    return ListedPrice(
        source=row.source,
        price_id=row.price_id,
        tier=row.tier,
        context_tokens_min=row.context_tokens_min,
        input=dollars_per_million(row.input),
        cached_read=dollars_per_million(bucket_picos(row, "cached_read")),
        cache_write=dollars_per_million(bucket_picos(row, "cache_write_5m")),
        output=dollars_per_million(row.output),
    )


def over(measured: Estimate | None, listed: float | None) -> Estimate | None:
    """An estimate as a share of what is listed; its interval and samples are the estimate's."""
    if measured is None or listed is None:
        return None
    return Estimate(
        value=measured.value / listed,
        low=None if measured.low is None else measured.low / listed,
        high=None if measured.high is None else measured.high / listed,
        n=measured.n,
    )
