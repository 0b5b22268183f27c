"""The nouns that stages pass on. Frozen; imports no stage, no clock, no randomness, no I/O.

Money is an integer of nano-dollars, prices are integers of pico-dollars per token,
time inside a process is monotonic seconds.
"""

from __future__ import annotations

import enum
from functools import cached_property
from typing import Any, Protocol

import msgspec

from gateway.wire.pieces import Dialect, Surface
from gateway.wire.usage import Usage

NANOS_PER_DOLLAR = 1_000_000_000
PICOS_PER_NANO = 1_000
REFERENCE_CHARACTERS = 4.0  # of the token that lengths are told in: endpoints count differently
BUDGET_PERIODS = ("day", "month", "total")


def dollars(nanos: int) -> str:
    """Nano-dollars as an exact decimal string of dollars: at least two decimals, no zeros after."""
    sign = "-" if nanos < 0 else ""
    whole, part = divmod(abs(nanos), NANOS_PER_DOLLAR)
    decimals = f"{part:09d}".rstrip("0").ljust(2, "0")
    return f"{sign}{whole}.{decimals}"


def dollars_per_million(picos: int) -> str:
    """Pico-dollars per token as exact dollars per million tokens, the unit of price lists."""
    whole, rest = divmod(picos, 1_000_000)
    return f"{whole}.{rest:06d}".rstrip("0").rstrip(".")


class Rng(Protocol):
    """The randomness a decision may use; `random.Random(seed)` satisfies it."""

    def gauss(self, mu: float, sigma: float) -> float: ...
    def random(self) -> float: ...


class Lane(enum.StrEnum):
    INTERACTIVE = "interactive"
    BATCH = "batch"


class Network(enum.StrEnum):
    """Where a provider's addresses may lie (design: the network rule)."""

    PUBLIC = "public"
    PRIVATE = "private"


class Caller(msgspec.Struct, frozen=True, kw_only=True):
    """Who holds the key of a request, and what that key may do."""

    tenant_id: str
    team_id: str
    key_id: str  # the public id, safe to log
    key_name: str = ""
    models: tuple[str, ...] = ()  # public model names allowed; empty = all
    routes: tuple[str, ...] = ()  # surfaces allowed; empty = all
    requests_per_minute: int | None = None
    tokens_per_minute: int | None = None
    concurrency_max: int | None = None
    no_explore: bool = False
    budget_ids: tuple[str, ...] = ()  # tenant, team and key budgets in force


