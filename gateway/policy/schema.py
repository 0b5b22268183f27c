"""The policy YAML as types: every field, its default and its meaning. The reference and the JSON
Schema are generated from here.
"""

from __future__ import annotations

from typing import Annotated, Literal

import msgspec
from msgspec import Meta

from gateway.policy.schema_rescue import Rescue
from gateway.policy.units import DURATION_PATTERN

Duration = Annotated[str, Meta(pattern=DURATION_PATTERN, examples=["150ms", "3s", "24h"])]
Name = Annotated[str, Meta(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]{0,63}$")]
EnvName = Annotated[str, Meta(pattern=r"^[A-Z_][A-Z0-9_]{0,127}$")]
UsdPerMtok = Annotated[float, Meta(ge=0, le=1_000_000)]
Positive = Annotated[int, Meta(ge=1)]
Share = Annotated[float, Meta(ge=0, le=1)]
OneOrMore = str | tuple[str, ...]
Quantisation = Literal[
    "int4", "int8", "fp4", "mxfp4", "nvfp4", "fp6", "fp8", "mxfp8", "fp16", "bf16", "fp32",
    "unknown",
]  # fmt: skip
Tier = Literal["standard", "flex", "priority", "batch"]
By = Literal["fastest", "balanced", "cheapest", "throughput", "latency", "price"]
Capability = Literal[
    "text", "tools", "parallel_tool_calls", "json_object", "json_schema", "vision", "audio",
    "reasoning", "logprobs", "n",
]  # fmt: skip
SurfaceName = Literal["chat", "completions", "responses", "embeddings", "messages", "count_tokens"]


class SelfHosted(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A machine of yours, paid by the hour. Requests are billed at its average price a token: its
    hour over the tokens of the last ten minutes. They are routed by the price of the seconds that
    one more request would keep it busy, if it serves `/v1/load`."""

    usd_per_hour: Annotated[
        Annotated[float, Meta(gt=0, le=100_000)] | None,
        Meta(description="With on_demand: what the machine costs an hour."),
    ] = None
    billing: Annotated[
        Literal["on_demand", "owned"],
        Meta(
            description="on_demand: every hour is paid, usd_per_hour. owned: the machine is paid "
            "for, only its electricity counts."
        ),
    ] = "on_demand"
    watts: Annotated[
        Annotated[float, Meta(gt=0, le=1_000_000)] | None,
        Meta(description="With owned: what it draws at work."),
    ] = None
    usd_per_kwh: Annotated[
        Annotated[float, Meta(gt=0, le=100)] | None,
        Meta(description="With owned: what electricity costs."),
    ] = None
    tokens_per_hour: Annotated[
        Positive,
        Meta(
            description="The average price assumes at least so many tokens, prompt and answer "
            "together: it is the price until measured, and after a quiet time."
        ),
    ] = 1_000_000


class Timeouts(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """How long an attempt may take in each phase."""

    connect: Annotated[Duration, Meta(description="To open a connection.")] = "2s"
    idle: Annotated[Duration, Meta(description="Between two events of a stream.")] = "30s"
    idle_reasoning: Annotated[
        Duration, Meta(description="The same for models that reason without streaming it.")
    ] = "60s"
    content: Annotated[
        Duration,
        Meta(description="Between two pieces of content, however many comments come between."),
    ] = "5m"
    total: Annotated[Duration, Meta(description="The whole attempt.")] = "10m"
    client: Annotated[
        Duration,
        Meta(description="One write to a client that does not read; then it counts as gone."),
    ] = "60s"
    status_line: Annotated[
        Duration,
        Meta(description="After this the client gets its status line and keep-alives."),
    ] = "10s"


class ProviderTimeouts(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A provider's own timeouts; what is left out comes from the top level."""

    connect: Annotated[Duration | None, Meta(description="To open a connection.")] = None
    idle: Annotated[Duration | None, Meta(description="Between two events of a stream.")] = None
    total: Annotated[Duration | None, Meta(description="The whole attempt.")] = None


class Provider(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One address that serves models, and the key it wants."""

    api: Annotated[Literal["openai", "anthropic"], Meta(description="The dialect it speaks.")] = (
        "openai"
    )
    base_url: Annotated[
        str, Meta(description="Up to and including the version part. Known providers need none.")
    ] = ""
    key_env: Annotated[
        EnvName | None,
        Meta(
            description="Environment variable (or stored secret) with the key. Left out: a known "
            "provider's usual one."
        ),
    ] = None
    network: Annotated[
        Literal["public", "private"] | None,
        Meta(description="private allows http:// and addresses inside your own network."),
    ] = None
    self_hosted: Annotated[
        SelfHosted | None, Meta(description="This is a machine of yours, paid by the hour.")
    ] = None
    simulated: Annotated[bool, Meta(description="A simulator, labelled as one everywhere.")] = False
    bills_from: Annotated[
        Literal["accepted", "first_token"] | None,
        Meta(
            description="What a stream that dies before its first token costs: accepted = the "
            "prompt, booked as an estimate for the operator (the default); first_token = nothing "
            "(the default of a simulator)."
        ),
    ] = None
    stops_when_left: Annotated[
        bool | None,
        Meta(
            description="It generates, and bills, no more of a plain answer once its connection is "
            "closed. Then what is booked of one whose gateway was killed is bounded by how long it "
            "was under way; else it is all that was expected (the default, but for a simulator "
            "and a machine of yours)."
        ),
    ] = None
    headers: Annotated[
        dict[str, str], Meta(description="Fixed extra request headers. Never a secret.")
    ] = {}
    region: Annotated[str | None, Meta(description="Where it runs, e.g. eu; shown only.")] = None
    stores_data: Annotated[
        bool | None, Meta(description="It keeps or trains on prompts. Left out: unknown.")
    ] = None
    zero_retention: Annotated[
        bool | None, Meta(description="It is contracted to keep nothing. Left out: unknown.")
    ] = None
    tier: Annotated[Tier, Meta(description="Service tier of its endpoints.")] = "standard"
    surfaces: Annotated[
        tuple[SurfaceName, ...] | None, Meta(description="Wire APIs it serves.")
    ] = None
    quirks: Annotated[
        tuple[str, ...], Meta(description="Known deviations, added to the catalogue's.")
    ] = ()
    timeouts: Annotated[
        ProviderTimeouts | None, Meta(description="Instead of the top level's.")
    ] = None
    verify_tls: Annotated[
        bool, Meta(description="false accepts any certificate; only with network: private.")
    ] = True


class Price(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Dollars per million tokens. A bucket left out falls back (cached to input, reasoning to
    output); one stated as 0 is free."""

    input: Annotated[UsdPerMtok, Meta(description="Prompt tokens.")]
    output: Annotated[UsdPerMtok, Meta(description="Answer tokens; 0 for embeddings.")]
    cached_read: Annotated[UsdPerMtok | None, Meta(description="Prompt tokens from cache.")] = None
    cache_write_5m: Annotated[
        UsdPerMtok | None, Meta(description="Prompt tokens written to a 5-minute cache.")
    ] = None
    cache_write_1h: Annotated[
        UsdPerMtok | None, Meta(description="Prompt tokens written to a 1-hour cache.")
    ] = None
    reasoning: Annotated[UsdPerMtok | None, Meta(description="Reasoning tokens.")] = None
    audio_input: Annotated[UsdPerMtok | None, Meta(description="Audio prompt tokens.")] = None
    audio_output: Annotated[UsdPerMtok | None, Meta(description="Audio answer tokens.")] = None
    image_input: Annotated[UsdPerMtok | None, Meta(description="Image prompt tokens.")] = None
    usd_per_request: Annotated[
        float, Meta(ge=0, le=1_000, description="A flat fee on every request.")
    ] = 0.0


class EndpointSpec(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One provider's model as an endpoint of a public model."""

    provider: Annotated[str, Meta(description="A name under providers.")]
    model: Annotated[str, Meta(min_length=1, max_length=256, description="Its name there.")]
    price: Annotated[Price | None, Meta(description="Your price, before every other source.")] = (
        None
    )
    quantisation: Annotated[
        Quantisation | None, Meta(description="Stated precision of the weights.")
    ] = None
    canonical: Annotated[
        str | None, Meta(description="The model it really is, when the catalogue cannot know.")
    ] = None
    context: Annotated[Positive | None, Meta(description="Context window in tokens.")] = None
    max_output: Annotated[Positive | None, Meta(description="Longest answer in tokens.")] = None
    capabilities: Annotated[
        tuple[Capability, ...] | None, Meta(description="All it can do. Left out: unknown.")
    ] = None
    parameters: Annotated[
        tuple[str, ...] | None,
        Meta(description="Request fields it supports, for require_parameters. Left out: unknown."),
    ] = None
    surfaces: Annotated[
        tuple[SurfaceName, ...] | None, Meta(description="Wire APIs it serves.")
    ] = None
    distillable: Annotated[
        bool | None,
        Meta(description="Its terms allow training on its answers. Left out: as the catalogue."),
    ] = None
    region: Annotated[str | None, Meta(description="Where it runs.")] = None
    self_hosted: Annotated[
        SelfHosted | None,
        Meta(description="It has a machine of its own; instead of the provider's."),
    ] = None
    tier: Annotated[Tier | None, Meta(description="Service tier asked for.")] = None
    listed_tok_s: Annotated[
        Annotated[float, Meta(gt=0, le=1_000_000)] | None,
        Meta(
            description="Tokens a second of one stream as its provider lists them. Shown beside "
            "what is measured; nothing is decided by it."
        ),
    ] = None
    assistant_prefill: Annotated[
        Literal["message", "prefix", "continue_final_message"] | None,
        Meta(
            description="How it goes on with an answer begun, for continue_by_prefill. message: a "
            "last message of the assistant is enough. prefix: that message says prefix: true "
            "(DeepSeek). continue_final_message: the request says so (vLLM, SGLang). Left out: it "
            "does not."
        ),
    ] = None


class PriceMax(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Dearest price a route accepts, in dollars per million tokens."""

    input: Annotated[UsdPerMtok | None, Meta(description="Of prompt tokens.")] = None
    output: Annotated[UsdPerMtok | None, Meta(description="Of answer tokens.")] = None


class Match(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Which requests a route takes. Every condition given must hold; none = all requests."""

    lane: Annotated[
        Literal["interactive", "batch"] | None, Meta(description="The request's lane.")
    ] = None
    stream: Annotated[bool | None, Meta(description="Streaming requests, or only others.")] = None
    model: Annotated[OneOrMore, Meta(description="Public model names; * at the end is any.")] = ()
    surface: Annotated[SurfaceName | tuple[SurfaceName, ...], Meta(description="Wire APIs.")] = ()
    key: Annotated[OneOrMore, Meta(description="Ids or names of virtual keys.")] = ()
    team: Annotated[OneOrMore, Meta(description="Team ids.")] = ()
    tags: Annotated[OneOrMore, Meta(description="Tags the request must all carry.")] = ()
    min_prompt_tokens: Annotated[
        Positive | None, Meta(description="Prompts of at least so many tokens.")
    ] = None
    max_prompt_tokens: Annotated[
        Positive | None, Meta(description="Prompts of at most so many tokens.")
    ] = None


class Prefer(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What "best" means on a route."""

    by: Annotated[
        By,
        Meta(
            description="fastest: done first. balanced: time against money. cheapest: least money "
            "within the deadline. throughput, latency, price: strictly in that order."
        ),
    ]
    price_max: Annotated[
        PriceMax | None, Meta(description="Endpoints dearer than this are left out.")
    ] = None
    deadline: Annotated[
        Duration | None, Meta(description="With cheapest: 95 % must be done within this.")
    ] = None
    usd_per_second: Annotated[
        Annotated[float, Meta(gt=0, le=1_000)] | None,
        Meta(description="With balanced: what one second is worth."),
    ] = None


class Route(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One rule of routing. The first whose match holds decides."""

    name: Annotated[Name, Meta(description="Shown in logs and explanations.")]
    prefer: Annotated[Prefer, Meta(description="What to optimise.")]
    match: Annotated[Match, Meta(description="Which requests it takes.")] = Match()


class Limits(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Hard limits of the gateway."""

    body_bytes: Annotated[
        int, Meta(ge=1_024, le=1_073_741_824, description="Longest request body.")
    ] = 10_485_760
    requests_in_flight: Annotated[Positive, Meta(description="Requests served at once.")] = 1_000
    default_max_tokens: Annotated[
        Positive,
        Meta(description="Set on a request without max_tokens whose key has a budget."),
    ] = 4_096


class Unpriced(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """How an endpoint without a known price is treated, with an assumed price."""

    rule: Annotated[
        Literal["block", "cap", "allow"],
        Meta(
            description="block: not used. cap: billed at the cap. allow: used and marked unpriced, "
            "but not by keys with a budget, which could not be kept."
        ),
    ] = "block"
    usd_per_million_tokens: Annotated[
        UsdPerMtok | None, Meta(description="With cap: what every token is billed at.")
    ] = None


class KeepAlive(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Keep-alives to a client that waits."""

    comments: Annotated[bool, Meta(description="false sends none.")] = True
    every: Annotated[Duration, Meta(description="Between two of them.")] = "15s"


class Exploration(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Paid tries of endpoints that look worse, so that an improvement is found."""

    share: Annotated[Share, Meta(description="Share of eligible requests.")] = 0.02
    credits_max: Annotated[float, Meta(ge=0, le=1_000, description="Credits saved up at most.")] = (
        20.0
    )
    probe_after: Annotated[
        Duration, Meta(description="An endpoint unmeasured for so long is tried in the batch lane.")
    ] = "10m"
    usd_per_hour: Annotated[
        float, Meta(ge=0, le=1_000, description="Cost of such tries an hour and endpoint, at most.")
    ] = 0.01


class Retry(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """How often a failed attempt is followed by another."""

    max: Annotated[int, Meta(ge=0, le=10, description="Further attempts a request.")] = 2
    budget: Annotated[Share, Meta(description="Of active requests that may be retries.")] = 0.2
    floor: Annotated[int, Meta(ge=0, le=1_000, description="Retries always allowed at once.")] = 3


class PolicySpec(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A LoopRouter policy."""

    version: Annotated[Literal[1], Meta(description="Version of this format.")]
    providers: Annotated[dict[str, Provider], Meta(description="Who serves models.")] = {}
    models: Annotated[
        dict[str, tuple[EndpointSpec, ...]],
        Meta(description="Public model names and the endpoints that can serve each."),
    ] = {}
    routes: Annotated[
        tuple[Route, ...],
        Meta(
            description="First match wins. What none matches: batch lane cheapest, streams "
            "fastest, the rest balanced."
        ),
    ] = ()
    rescue: Annotated[Rescue, Meta(description="What is done about slow attempts.")] = Rescue()
    limits: Annotated[Limits, Meta(description="Hard limits.")] = Limits()
    unpriced: Annotated[
        Literal["block", "cap", "allow"] | Unpriced,
        Meta(description="Endpoints whose price nobody knows."),
    ] = "block"
    keep_alive: Annotated[KeepAlive, Meta(description="Keep-alives to waiting clients.")] = (
        KeepAlive()
    )
    drain: Annotated[Duration, Meta(description="How long a stopping gateway finishes.")] = "10m"
    exploration: Annotated[Exploration, Meta(description="Paid tries.")] = Exploration()
    retry: Annotated[Retry, Meta(description="Attempts after a failure.")] = Retry()
    timeouts: Annotated[Timeouts, Meta(description="Limits of one attempt.")] = Timeouts()
