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
    workload: str = ""  # what kind of work it is: figures are kept for each


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
class RoundFigures:
    """What one draft method did for one kind of work, since the start.

    Counts as vLLM's: a *draft* is a round of a sequence, with at least one draft token. Sums of
    seconds are over steps that only decode, once for each sequence in them; `…_plain_s` is what
    plain steps of the same batch take: for a round one, for what steps brought as many as tokens.
    """

    method: str
    workload: str
    num_drafts: int
    num_draft_tokens: int
    num_accepted_tokens: int
    num_at_risk: tuple[int, ...]  # by place: drafts there, all before them accepted
    num_accepted: tuple[int, ...]  # of those
    num_timed_rounds: int
    round_s: float
    round_plain_s: float
    num_timed_steps: int  # rounds, and steps in which nothing was drafted
    step_s: float
    step_plain_s: float

    @property
    def acceptance_rate(self) -> float | None:
        """Of draft tokens."""
        return _ratio(self.num_accepted_tokens, self.num_draft_tokens)

    @property
    def mean_acceptance_length(self) -> float | None:
        """Tokens a round, the target's own among them."""
        rate = _ratio(self.num_accepted_tokens, self.num_drafts)
        return None if rate is None else 1.0 + rate

    @property
    def acceptance_by_position(self) -> tuple[float, ...]:
        """Conditional: of the drafts all before which were accepted."""
        pairs = zip(self.num_accepted, self.num_at_risk, strict=True)
        return tuple(accepted / at_risk if at_risk else 0.0 for accepted, at_risk in pairs)

    @property
    def round_cost(self) -> float | None:
        """Of a round, in plain steps."""
        return _ratio(self.round_s, self.round_plain_s)

    @property
    def speed_up(self) -> float | None:
        """Over plain decoding, by the measured cost of plain steps."""
        return _ratio(self.step_plain_s, self.step_s)


@dataclass(frozen=True, slots=True)
class SpeculationLoad:
    """How the engine drafts, and what that is worth."""

    method: str = "none"
    num_drafts_max: int = 0
    # Batch → drafts a sequence, 0: a plain step → median seconds of a step that only decodes.
    step_s: Mapping[int, Mapping[int, float]] = field(default_factory=dict)
    figures: tuple[RoundFigures, ...] = ()
    # As `step_s`: how many such steps were timed since the start.
    num_steps: Mapping[int, Mapping[int, int]] = field(default_factory=dict)
    num_drafts_now: int = 0  # a sequence, in the last step that decoded
    why_now: str = "no_method"  # `DraftWhy`
    num_steps_by_why: Mapping[str, int] = field(default_factory=dict)


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
    speculation: SpeculationLoad = field(default_factory=SpeculationLoad)


def _ratio(part: float, whole: float) -> float | None:
    return part / whole if whole > 0 else None
