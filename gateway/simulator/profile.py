"""How one simulated provider behaves: speed, price, limits and the faults it shows and when."""

from __future__ import annotations

import enum
import math
from typing import Literal

import msgspec

from gateway.simulator.native_profile import FOREVER_S, BatchProfile


class FaultMode(enum.StrEnum):
    """What goes wrong. Where a mode needs no fields of `Fault`, they are ignored."""

    ERROR = "error"  # `status` at once, nothing billed
    RATE_LIMITED = "rate_limited"  # 429 with Retry-After, whatever the real rate
    HANG_BEFORE_HEADERS = "hang_before_headers"  # the socket stays open and silent
    HANG_MID_STREAM = "hang_mid_stream"  # silent after `after_tokens`
    CUT_MID_STREAM = "cut_mid_stream"  # the connection closes after `after_tokens`
    HTML_200 = "html_200"  # a proxy's page with status 200
    ERROR_200 = "error_200"  # status 200 with an error object as its body
    SLOW_DECODE = "slow_decode"  # tokens per second times `factor`
    SLOW_FIRST_TOKEN = "slow_first_token"  # time to first token divided by `factor`  # noqa: S105 - a fault's name, no secret
    DEAD = "dead"  # the connection closes without a byte


class Fault(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One fault in one window of the provider's own time (seconds since its clock was started)."""

    mode: FaultMode
    starts_s: float = 0.0
    ends_s: float = FOREVER_S
    share: float = 1.0  # of the requests in the window
    status: int = 500
    after_tokens: int = 8
    factor: float = 0.1
    retry_after_s: int = 1

    def __post_init__(self) -> None:
        if not 0.0 <= self.share <= 1.0:
            raise ValueError("share must lie between 0 and 1")
        if not self.factor > 0.0:
            raise ValueError("factor must be above 0")
        if not 400 <= self.status <= 599:
            raise ValueError("status must be a 4xx or 5xx")


class SimulatedPrice(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Pico-dollars per token; one dollar per million tokens is 1,000,000 of them."""

    input: int = 100_000
    cached_read: int = 50_000
    cache_write_5m: int = 125_000
    cache_write_1h: int = 200_000
    output: int = 400_000
    reasoning: int | None = None  # None: as output


class ProviderProfile(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Everything that makes one simulated provider differ from another."""

    name: str
    model: str = "simulated-model"
    api_key: str = ""  # "" asks for none
    price: SimulatedPrice = SimulatedPrice()
    seed: int = 1

    ttft_base_s: float = 0.2
    prefill_tokens_per_s: float = 8_000.0
    ttft_sigma: float = 0.15  # of ln TTFT
    tokens_per_s: float = 60.0
    rate_sigma: float = 0.10  # of ln rate, between streams
    event_sigma: float = 0.20  # of ln gap, between events of one stream
    tokens_per_event: int = 1
    drift_sigma: float = 0.0  # of ln rate, slow wandering over drift_period_s
    drift_period_s: float = 600.0
    speed_steps: tuple[tuple[float, float], ...] = ()  # (from second, factor) in order of time

    context_tokens_max: int = 131_072
    output_tokens_max: int = 16_384
    answer_tokens_median: int = 160
    answer_sigma: float = 0.5
    reasoning_tokens: int = 40  # where the request asks for reasoning

    cache_block_tokens: int = 64
    cache_tokens_min: int = 128
    cache_ttl_s: float = 300.0

    requests_per_minute: int | None = None
    requests_burst: int = 10
    concurrency_soft: int | None = None  # above it all streams share this much speed
    concurrency_max: int | None = None  # above it 503

    usage_every_event: bool = False  # as vLLM's continuous_usage_stats
    bills_prompt_from: Literal["accepted", "first_token"] = "first_token"
    faults: tuple[Fault, ...] = ()
    batch: BatchProfile | None = None  # None: it has no batch API

    def __post_init__(self) -> None:
        for name in ("ttft_base_s", "ttft_sigma", "rate_sigma", "event_sigma", "drift_sigma"):
            if not 0.0 <= getattr(self, name) < math.inf:
                raise ValueError(f"{name} must be 0 or more")
        for name in (
            "prefill_tokens_per_s",
            "tokens_per_s",
            "tokens_per_event",
            "drift_period_s",
            "cache_block_tokens",
            "output_tokens_max",
            "answer_tokens_median",
            "requests_burst",
        ):
            if not getattr(self, name) > 0:
                raise ValueError(f"{name} must be above 0")
        if self.requests_per_minute is not None and self.requests_per_minute < 1:
            raise ValueError("requests_per_minute must be 1 or more, or null for no limit")


def changed(profile: ProviderProfile, changes: dict[str, object]) -> ProviderProfile:
    """The profile with `changes` (JSON values) in place of its own.

    Raises msgspec.ValidationError naming the path of a wrong or unknown field.
    """
    fields: dict[str, object] = msgspec.to_builtins(profile)
    return msgspec.convert({**fields, **changes}, ProviderProfile)


def active_faults(profile: ProviderProfile, at_s: float, draw: float) -> tuple[Fault, ...]:
    """The faults that hit a request arriving at `at_s`; `draw` is uniform in [0, 1)."""
    return tuple(
        fault
        for fault in profile.faults
        if fault.starts_s <= at_s < fault.ends_s and draw < fault.share
    )
