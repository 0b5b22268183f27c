"""The nouns of the ledger: what callers pass in and get back, and what the journal keeps."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

import msgspec

from gateway.core import Caller, Lane, PriceRow
from gateway.wire.usage import Usage

if TYPE_CHECKING:
    from gateway.ledger.leases import Lease

BillableTo = Literal["client", "operator"]
CRASHED = "gateway_crashed"  # the failure of an attempt that nobody lived to settle


class HoldRequest(msgspec.Struct, frozen=True, kw_only=True):
    """The most that one attempt may cost, and all that is needed to bill it after a crash."""

    attempt_id: str
    request_id: str
    caller: Caller
    endpoint_id: str
    model: str
    surface: str
    stream: bool
    hold_nanos: int
    rows: tuple[PriceRow, ...]  # the prices fixed now, whatever the price book says later
    tier: str = "standard"
    prompt_tokens_estimate: int = 0
    provider: str = ""  # "" = the part of endpoint_id before the slash
    is_simulated: bool = False
    unseen_tokens: int = 0  # what may be generated that no progress record has told of yet
    unseen_s: float = 0.0  # at the earliest, from sending to the last of them; 0 = not known
    lane: str = Lane.INTERACTIVE.value


class Settlement(msgspec.Struct, frozen=True, kw_only=True):
    """How an attempt ended. `billable_to="operator"` bills the client nothing (failed attempts)."""

    usage: Usage | None
    cost_nanos: int
    price: PriceRow | None
    is_estimated: bool = False
    finish: str = ""
    failure: str = ""
    billable_to: BillableTo = "client"


class Settled(msgspec.Struct, frozen=True, kw_only=True):
    """Who pays what: cost = billed (client) + overrun (operator) + waste (operator)."""

    cost_nanos: int
    billed_nanos: int
    overrun_nanos: int
    waste_nanos: int = 0


NOTHING_SETTLED = Settled(cost_nanos=0, billed_nanos=0, overrun_nanos=0)


class Hold:
    """Money set aside for one attempt until it is settled or released. `settled` is the end."""

    __slots__ = ("attempt_id", "hold_nanos", "leases", "progress_at_s", "settled")

    def __init__(self, attempt_id: str, hold_nanos: int, leases: tuple[Lease, ...]) -> None:
        self.attempt_id = attempt_id
        self.hold_nanos = hold_nanos
        self.leases = leases
        self.progress_at_s = float("-inf")
        self.settled: Settled | None = None

    @property
    def is_open(self) -> bool:
        return self.settled is None


@dataclass(frozen=True, slots=True)
class LedgerAlert:
    """Something an operator must hear of; `kind` is stable, `message` is for people."""

    kind: str
    message: str
    attempt_id: str = ""
    nanos: int = 0


# What the journal keeps. Array-like with an integer tag: the field order is the file format,
# so new fields go last, with a default.


class Opened(msgspec.Struct, frozen=True, array_like=True, tag=0):
    """First record of every file: whose it is."""

    version: int
    holder_id: str
    file_no: int


class Sent(msgspec.Struct, frozen=True, array_like=True, tag=1):
    """The attempt is about to leave. Written before the first upstream byte."""

    attempt_id: str
    request_id: str
    tenant_id: str
    team_id: str
    key_id: str
    endpoint_id: str
    provider: str
    model: str
    surface: str
    stream: bool
    is_simulated: bool
    hold_nanos: int
    lease_ids: tuple[str, ...]
    rows: tuple[PriceRow, ...]
    tier: str
    prompt_tokens_estimate: int
    at_unix_s: float
    unseen_tokens: int = 0
    lane: str = Lane.INTERACTIVE.value
    unseen_s: float = 0.0


class Progress(msgspec.Struct, frozen=True, array_like=True, tag=2):
    """What was generated so far (cumulative), in case nobody lives to settle."""

    attempt_id: str
    usage: Usage


class Ended(msgspec.Struct, frozen=True, array_like=True, tag=3):
    """The attempt was settled."""

    attempt_id: str
    lease_ids: tuple[str, ...]
    cost_nanos: int
    billed_nanos: int
    overrun_nanos: int
    waste_nanos: int
    usage: Usage | None
    price: PriceRow | None
    is_estimated: bool
    finish: str
    failure: str
    at_unix_s: float


class Dropped(msgspec.Struct, frozen=True, array_like=True, tag=4):
    """The attempt was released: the provider did no billable work."""

    attempt_id: str
    reason: str
    at_unix_s: float


Record = Opened | Sent | Progress | Ended | Dropped


def sent_record(request: HoldRequest, leases: tuple[Lease, ...], at_unix_s: float) -> Sent:
    caller = request.caller
    return Sent(
        attempt_id=request.attempt_id,
        request_id=request.request_id,
        tenant_id=caller.tenant_id,
        team_id=caller.team_id,
        key_id=caller.key_id,
        endpoint_id=request.endpoint_id,
        provider=request.provider or request.endpoint_id.partition("/")[0],
        model=request.model,
        surface=request.surface,
        stream=request.stream,
        is_simulated=request.is_simulated,
        hold_nanos=request.hold_nanos,
        lease_ids=tuple([lease.id for lease in leases]),
        rows=request.rows,
        tier=request.tier,
        prompt_tokens_estimate=request.prompt_tokens_estimate,
        at_unix_s=at_unix_s,
        unseen_tokens=request.unseen_tokens,
        lane=request.lane,
        unseen_s=request.unseen_s,
    )


def ended_record(hold: Hold, settlement: Settlement, settled: Settled, at_unix_s: float) -> Ended:
    return Ended(
        attempt_id=hold.attempt_id,
        lease_ids=tuple([lease.id for lease in hold.leases]),
        cost_nanos=settled.cost_nanos,
        billed_nanos=settled.billed_nanos,
        overrun_nanos=settled.overrun_nanos,
        waste_nanos=settled.waste_nanos,
        usage=settlement.usage,
        price=settlement.price,
        is_estimated=settlement.is_estimated,
        finish=settlement.finish,
        failure=settlement.failure,
        at_unix_s=at_unix_s,
    )
