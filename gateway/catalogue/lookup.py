"""Questions to the catalogue: who is this provider, what is this model, which keys are set."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import cache
from urllib.parse import urlsplit

from gateway.catalogue.entries import CatalogueEntry, ProviderDefaults
from gateway.catalogue.models import MODELS, Row
from gateway.catalogue.providers import PROVIDERS

# Other names people give these providers.
_ALIASES: dict[str, str] = {
    "claude": "anthropic",
    "moonshotai": "moonshot",
    "kimi": "moonshot",
    "zhipuai": "zhipu",
    "bigmodel": "zhipu",
    "z.ai": "zai",
    "z-ai": "zai",
    "alibaba": "dashscope",
    "qwen": "dashscope",
    "togetherai": "together",
    "fireworks-ai": "fireworks",
    "mistralai": "mistral",
    "azure-openai": "azure",
}


def provider_defaults(provider_or_base_url: str) -> ProviderDefaults | None:
    """The well-known provider of that name, alias, or address; None for anybody else's."""
    if "://" in provider_or_base_url:
        try:
            host = urlsplit(provider_or_base_url).hostname
        except ValueError:
            return None  # no address at all
        return _by_host(host or "")
    name = provider_or_base_url.lower()
    return _by_name().get(_ALIASES.get(name, name))


def provider_by_key_env(key_env: str) -> ProviderDefaults | None:
    """The provider whose key people keep in that variable."""
    return next((p for p in PROVIDERS if key_env in p.key_envs), None)


def lookup(provider: str, model: str) -> CatalogueEntry | None:
    """
    What is known of `model` at `provider` (a name, alias or address).

    At an unknown or local server the name is looked for among the open weights' own ids.
    """
    known = provider_defaults(provider)
    entries = _entries()
    if known is not None and (entry := entries.get((known.name, model.lower()))):
        return entry
    if known is None or known.is_local:
        return entries.get(("", model.lower()))
    return None


def entries_of(provider: str) -> tuple[CatalogueEntry, ...]:
    """All that a provider is known to serve, in the catalogue's order."""
    return tuple(e for (name, _), e in _entries().items() if name == provider)


def canonical_models() -> tuple[str, ...]:
    return tuple(row.canonical for row in MODELS)


def detect_providers(environ: Mapping[str, str]) -> list[ProviderDefaults]:
    """Providers with a key in the environment and a known address, in the catalogue's order."""
    return [p for p in PROVIDERS if p.base_url and any(environ.get(env) for env in p.key_envs)]


def key_env_in(provider: ProviderDefaults, environ: Mapping[str, str]) -> str:
    """Which of the provider's variables is set; its usual one when none is."""
    found = (env for env in provider.key_envs if environ.get(env))
    return next(found, provider.key_envs[0] if provider.key_envs else "")


def _by_host(host: str) -> ProviderDefaults | None:
    for provider in PROVIDERS:
        for known in provider.hosts:
            if host == known or (known.startswith(".") and host.endswith(known)):
                return provider
    return None


@cache
def _by_name() -> dict[str, ProviderDefaults]:
    return {provider.name: provider for provider in PROVIDERS}


@cache
def _entries() -> dict[tuple[str, str], CatalogueEntry]:
    return {(e.provider, e.model.lower()): e for row in MODELS for e in _of_row(row)}


def _of_row(row: Row) -> Iterator[CatalogueEntry]:
    for provider, stated in row.ids.items():
        for text in (stated,) if isinstance(stated, str) else stated:
            model, _, quantisation = text.partition("|")
            yield CatalogueEntry(
                provider="" if provider == "*" else provider,
                model=model,
                canonical=row.canonical,
                quantisation=quantisation or row.quant,
                context_tokens_max=row.context,
                output_tokens_max=row.output,
                capabilities=frozenset(row.can.split()),
                surfaces=frozenset(row.surfaces.split()) or None,
                quirks=frozenset(row.quirks.split()),
                has_open_weights=row.is_open,
                distillable=row.distill,
            )
