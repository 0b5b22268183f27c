"""Data: the providers' own batch APIs. One entry a provider: discount, limits, window, source.

The discount makes a batch price of an operator's own price, and of a listed one where the price
list (genai-prices) tells no batch prices of that provider at all.
"""

from __future__ import annotations

from urllib.parse import urlsplit

import msgspec

from gateway.core import Endpoint
from gateway.wire.pieces import Dialect

HOUR_S = 3_600
DAY_S = 24 * HOUR_S
MB = 1_000_000
QUIRK = "native_batch"  # by it a policy says that a provider not listed here has such an API

_CHAT = frozenset({"chat"})
_UNDOCUMENTED_S = 7 * DAY_S  # how long files stay is not said: ours to be fetched well before


class NativeBatchFacts(msgspec.Struct, frozen=True, kw_only=True):
    """What one provider's batch API takes, promises and costs."""

    name: str
    form: str  # which adapter speaks it
    hosts: tuple[str, ...] = ()  # names, or suffixes that begin with a dot
    price_of_standard: tuple[int, int] = (1, 2)  # batch price as a share of the standard one
    lines_max: int
    bytes_max: int  # of the whole input
    surfaces: frozenset[str]  # of which one batch holds one
    window_s: int = DAY_S  # it expires then; lines not done come back as expired
    window_s_max: int = DAY_S  # the longest that can be asked for
    results_s: int  # for so long after the end the results can be fetched
    is_priced_in_list: bool = True  # a model without a batch price there has no batch API
    is_found_by_name: bool = True  # a batch whose id is unknown can be told apart with certainty
    source: str


NATIVE_BATCH: tuple[NativeBatchFacts, ...] = (
    NativeBatchFacts(
        name="openai",
        form="openai",
        hosts=("api.openai.com", ".api.openai.com"),
        lines_max=50_000,
        bytes_max=200 * MB,
        surfaces=frozenset({"chat", "completions", "responses", "embeddings"}),
        results_s=30 * DAY_S,
        source="https://developers.openai.com/api/docs/guides/batch",
    ),
    NativeBatchFacts(
        name="anthropic",
        form="anthropic",
        hosts=("api.anthropic.com",),
        lines_max=100_000,
        bytes_max=256 * MB,
        surfaces=frozenset({"messages"}),
        results_s=29 * DAY_S,
        is_found_by_name=False,
        source="https://platform.claude.com/docs/en/build-with-claude/batch-processing",
    ),
    NativeBatchFacts(
        name="gemini",
        form="gemini",
        hosts=("generativelanguage.googleapis.com",),
        # The documentation bounds the file (2 GB) and the tokens that wait, not the lines; as many
        # as elsewhere keep one batch from filling that queue.
        lines_max=50_000,
        bytes_max=200 * MB,
        surfaces=_CHAT,
        results_s=2 * DAY_S,  # files are kept for 48 hours
        source="https://ai.google.dev/gemini-api/docs/batch-api",
    ),
    NativeBatchFacts(
        name="mistral",
        form="mistral",
        hosts=("api.mistral.ai",),
        lines_max=1_000_000,
        bytes_max=512 * MB,
        surfaces=frozenset({"chat", "embeddings"}),
        window_s_max=7 * DAY_S,
        results_s=_UNDOCUMENTED_S,
        source="https://docs.mistral.ai/studio-api/batch-processing",
    ),
    NativeBatchFacts(
        name="groq",
        form="groq",
        hosts=("api.groq.com",),
        lines_max=50_000,
        bytes_max=100 * MB,  # the API reference says 100 MB
        surfaces=_CHAT,
        window_s_max=7 * DAY_S,
        results_s=_UNDOCUMENTED_S,
        source="https://console.groq.com/docs/batch",
    ),
    NativeBatchFacts(
        name="together",
        form="together",
        hosts=("api.together.xyz", "api.together.ai"),
        lines_max=50_000,
        bytes_max=100 * MB,
        surfaces=frozenset({"chat", "completions"}),
        results_s=_UNDOCUMENTED_S,
        is_priced_in_list=False,
        source="https://docs.together.ai/docs/inference/batch/overview",
    ),
)

_BY_DIALECT = {Dialect.OPENAI: NATIVE_BATCH[0], Dialect.ANTHROPIC: NATIVE_BATCH[1]}


def native_batch_of(endpoint: Endpoint) -> NativeBatchFacts | None:
    """
    The batch API behind this endpoint, by its address; None when it has none that is known.

    An endpoint with the quirk `native_batch` has one in its dialect's own form. Its discount is
    then unknown, so none is assumed, but for a simulated provider, whose default we know.
    """
    if endpoint.machine:
        return None
    found = _by_host(urlsplit(endpoint.base_url).hostname or "")
    if found is not None or QUIRK not in endpoint.quirks:
        return found
    share = (1, 2) if endpoint.is_simulated else (1, 1)
    facts = _BY_DIALECT[endpoint.api]
    return msgspec.structs.replace(facts, name=endpoint.provider, price_of_standard=share)


def _by_host(host: str) -> NativeBatchFacts | None:
    for facts in NATIVE_BATCH:
        for known in facts.hosts:
            if host == known or (known.startswith(".") and host.endswith(known)):
                return facts
    return None
