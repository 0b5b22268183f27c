"""What the relay is given, what it gives back, and the client's side as it sees it."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from typing import Protocol

from gateway.core import AttemptOutcome, Caller, FleetSnapshot, Plan, RequestFacts
from gateway.errors import ApiError
from gateway.ledger.records import Settled
from gateway.policy.policy import Policy
from gateway.relay.limits import AttemptLimits
from gateway.wire.pieces import Surface
from gateway.wire.requests import ParsedRequest
from gateway.wire.usage import Usage

Headers = list[tuple[bytes, bytes]]
# Keeps a whole answer (status, body) where a kill cannot reach it, before its attempt is settled.
Keep = Callable[[int, bytes], Awaitable[None]]


class ClientSink(Protocol):
    """The client, as an edge implements it. After `gone` is set the methods do nothing."""

    gone: asyncio.Event
    is_started: bool

    async def start(self, status: int, headers: Headers) -> None: ...
    async def send(self, data: bytes) -> None:
        """Waits while the client's socket is full."""
        ...

    async def finish(self) -> None: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class RelayLimits:
    """How much is kept between upstream and client, and for how long."""

    queued_events_max: int = 64
    queued_bytes_max: int = 64 * 1024
    stalled_s_max: float | None = None  # one write to the client; None = as the policy says
    answer_bytes_max: int = 32 * 1024 * 1024  # of a plain answer
    error_bytes_max: int = 256 * 1024  # of an error's body; more is not read
    preface_bytes_max: int = 4 * 1024 * 1024  # of a stream before its first piece
    drain_s: float = 0.25  # for what follows the end mark, so that the connection can be reused
    frame_stamps_max: int = 512


@dataclass(frozen=True, slots=True, kw_only=True)
class RelayJob:
    """One decided request."""

    request_id: str
    surface: Surface
    caller: Caller
    facts: RequestFacts
    plan: Plan
    snapshot: FleetSnapshot  # the one that the plan was decided by: prices are fixed by it
    parsed: ParsedRequest
    policy: Policy
    headers: Mapping[str, str] = field(default_factory=dict)  # the client's, lower-case names
    output_tokens_expected: float = 200.0  # of one choice
    let_go: Callable[[], None] = lambda: None  # of the place promised; the first attempt has begun
    keep: Keep | None = None
    is_probe: bool = False

    @property
    def is_forced(self) -> bool:
        """It is sent though its endpoint is shut: a probe, or all are and this one opens first."""
        return self.is_probe or self.plan.is_panic


@dataclass(slots=True, kw_only=True)
class RelayResult:
    """How a request ended. An `error` of a client not started is the edge's to tell."""

    outcomes: list[AttemptOutcome]
    status: int = 0
    endpoint_id: str = ""  # whose answer the client got; the last tried when none
    cost_nanos: int = 0  # of all attempts
    billed_nanos: int = 0  # of that, the client's
    bills: list[tuple[str, Settled]] = field(default_factory=list)  # by endpoint, an attempt each
    usage: Usage | None = None
    is_estimated: bool = False
    error: ApiError | None = None
    error_code: str = ""
    warnings: tuple[str, ...] = ()

    @property
    def tokens_total(self) -> int:
        usage = self.usage
        return 0 if usage is None else usage.input_total + usage.output_total


def attempt_limits(job: RelayJob) -> AttemptLimits:
    """What the policy says about this request's attempts."""
    policy, timeouts, rescue = job.policy, job.policy.timeouts, job.policy.rescue
    return AttemptLimits(
        is_stream=job.parsed.stream,
        num_choices=max(1, job.facts.num_choices),
        retries_max=policy.retry.attempts_max,
        total_s=timeouts.total_s,
        idle_s=timeouts.idle_s,
        content_s=timeouts.content_s,
        early_open_s=timeouts.status_line_s,
        keep_alive_s=policy.keep_alive_s or 0.0,
        decode_floor_tokens_per_s=rescue.decode_floor_tokens_per_s,
        decode_floor_grace_s=rescue.decode_floor_grace_s,
    )


def fallback_models(job: RelayJob) -> tuple[str, ...]:
    """The model of each endpoint in the plan, where the caller wants one model after the other."""
    return job.plan.models if job.facts.preferences.partition == "model" else ()