class PriceRow(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Pico-dollars per token by bucket, for one endpoint × tier × context step × time window."""

    source: str  # "policy" | "reported" | "genai-prices" | "self_hosted" | "unpriced"
    price_id: str = ""  # which entry and version it came from
    tier: str = "standard"  # "standard" | "flex" | "priority" | "batch"
    context_tokens_min: int = 0  # this row holds from so many prompt tokens on
    input: int = 0
    cached_read: int = 0
    cache_write_5m: int = 0
    cache_write_1h: int = 0
    output: int = 0
    reasoning: int = 0
    audio_input: int = 0
    audio_output: int = 0
    image_input: int = 0
    request_nanos: int = 0  # a flat fee a request
    free: tuple[str, ...] = ()  # buckets that cost nothing; any other 0 means "falls back"

    @property
    def is_priced(self) -> bool:
        return self.source != "unpriced"


class Endpoint(msgspec.Struct, frozen=True, kw_only=True):
    """One (provider, model, address) that can serve."""

    id: str  # "provider/model", unique within a policy
    provider: str
    api: Dialect
    base_url: str
    model: str  # the provider's own name of it
    canonical_model: str = ""  # "" = unknown
    quantisation: str = "unknown"
    context_tokens_max: int | None = None
    output_tokens_max: int | None = None
    capabilities: frozenset[str] = frozenset()  # tools, json_schema, vision, audio, …
    parameters: frozenset[str] | None = None  # request fields it supports; None = unknown
    surfaces: frozenset[str] = frozenset()
    quirks: frozenset[str] = frozenset()
    stores_data: bool | None = None
    zero_retention: bool | None = None
    distillable: bool | None = None  # the model's terms allow training on its answers
    region: str = ""
    network: Network = Network.PUBLIC
    key_env: str = ""
    headers: tuple[tuple[str, str], ...] = ()  # fixed extra headers from the policy file
    prices: tuple[PriceRow, ...] = ()  # the operator's own, before every other source
    tier: str = "standard"
    usd_per_hour_nanos: int | None = None  # self-hosted: what its machine costs an hour
    machine: str = ""  # self-hosted: whose hour it is; endpoints of one machine share it
    billing: str = ""  # self-hosted: "on_demand" | "owned"
    tokens_per_hour_min: int = 0  # self-hosted: its average price assumes no fewer
    is_simulated: bool = False
    bills_from_first_token: bool = False  # an attempt that dies before it costs nothing
    stops_when_left: bool = False  # a whole answer is not generated on, nor billed, unheard
    assistant_prefill: str = ""  # how it goes on with an answer begun: see the policy; "" = not
    listed_tok_s: float | None = None  # what its provider says that one stream decodes at

    @property
    def state_key(self) -> str:
        """What live state survives under when the policy changes."""
        return f"{self.provider}|{self.base_url}|{self.model}"


class ProviderPreferences(
    msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, cache_hash=True
):
    """OpenRouter's `provider` object, field by field."""

    order: tuple[str, ...] = ()
    allow_fallbacks: bool = True
    require_parameters: bool = False
    data_collection: str = "allow"
    zdr: bool = False
    enforce_distillable_text: bool = False
    only: tuple[str, ...] = ()
    ignore: tuple[str, ...] = ()
    quantizations: tuple[str, ...] = ()
    sort: str = ""  # "price" | "throughput" | "latency" | ""
    partition: str = "model"  # "model" | "none"
    preferred_min_throughput: tuple[tuple[str, float], ...] = ()  # (("p50", 40.0),)
    preferred_max_latency: tuple[tuple[str, float], ...] = ()  # seconds
    max_price: tuple[tuple[str, float], ...] = ()  # dollars per million tokens


class RequestFacts(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """All that `decide` may know of a request. Stored with it; holds no text of it."""

    request_id: str
    surface: Surface
    models: tuple[str, ...]  # public names wanted: the model, then the fallback list
    stream: bool = False
    lane: Lane = Lane.INTERACTIVE
    tenant_id: str = ""
    key_id: str = ""
    key_name: str = ""
    team_id: str = ""
    text_bytes: int = 0  # bytes of prompt text
    num_images: int = 0
    prompt_tokens: int = 0  # estimate
    max_tokens: int | None = None
    needs: frozenset[str] = frozenset()  # capabilities the request cannot do without
    parameters: frozenset[str] = frozenset()  # top-level fields sent
    service_tier: str = ""
    preferences: ProviderPreferences = ProviderPreferences()
    suffix: str = ""  # "nitro" | "floor" | "batch" | ""
    affinity_key: str = ""  # HMAC, hex; "" = no affinity
    session_key: str = ""
    no_explore: bool = False
    has_budget: bool = False  # of its key, team or tenant
    num_choices: int = 1
    deadline_s: float | None = None
    tags: frozenset[str] = frozenset()


class EndpointStats(msgspec.Struct, frozen=True, kw_only=True):
    """The estimator's belief about one endpoint, rebuilt once a second (reliability B.2)."""

    endpoint_id: str
    ttft_base_s: float  # b_e
    prefill_tokens_per_s: float  # rho_e
    ttft_mu: float  # mean of ln TTFT − ln(1 + n_uncached/(rho b)), so exp(mu) is seconds
    ttft_sigma: float
    ttft_n: float  # effective samples, prior included
    rate_mu: float  # mean of ln(visible tokens per second)
    rate_sigma: float
    rate_n: float
    success_p: float
    success_n: float
    failure_lost_s: float  # mean time lost by a failure
    waste: float = 1.0  # billed over useful tokens
    ttft_p50_p75_p90_p99_s: tuple[float, float, float, float] | None = None
    rate_p50_p75_p90_p99: tuple[float, float, float, float] | None = None  # p99 = exceeded by 99 %
    characters_per_token: float = 4.0
    tokens_per_byte_p99: float = 0.5
    num_samples: int = 0
    sample_age_s: float | None = None  # None = never measured
    e2e_base_s: float | None = None  # whole answers: time = base + per token · tokens
    e2e_s_per_token: float | None = None
    e2e_n: float = 0.0


class MachineLoad(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What a self-hosted server said last of its own work (`GET /v1/load`)."""

    num_running: int = 0
    num_waiting: int = 0
    waiting_prompt_tokens: int = 0
    sequences_max: int = 0  # that run at once; 0 = not said
    kv_blocks_total: int = 0
    kv_blocks_used: int = 0
    tokens_per_s: float = 0.0
    prompt_tokens_per_s: float = 0.0
    decode_step_s: tuple[tuple[int, float], ...] = ()  # (batch size, seconds), ascending
    prefill_token_s: float = 0.0
    in_flight: int = 0  # how many of them were ours then

    @property
    def cache_use(self) -> float:
        """Share of the KV cache in use; 0 where there is none."""
        return self.kv_blocks_used / self.kv_blocks_total if self.kv_blocks_total else 0.0


class EndpointLive(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """State that may not be a second old: read at the instant of the decision."""

    endpoint_id: str
    in_flight: int = 0
    capacity: float = 64.0  # learned L_e
    places: float = float("inf")  # learned: with more in flight, all take longer in proportion
    breaker: str = "closed"  # "closed" | "open" | "half_open"
    reopens_in_s: float = 0.0
    cached_tokens: int = 0  # expected for this request from the affinity record
    is_last_used: bool = False  # served this session or prefix last
    is_home: bool = False  # rendezvous home of this prefix, within its bounded load
    is_cooling: bool = False  # shut only because it asked for a pause (Retry-After)
    was_probed: bool = False  # lately, or its money for probes is spent for this hour
    is_full: bool = False  # by its own account, or because it is silent
    is_silent: bool = False  # told its load and has not for a while: used if nobody else can serve
    machine: MachineLoad | None = None  # self-hosted: its own account of its work
    held: str = ""  # "paused" | "draining" by an operator; then its capacity is 0


class FleetSnapshot(msgspec.Struct, frozen=True, kw_only=True, dict=True):
    """One second's beliefs and prices; stored, so that a decision can be repeated."""

    id: str
    at_unix_s: float
    stats: dict[str, EndpointStats]
    prices: dict[str, tuple[PriceRow, ...]]  # every tier and context step valid now

    @cached_property
    def worked_out(self) -> dict[object, Any]:
        """What pure functions have made of it, for as long as it lives; neither stored nor
        compared."""
        return {}


class FleetView(msgspec.Struct, frozen=True, kw_only=True):
    """What `decide` sees: a snapshot, the live state over it, and what this request may expect."""

    snapshot: FleetSnapshot
    live: dict[str, EndpointLive]
    output_tokens_expected: float = 200.0
    output_tokens_n: float = 0.0
    output_tokens_longest: float = 0.0  # 99 of 100 answers of the model are no longer; 0 = unknown
    exploration_credits: float = 0.0


class ScoreTerms(msgspec.Struct, frozen=True, kw_only=True):
    """Every part of one endpoint's score, so that anyone can add it up again."""

    load: float
    uncached_tokens: float
    cached_tokens: float
    ttft_s: float
    decode_s: float
    time_s: float  # T = load · (ttft + decode)
    success_p: float
    failure_s: float  # (1−p)/p · time lost
    cost_nanos: int
    cost_s: float  # λ · cost
    score_s: float  # J at the means
    drawn_score_s: float  # J at the Thompson draw
    machine_s: float | None = None  # self-hosted: the cost is that of so many more busy seconds


class Candidate(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One endpoint and what became of it in a decision."""

    endpoint_id: str
    outcome: str  # "chosen" | "fallback" | "lost" | "excluded"
    reason: str  # the rule that excluded it, or why it lost, as a sentence
    terms: ScoreTerms | None = None


class Plan(msgspec.Struct, frozen=True, kw_only=True):
    """
    An ordered decision, and what of it cannot be worked out again.

    The candidates with their terms can: `policy.explain.candidates_of` does, for those who ask.
    """

    model: str  # the public model decided for
    route: str
    preference: str  # "fastest" | "balanced" | "cheapest" | "throughput" | …
    order: tuple[str, ...]  # endpoint ids; the first is tried first
    policy_version: str
    snapshot_id: str
    seed: int
    why: str = ""  # why the first goes first, as a sentence
    draw: int | None = None  # the place in the ring of draws that chose among near equals
    cost_nanos: int = 0  # expected, at the first of `order`
    cached: tuple[tuple[str, int], ...] = ()  # (endpoint id, prompt tokens expected cached there)
    explored: bool = False  # paid one exploration credit
    is_panic: bool = False  # every breaker is open; the first of the order is tried early
    models: tuple[str, ...] = ()  # the public model of each in `order`; empty: all are `model`'s

    def model_of(self, endpoint_id: str) -> str:
        """The public model that an endpoint of `order` serves for."""
        return self.models[self.order.index(endpoint_id)] if self.models else self.model

    def cached_tokens(self, endpoint_id: str) -> int:
        """Prompt tokens that an endpoint of `order` is expected to have cached."""
        for known_id, num_tokens in self.cached:
            if known_id == endpoint_id:
                return num_tokens
        return 0


class AttemptOutcome(msgspec.Struct, kw_only=True):
    """What one attempt did: monotonic stamps at the socket, counts, usage. Never any text."""

    attempt_id: str
    request_id: str
    endpoint_id: str
    surface: Surface
    stream: bool
    dispatched_at_s: float
    headers_at_s: float | None = None
    first_byte_at_s: float | None = None
    first_generated_at_s: float | None = None
    first_visible_at_s: float | None = None
    last_generated_at_s: float | None = None
    ended_at_s: float | None = None
    num_frames: int = 0  # generated frames
    frame_stamps_s: list[float] = msgspec.field(default_factory=list)  # the first 512
    visible_chars: int = 0
    reasoning_chars: int = 0
    tool_chars: int = 0
    usage: Usage | None = None
    usage_estimated: bool = False
    usage_is_current: bool = False  # said with the last generated frame, or after it
    tier_served: str = ""  # as the answer says it; "" = it does not
    reported_cost_nanos: int | None = None
    prompt_tokens_expected: int = 0
    cached_tokens_expected: int = 0
    text_bytes: int = 0
    max_tokens: int | None = None
    has_tools: bool = False
    tenant_id: str = ""
    key_id: str = ""
    model: str = ""
    affinity_key: str = ""
    session_key: str = ""
    status: int = 0
    failure: str = ""  # FailureClass value, "" = none
    retry_after_s: float | None = None
    finish: str = ""
    is_committed: bool = False
    was_heard: bool = False  # the fleet was told of its first token, though it is not committed
    client_gone: bool = False
    was_refused: bool = False  # certain that the provider did no billable work
    protocol_faults: int = 0
    num_choices: int = 1  # `n` of the request; parallel choices give no decode sample
    num_images: int = 0
    in_flight: int = 1  # at its endpoint when it was sent, itself among them
    reading_paused_s: float = 0.0  # upstream left unread because the client was slow
    is_cached_answer: bool = False  # replayed, not generated: no speed sample
