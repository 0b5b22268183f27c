"""Specs to nouns: providers and endpoints with the catalogue's facts under the operator's."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import replace
from hashlib import blake2b
from ipaddress import ip_address
from math import inf
from urllib.parse import urlsplit

import msgspec

from gateway.catalogue.entries import QUIRKS, CatalogueEntry, ProviderDefaults
from gateway.catalogue.lookup import (
    key_env_in,
    lookup,
    provider_by_key_env,
    provider_defaults,
)
from gateway.core import Endpoint, Network, PriceRow
from gateway.policy.policy import Indexed, ProviderSettings, Timeouts
from gateway.policy.schema import EndpointSpec, Price, Provider, SelfHosted
from gateway.policy.self_hosted import assumed_row, check_self_hosted, hour_nanos, machine_of
from gateway.policy.units import nanos_of, parse_duration, picos_of
from gateway.prices.rows import complete_row
from gateway.wire.pieces import Dialect
from gateway.wire.usage import BUCKETS

Report = Callable[[str, str], None]

_DEFAULT_SURFACES: dict[Dialect, frozenset[str]] = {
    Dialect.OPENAI: frozenset({"chat", "completions", "responses", "embeddings"}),
    Dialect.ANTHROPIC: frozenset({"messages", "count_tokens"}),
}
# chat ↔ messages are translated both ways; nothing else is.
_TRANSLATED: dict[str, str] = {"chat": "messages", "messages": "chat"}
_HEADER_NAME = re.compile(r"^[A-Za-z0-9!#$%&'*+.^_`|~-]{1,64}$")
_HEADER_VALUE = re.compile(r"^[\x20-\x7e]{0,1024}$")
_API_VERSION = re.compile(r"^api-version=[A-Za-z0-9.-]{1,32}$")
_OWNED_HEADERS = frozenset({
    "authorization", "x-api-key", "api-key", "cookie", "proxy-authorization", "host",
    "content-length", "content-type", "transfer-encoding", "connection", "accept-encoding",
})  # fmt: skip
_ANTHROPIC_CACHE_WRITES = ((5, 4), (2, 1))


def resolve_provider(
    name: str,
    spec: Provider,
    default: Timeouts,
    environ: Mapping[str, str] | None,
    report: Report,
) -> ProviderSettings:
    at = f"providers.{name}"
    known = _known(name, spec)
    base_url = spec.base_url.rstrip("/") or (known.base_url if known else "")
    if not base_url:
        hint = "the address of your Azure resource" if known else "it is no provider we know"
        report(f"{at}.base_url", f"is missing ({hint}); add it, like https://host/v1")
    network = _network(spec, known)
    if base_url:
        _check_url(base_url, network, f"{at}.base_url", report)
    if not spec.verify_tls and network is Network.PUBLIC:
        report(f"{at}.verify_tls", "false is only for network: private; remove one of the two")
    for quirk in spec.quirks:
        if quirk not in QUIRKS:
            report(f"{at}.quirks", f"{quirk!r} is unknown; use {', '.join(sorted(QUIRKS))}")
    _check_headers(spec.headers, f"{at}.headers", report)
    if spec.self_hosted is not None:
        check_self_hosted(spec.self_hosted, f"{at}.self_hosted", report)
    own = spec.timeouts
    key_env = spec.key_env or ""
    if not key_env and known is not None and provider_defaults(base_url) is known:
        # Only at the provider's own address: its key goes to nobody else unasked.
        key_env = key_env_in(known, environ or {})
    return ProviderSettings(
        name=name,
        api=Dialect(spec.api),
        base_url=base_url,
        key_env=key_env,
        network=network,
        headers=tuple(spec.headers.items()),
        quirks=(known.quirks if known else frozenset()) | frozenset(spec.quirks),
        timeouts=replace(
            default,
            connect_s=_seconds(own.connect if own else None, default.connect_s),
            idle_s=_seconds(own.idle if own else None, default.idle_s),
            idle_reasoning_s=_seconds(own.idle if own else None, default.idle_reasoning_s),
            total_s=_seconds(own.total if own else None, default.total_s),
        ),
        verify_tls=spec.verify_tls,
        is_simulated=spec.simulated,
        known_as=known.name if known else "",
        has_key=not key_env or environ is None or bool(environ.get(key_env)),
    )


def resolve_endpoint(
    spec: EndpointSpec, provider: Provider, settings: ProviderSettings
) -> Endpoint:
    known = provider_defaults(settings.known_as) if settings.known_as else None
    entry = lookup(settings.known_as or settings.base_url, spec.model)
    tier = spec.tier or provider.tier
    endpoint_id = f"{settings.name}/{spec.model}" + ("" if tier == "standard" else f"#{tier}")
    hosted, machine = machine_of(spec, provider, (settings.name, endpoint_id))
    is_ours = hosted is not None or (known is not None and known.is_local)
    return Endpoint(
        id=endpoint_id,
        provider=settings.name,
        api=settings.api,
        base_url=settings.base_url,
        model=spec.model,
        canonical_model=spec.canonical or (entry.canonical if entry else ""),
        quantisation=spec.quantisation or (entry.quantisation if entry else "unknown"),
        context_tokens_max=spec.context or (entry.context_tokens_max if entry else None),
        output_tokens_max=spec.max_output or (entry.output_tokens_max if entry else None),
        capabilities=_capabilities(spec, entry),
        parameters=None if spec.parameters is None else frozenset(spec.parameters),
        surfaces=_surfaces(spec, provider, known, entry),
        quirks=settings.quirks | (entry.quirks if entry else frozenset()),
        stores_data=_first(
            provider.stores_data, known.stores_data if known else None, False if is_ours else None
        ),
        zero_retention=_first(
            provider.zero_retention,
            known.zero_retention if known else None,
            True if is_ours else None,
        ),
        distillable=_first(spec.distillable, entry.distillable if entry else None, None),
        region=spec.region or provider.region or (known.region if known else ""),
        network=settings.network,
        key_env=settings.key_env,
        headers=settings.headers,
        prices=_prices(spec.price, hosted, settings, known, endpoint_id),
        tier=tier,
        usd_per_hour_nanos=hour_nanos(hosted) if hosted else None,
        machine=machine,
        billing=hosted.billing if hosted else "",
        tokens_per_hour_min=hosted.tokens_per_hour if hosted else 0,
        is_simulated=provider.simulated,
        bills_from_first_token=provider.bills_from == "first_token"
        or (provider.bills_from is None and provider.simulated),
        stops_when_left=provider.stops_when_left
        if provider.stops_when_left is not None
        else provider.simulated or hosted is not None,
        assistant_prefill=spec.assistant_prefill or "",
        listed_tok_s=spec.listed_tok_s,
    )


def index_endpoint(endpoint: Endpoint, settings: ProviderSettings) -> Indexed:
    serves = set(endpoint.surfaces)
    serves |= {to for to, via in _TRANSLATED.items() if via in endpoint.surfaces}
    names = {endpoint.provider, endpoint.id, settings.known_as} - {""}
    return Indexed(
        endpoint=endpoint,
        id=endpoint.id,
        serves=frozenset(serves),
        names=frozenset(name.lower() for name in names),
        rendezvous=int.from_bytes(blake2b(endpoint.id.encode(), digest_size=8).digest(), "big") | 1,
        has_key=settings.has_key,
        is_plain=settings.has_key and endpoint.tier == "standard",
        can=_can(endpoint),
        context_max=endpoint.context_tokens_max or inf,
        output_max=endpoint.output_tokens_max or inf,
    )


def _can(endpoint: Endpoint) -> frozenset[str] | None:
    """A JSON schema is more than a JSON object, so who can the one can the other."""
    can = endpoint.capabilities
    if not can:
        return None
    return can | {"json_object"} if "json_schema" in can else can


def price_row(
    price: Price, price_id: str, cache_writes: tuple[tuple[int, int], tuple[int, int]]
) -> PriceRow:
    """The operator's own price as a complete row; a bucket stated as 0 is free."""
    stated = {b: getattr(price, b, None) for b in BUCKETS}
    picos = {b: picos_of(usd) for b, usd in stated.items() if usd is not None}
    row = PriceRow(
        source="policy",
        price_id=price_id,
        request_nanos=nanos_of(price.usd_per_request),
        free=tuple(b for b, p in picos.items() if p == 0),
    )
    row = msgspec.structs.replace(row, **picos)
    return complete_row(row, write_5m_of_input=cache_writes[0], write_1h_of_input=cache_writes[1])


