"""The shapes of catalogue facts, and the quantisation classes that make two endpoints the same."""

from __future__ import annotations

import msgspec

from gateway.core import Network
from gateway.wire.pieces import Dialect

# What a quirk means for the adapter that meets it.
QUIRKS: dict[str, str] = {
    "api_key_header": "the key goes into `api-key`, not `Authorization`",
    "keepalive_comments": "sends SSE comments before and between tokens",
    "max_completion_tokens": "wants `max_completion_tokens` where older models take `max_tokens`",
    "native_batch": "has a batch API in its dialect's own form, at half the price if simulated",
    "no_stream_options": "refuses `stream_options`; the last frame carries usage anyway",
    "reported_cost": "says the price in `usage.cost`",
    "string_content": "takes text-only content as one string, not as a list of parts",
    "thinking_budget": "takes a token budget for its thinking, not an effort",
    "thinking_effort": "takes an effort for its thinking, not a token budget",
    "truncates_context": "cuts a prompt longer than its context instead of refusing it",
    "usage_in_choice": "puts usage inside the last choice as well",
    "usage_on_every_frame": "repeats usage on every frame; the last one counts",
}

# Stated precision → bits of a weight. Endpoints of one public model must agree on it.
QUANTISATION_BITS: dict[str, int] = {
    "int4": 4,
    "fp4": 4,
    "mxfp4": 4,
    "nvfp4": 4,
    "fp6": 6,
    "int8": 8,
    "fp8": 8,
    "mxfp8": 8,
    "fp16": 16,
    "bf16": 16,
    "fp32": 32,
}
QUANTISATIONS: tuple[str, ...] = (*QUANTISATION_BITS, "unknown")


def quantisation_class(quantisation: str) -> str:
    """`4-bit`, `6-bit`, `8-bit`, `16-bit` (fp32 weights count as 16-bit quality), or `unknown`."""
    bits = QUANTISATION_BITS.get(quantisation)
    return "unknown" if bits is None else f"{min(bits, 16)}-bit"


class ProviderDefaults(msgspec.Struct, frozen=True, kw_only=True):
    """What a well-known provider's entry in a policy may leave out."""

    name: str
    title: str
    api: Dialect
    base_url: str = ""  # "" = the user must say it (Azure, own servers elsewhere)
    hosts: tuple[
        str, ...
    ] = ()  # host names, or suffixes starting with a dot, that are this provider
    key_envs: tuple[str, ...] = ()  # the first is the usual one
    network: Network = Network.PUBLIC
    surfaces: frozenset[str] = frozenset()
    quirks: frozenset[str] = frozenset()
    stores_data: bool | None = None
    zero_retention: bool | None = None
    region: str = ""
    # Multiples of the input price for writing the prompt cache: 5 minutes, 1 hour.
    cache_write_of_input: tuple[tuple[int, int], tuple[int, int]] = ((1, 1), (1, 1))

    @property
    def is_local(self) -> bool:
        """A server that people run themselves."""
        return self.network is Network.PRIVATE


class CatalogueEntry(msgspec.Struct, frozen=True, kw_only=True):
    """One model at one provider."""

    provider: str  # "" = anybody's server of these open weights
    model: str  # the provider's own name of it
    canonical: str
    quantisation: str = "unknown"
    context_tokens_max: int | None = None
    output_tokens_max: int | None = None
    capabilities: frozenset[str] = frozenset()  # empty = unknown
    surfaces: frozenset[str] | None = None  # None = the provider's
    quirks: frozenset[str] = frozenset()
    has_open_weights: bool = False
    distillable: bool | None = None
