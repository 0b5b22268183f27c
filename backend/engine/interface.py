"""What goes into the engine and what comes out: token ids only, no text, no asyncio."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import IntEnum, StrEnum

from backend.sampling.params import SamplingParams


class Priority(IntEnum):
    """Lower goes first; a batch request that has waited long enough counts as interactive."""

    INTERACTIVE = 0
    BATCH = 1


class FinishReason(StrEnum):
    STOP = "stop"  # an end or stop token
    LENGTH = "length"  # max_tokens, or the context is full
    CANCELLED = "cancelled"
    ERROR = "error"


@dataclass(frozen=True, slots=True)
class SpeculationWish:
    """What one request asks of speculation; None leaves it to the engine."""

    is_off: bool = False
    method: str | None = None
    num_drafts: int | None = None


@dataclass(frozen=True, slots=True)
class EngineRequest:
    """`tenant` salts the prefix cache: requests of two tenants never share a block."""

    request_id: str
    prompt_token_ids: tuple[int, ...]
    params: SamplingParams
    priority: Priority = Priority.INTERACTIVE
    tenant: bytes = b""
    speculation: SpeculationWish = field(default_factory=SpeculationWish)


@dataclass(frozen=True, slots=True)
class TokenLogprob:
    """Natural logarithms; of the token, and of the best ones if asked."""

    token_id: int
    logprob: float
    top: tuple[tuple[int, float], ...] = ()


@dataclass(frozen=True, slots=True)
class TokenEvent:
    """New tokens of one request, in order; the last event of a request has `finish`.

    A stop token is not among `token_ids`, but is counted in `num_generated`.
    """

    request_id: str
    token_ids: tuple[int, ...]
    logprobs: tuple[TokenLogprob, ...] = ()
    finish: FinishReason | None = None
    num_generated: int = 0  # so far
    num_cached_tokens: int = 0  # of the prompt, found in the prefix cache
    error: str | None = None


@dataclass(frozen=True, slots=True)
class EngineLoad:
    """The state now: what /v1/load and the scheduler's callers read."""

    num_running: int
    num_waiting: int
    waiting_prompt_tokens: int
    kv_blocks_total: int
    kv_blocks_used: int  # by running sequences; cached free blocks are free
    tokens_per_s: float  # generated, over the last seconds
    prompt_tokens_per_s: float
    num_preemptions: int
    # Median seconds of a pure decode step by batch size, and of one prompt token, as measured.
    decode_step_s: Mapping[int, float] = field(default_factory=dict)
    prefill_token_s: float = 0.0