def _prices(
    price: Price | None,
    hosted: SelfHosted | None,
    settings: ProviderSettings,
    known: ProviderDefaults | None,
    endpoint_id: str,
) -> tuple[PriceRow, ...]:
    if price is not None:
        if known is not None:
            writes = known.cache_write_of_input
        elif settings.api is Dialect.ANTHROPIC:
            writes = _ANTHROPIC_CACHE_WRITES
        else:
            writes = ((1, 1), (1, 1))
        return (price_row(price, f"policy:{endpoint_id}", writes),)
    return () if hosted is None else (assumed_row(hosted, endpoint_id),)


def _known(name: str, spec: Provider) -> ProviderDefaults | None:
    if spec.base_url and (found := provider_defaults(spec.base_url)):
        return found
    found = provider_defaults(name)
    if found is not None and found.api == spec.api:
        return found
    if spec.base_url:
        return None  # an address we do not know, under a name we do not know
    if spec.key_env and (found := provider_by_key_env(spec.key_env)) and found.api == spec.api:
        return found
    return provider_defaults("anthropic") if spec.api == "anthropic" else None


def _network(spec: Provider, known: ProviderDefaults | None) -> Network:
    if spec.network is not None:
        return Network(spec.network)
    # A local server at its usual address needs no second word; any other address does.
    return known.network if known is not None and not spec.base_url else Network.PUBLIC


