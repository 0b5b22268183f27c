"""What the batch planner is told and what it answers: lanes on offer, groups of lines, a placement.

A lane is a way to have a line answered at a price: an endpoint at a tier at once, a provider's
batch API, a machine of one's own. Lines that are alike (of one batch, one model, one size and one
present lane) go as one group, so that a file of 50,000 lines is a handful of groups.
"""

from __future__ import annotations

from math import inf
from typing import Literal

import msgspec

from gateway.core import PriceRow
from gateway.prices.rows import BATCH, STANDARD

LaneKind = Literal["sync", "native", "own"]
NATIVE = "native"
OWN = "own"

# A native lane that nobody has used. Its slowest batch in twenty is taken to last 20 h; half are
# back in 7 min, as OpenRouter reports of 230,000 batches.
TURNAROUND_P50_S = 420.0
TURNAROUND_P95_S = 72_000.0
CANCEL_S = 120.0
REQUESTS_MIN = 50  # fewer lines wait up to GATHERING_S for company before a native batch is made
GATHERING_S = 600.0
LINES_MAX = 50_000  # of one native batch
DEADLINE_MIN_S = 600.0
DEADLINE_MAX_S = 7 * 86_400.0


class PriceWindow(msgspec.Struct, frozen=True, kw_only=True):
    """Price rows (context steps of one tier) and the unix seconds [from, until) they hold in."""

    rows: tuple[PriceRow, ...]
    from_s: float = -inf
    until_s: float = inf


class LaneOffer(msgspec.Struct, frozen=True, kw_only=True):
    """
    One lane for one public model, as it is now.

    `opens_at_s` in the future: it rests after failures. Work may wait for it, and what runs in it
    may stay.

    A sync or own lane answers `lines_per_s`, what was learned of its capacity and is left for
    batch work; `line_tokens` is the mean output of the lines that was learned on, and longer lines
    take their share more (0 = length does not matter). 95 % of answers of n tokens are there within
    `base_p95_s` + n · `token_p95_s`, where that was learned. A native lane takes up to `lines_max`
    lines a batch, has a turnaround, and gives lines back at most `cancel_s` after a cancel.
    """

    id: str  # "<endpoint id>#<tier>" or "<endpoint id>#native"
    endpoint_id: str
    model: str  # public name
    kind: LaneKind = "sync"
    tier: str = STANDARD
    windows: tuple[PriceWindow, ...]  # in order of time
    turnaround_p50_s: float = TURNAROUND_P50_S
    turnaround_p95_s: float = TURNAROUND_P95_S
    cancel_s: float = CANCEL_S
    lines_per_s: float = 0.0
    line_tokens: float = 0.0
    base_p95_s: float = 0.0
    token_p95_s: float = 0.0
    lines_max: int = LINES_MAX
    requests_min: int = REQUESTS_MIN
    opens_at_s: float = -inf

    @property
    def price_tier(self) -> str:
        """The tier of its rows: a provider's batch API bills at `batch`."""
        return BATCH if self.kind == NATIVE else self.tier


class LineGroup(msgspec.Struct, frozen=True, kw_only=True):
    """
    Lines of one batch that are alike. A provider's batch that runs is a group of its own.

    `lane` is where they are now ("" = nowhere yet). In a native lane `since_s` says since when,
    and `sunk_nanos` what would be paid for nothing were they taken out of it. `spent_nanos` is
    what their batch has cost so far, over all its groups.
    """

    batch_id: str
    model: str
    count: int
    prompt_tokens: float  # mean of a line
    output_tokens: float  # mean of a line
    output_tokens_p95: float = 0.0
    deadline_at_s: float
    max_cost_nanos: int | None = None
    spent_nanos: int = 0
    lane: str = ""
    since_s: float | None = None
    waiting_since_s: float | None = None  # open lines: since when
    sunk_nanos: int = 0


class Allocation(msgspec.Struct, frozen=True, kw_only=True):
    """
    So many lines of a group on a lane, from `start_s` until `finish_s` (expected).

    `not_before_s` in the future is an order to wait: for a cheaper window, or for company in a
    native batch. A later `start_s` only says that others go first. A native lane's `finish_s` is
    95 % sure: its p95, or the deadline where lines would be sent at once before.
    """

    group: LineGroup
    lane_id: str
    count: int
    not_before_s: float
    start_s: float
    finish_s: float
    cost_nanos: int


class Late(msgspec.Struct, frozen=True, kw_only=True):
    """Lines that no lane on offer can answer in time at any price, and by how much."""

    batch_id: str
    model: str
    count: int
    late_s: float  # inf: no lane serves the model


class Over(msgspec.Struct, frozen=True, kw_only=True):
    """A batch whose cost, spent and expected, is above what it may cost, and by how much."""

    batch_id: str
    over_nanos: int


class Placement(msgspec.Struct, frozen=True, kw_only=True):
    """
    Where every line goes. `list_costs`: nano-dollars by batch, were all of it sent at once to the
    cheapest at list price.
    """

    allocations: tuple[Allocation, ...]
    list_costs: dict[str, int]
    cost_nanos: int
    finish_s: float
    late: tuple[Late, ...] = ()
    over: tuple[Over, ...] = ()
    escalated: tuple[LineGroup, ...] = ()  # to be taken out of their native lane and sent at once

    @property
    def list_cost_nanos(self) -> int:
        return sum(self.list_costs.values())

    def of_batch(self, batch_id: str) -> Placement:
        """What concerns one batch."""
        mine = tuple(each for each in self.allocations if each.group.batch_id == batch_id)
        return Placement(
            allocations=mine,
            list_costs={batch_id: self.list_costs.get(batch_id, 0)},
            cost_nanos=sum(each.cost_nanos for each in mine),
            finish_s=max((each.finish_s for each in mine), default=self.finish_s),
            late=tuple(each for each in self.late if each.batch_id == batch_id),
            over=tuple(each for each in self.over if each.batch_id == batch_id),
            escalated=tuple(each for each in self.escalated if each.batch_id == batch_id),
        )
