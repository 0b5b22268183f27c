"""A policy ready for use: checked, resolved against the catalogue, indexed for decisions."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from gateway.core import Endpoint, Network
from gateway.policy.routes import Route
from gateway.wire.pieces import Dialect


@dataclass(frozen=True, slots=True)
class Timeouts:
    """Limits of one attempt, in seconds."""

    connect_s: float
    idle_s: float
    idle_reasoning_s: float
    total_s: float
    status_line_s: float
    content_s: float  # though comments keep coming
    client_s: float  # one write to a client that does not read


@dataclass(frozen=True, slots=True)
class ProviderSettings:
    """A provider with the catalogue's facts filled in."""

    name: str
    api: Dialect
    base_url: str
    key_env: str
    network: Network
    headers: tuple[tuple[str, str], ...]
    quirks: frozenset[str]
    timeouts: Timeouts
    verify_tls: bool
    is_simulated: bool
    known_as: str  # the catalogue's name of it, "" = not known
    has_key: bool  # False: it needs a key that the environment did not hold at load


@dataclass(frozen=True, slots=True)
class Rescue:
    first_token_timeout_s: float | None  # None = auto
    decode_floor_tokens_per_s: float | None
    decode_floor_grace_s: float
    hedge_share_max: float  # of this process's requests; 0 = none
    continue_by_prefill: bool = False


@dataclass(frozen=True, slots=True)
class Limits:
    body_bytes_max: int
    requests_in_flight_max: int
    default_max_tokens: int


@dataclass(frozen=True, slots=True)
class Exploration:
    share: float
    credits_max: float
    probe_after_s: float
    nanos_per_hour: int


@dataclass(frozen=True, slots=True)
class Retry:
    attempts_max: int  # beyond the first
    budget_share: float
    floor: int


@dataclass(frozen=True, slots=True)
class Indexed:
    """An endpoint with what a decision asks of it worked out beforehand."""

    endpoint: Endpoint
    id: str
    serves: frozenset[str]  # surfaces, translated ones included
    names: frozenset[str]  # what `order`, `only` and `ignore` may call it, lower case
    rendezvous: int  # odd 64-bit hash of its id
    has_key: bool
    is_plain: bool  # has its key and the standard tier: nothing to ask before using it
    can: frozenset[str] | None  # capabilities, None = unknown
    context_max: float  # tokens; infinite when unknown
    output_max: float


@dataclass(frozen=True, slots=True)
class Policy:
    """What a request is decided by. Requests keep the policy they began with."""

    version: str  # hash of the text
    source: str
    endpoints: dict[str, Endpoint]
    models: dict[str, tuple[str, ...]]  # public name → endpoint ids
    providers: dict[str, ProviderSettings]
    routes: tuple[Route, ...]
    rescue: Rescue
    limits: Limits
    unpriced: str  # "block" | "cap" | "allow"
    unpriced_cap_picos: int  # per token, with "cap"
    keep_alive_s: float | None  # None = none are sent
    drain_s: float
    exploration: Exploration
    retry: Retry
    timeouts: Timeouts
    warnings: tuple[str, ...]
    pools: Mapping[str, tuple[Indexed, ...]]  # public name or endpoint id → candidates