def _check_url(base_url: str, network: Network, at: str, report: Report) -> None:
    try:
        parts = urlsplit(base_url)
        host, _ = parts.hostname or "", parts.port
    except ValueError:
        report(at, "is no address; write it like https://host/v1")
        return
    if parts.scheme not in ("https", "http") or not host or not base_url.isprintable():
        report(at, "is no address; write it like https://host/v1")
        return
    if parts.username is not None or parts.password is not None:
        report(at, "holds a user name or password; remove it and use key_env")
    if parts.fragment or (parts.query and not _API_VERSION.match(parts.query)):
        report(at, "holds more than an address; only ?api-version=… (Azure) may follow the path")
    if network is Network.PUBLIC and parts.scheme == "http":
        report(at, "http:// is not for the public network; use https://, or add network: private "
                   "if this is your own machine")  # fmt: skip
    try:
        address = ip_address(host)
    except ValueError:
        is_inside = host == "localhost" or host.endswith((".localhost", ".local", ".internal"))
    else:
        is_inside = not address.is_global
        if address.is_link_local or address.is_multicast or address.is_unspecified:
            report(at, f"{host} is an address that is always refused; use the machine's own")
            return
    if network is Network.PUBLIC and is_inside and parts.scheme == "https":
        report(at, f"{host} is inside your own network; add network: private")


def _check_headers(headers: dict[str, str], at: str, report: Report) -> None:
    for name, value in headers.items():
        if not _HEADER_NAME.match(name) or not _HEADER_VALUE.match(value):
            report(at, f"{name[:64]!r} is no valid header; use printable ASCII and no line ends")
        elif name.lower() in _OWNED_HEADERS:
            report(f"{at}.{name}", "is set by the gateway itself; remove it (keys: key_env)")


def _capabilities(spec: EndpointSpec, entry: CatalogueEntry | None) -> frozenset[str]:
    if spec.capabilities is not None:
        return frozenset(spec.capabilities) | {"text"}
    return entry.capabilities if entry else frozenset()


def _surfaces(
    spec: EndpointSpec,
    provider: Provider,
    known: ProviderDefaults | None,
    entry: CatalogueEntry | None,
) -> frozenset[str]:
    for stated in (spec.surfaces, entry.surfaces if entry else None, provider.surfaces):
        if stated:
            return frozenset(stated)
    if known is not None and known.api == provider.api:
        return known.surfaces
    return _DEFAULT_SURFACES[Dialect(provider.api)]


def _first(stated: bool | None, catalogue: bool | None, ours: bool | None) -> bool | None:
    """The operator's word, else what follows from it being our own machine, else the catalogue."""
    if stated is not None:
        return stated
    return catalogue if ours is None else ours


def _seconds(text: str | None, default_s: float) -> float:
    return default_s if text is None else parse_duration(text)
