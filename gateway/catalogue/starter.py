"""The policy that `looprouter up` starts from: the providers found, the models they share."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from gateway.catalogue.entries import CatalogueEntry, ProviderDefaults, quantisation_class
from gateway.catalogue.lookup import entries_of, key_env_in, provider_defaults

_HEADER = """\
# LoopRouter's starting policy, written from the provider keys found in the environment.
# Change it freely: `looprouter policy validate FILE` checks it, docs/policy.md explains each field.
version: 1
"""
_ROUTES = """\
routes:                       # the first match wins
  - {name: batch, match: {lane: batch}, prefer: {by: cheapest, deadline: 24h}}
  - {name: interactive, match: {stream: true}, prefer: {by: fastest}}
  - {name: rest, prefer: {by: balanced, usd_per_second: 0.0005}}
"""


def default_policy(
    providers: Iterable[ProviderDefaults | str],
    environ: Mapping[str, str] | None = None,
    *,
    more_providers: str = "",
    more_models: str = "",
) -> str:
    """
    A policy text over these providers: each canonical model is one public model.

    Where providers state different precisions, each class gets a public model of its own
    (`llama-3.3-70b-instruct` and `llama-3.3-70b-instruct-8-bit`). `more_providers` and
    `more_models` are further entries of those sections, as YAML.
    """
    known = [p if isinstance(p, ProviderDefaults) else provider_defaults(p) for p in providers]
    found = [p for p in known if p is not None]
    lines = [_HEADER, "providers:" if found or more_providers else "providers: {}"]
    for provider in found:
        lines.append(f"  {provider.name}: {{{_provider_fields(provider, environ or {})}}}")
    lines += more_providers.splitlines()
    models = _public_models(found)
    lines += ["", "models:" if models or more_models else "models: {}"]
    for name, entries in models.items():
        lines.append(f'  "{name}":')
        lines += [f"    - {{{_endpoint_fields(entry)}}}" for entry in entries]
    lines += more_models.splitlines()
    return "\n".join(lines) + "\n\n" + _ROUTES


def _provider_fields(provider: ProviderDefaults, environ: Mapping[str, str]) -> str:
    fields = [f"api: {provider.api.value}", f'base_url: "{provider.base_url}"']
    if provider.key_envs:
        fields.append(f"key_env: {key_env_in(provider, environ)}")
    if provider.is_local:
        fields.append("network: private")
    return ", ".join(fields)


def _endpoint_fields(entry: CatalogueEntry) -> str:
    fields = f'provider: {entry.provider}, model: "{entry.model}"'
    provider = provider_defaults(entry.provider)
    # Nobody bills one's own machine by the token; say so, for an unknown price is never $0.
    return fields + (", price: {input: 0, output: 0}" if provider and provider.is_local else "")


def _public_models(providers: list[ProviderDefaults]) -> dict[str, list[CatalogueEntry]]:
    by_canonical: dict[str, list[CatalogueEntry]] = {}
    for provider in providers:
        taken: set[tuple[str, str]] = set()
        for entry in entries_of(provider.name):
            # One id a model and precision: the others are dated names or aliases of it.
            key = (entry.canonical, quantisation_class(entry.quantisation))
            if key not in taken:
                taken.add(key)
                by_canonical.setdefault(entry.canonical, []).append(entry)
    models: dict[str, list[CatalogueEntry]] = {}
    for canonical, entries in by_canonical.items():
        classes = {quantisation_class(e.quantisation) for e in entries}
        for entry in entries:
            of_entry = quantisation_class(entry.quantisation)
            is_split = of_entry != "unknown" and len(classes - {"unknown"}) > 1
            models.setdefault(f"{canonical}-{of_entry}" if is_split else canonical, []).append(
                entry
            )
    return models
