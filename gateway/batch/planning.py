"""Asks the planner: of a new batch whether and how, of those that run whether anything moves."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import Any

import msgspec

from gateway.batch.creating import WINDOW_S_MAX, PlannedLines
from gateway.batch.offers import Turnaround, lane_offers
from gateway.core import Caller, dollars
from gateway.fleet.fleet import Fleet
from gateway.policy.placement import (
    NATIVE,
    Allocation,
    LaneOffer,
    LineGroup,
    Placement,
    place,
)
from gateway.policy.policy import Policy
from gateway.prices.book import PriceBook
from gateway.store.batch_work import OpenGroup, move_lines, unended_groups
from gateway.store.batches import (
    BatchRow,
    LineCounts,
    NewLine,
    batches_in,
    line_counts,
    update_batch,
)
from gateway.store.engine import Store
from gateway.wire.pieces import Surface

WAITS_S_MIN = 1.0  # a start so near is now
NO_LINES = LineCounts(by_state={})


class NativeFacts(msgspec.Struct, frozen=True):
    """What is known of providers' batch APIs: who has one, how long they took, what runs there."""

    endpoints: frozenset[str] = frozenset()
    turnarounds: Mapping[str, Turnaround] = {}
    since: Mapping[str, float] = {}  # our id of a native batch → when it was submitted


class LanePlanner:
    """`facts` tells of native lanes; without any every line goes at once."""

    def __init__(
        self,
        policy: Callable[[], Policy],
        fleet: Fleet,
        store: Store,
        facts: Callable[[], NativeFacts] = NativeFacts,
    ) -> None:
        self._policy = policy
        self._fleet = fleet
        self._store = store
        self._facts = facts
        self._book = PriceBook()  # of its own: it looks ahead

    async def place_new(
        self, row: BatchRow, lines: Sequence[NewLine], caller: Caller, *, now: float
    ) -> PlannedLines:
        """
        A lane for every line of a batch that is about to be made, or why there is none.

        It is planned together with what was promised before: room that others need is not there
        twice, and a batch that would make theirs late is refused.
        """
        by_id, found, spent = await self._promised(now)
        wanted = {row.surface: {each.model for each in lines}}
        offers = self._all_offers(_models(by_id, found, wanted), now)
        others = self._groups(by_id, found, spent, now)
        groups, members = _grouped(row, lines, now)
        whole = place([*others, *groups], offers, now)  # of one deadline, who came first
        placement = whole.of_batch(row.id)
        shown = shown_placement(placement, offers, now)
        refusal = _refusal(row, placement, _crowded_out(whole, others, offers, now), now)
        lanes = [""] * len(lines)
        waits: list[float | None] = [None] * len(lines)
        rest = {id(group): list(each) for group, each in zip(groups, members, strict=True)}
        for allocation in placement.allocations:
            group = rest[id(allocation.group)]
            taken, group[:] = group[: allocation.count], group[allocation.count :]
            for place_no in taken:
                lanes[place_no] = allocation.lane_id
                waits[place_no] = _wait_until(allocation, now)
        return PlannedLines(
            lanes=lanes,
            not_before=waits,
            shown=shown,
            is_feasible=not refusal,
            refusal=refusal,
        )

    async def replan(self, rows: Sequence[BatchRow], *, now: float) -> Sequence[str]:
        """
        Plan all running batches together and move open lines; all that is left is to send.

        Returns our ids of native batches that are to be cancelled, because their lines must be sent
        at once to keep the deadline.
        """
        if not rows:
            return ()
        by_id = {row.id: row for row in rows}
        found, spent = await self._unended(list(by_id))
        if not found:
            return ()
        offers = self._all_offers(_models(by_id, found), now)
        groups = self._groups(by_id, found, spent, now)
        placement = place(groups, offers, now)
        # By identity: two groups may be equal in all that the planner sees.
        known = {id(group): each for group, each in zip(groups, found, strict=True)}
        await self._move(placement, known, now)
        await self._note(placement, offers, by_id, now)
        leaving = {id(each) for each in placement.escalated}
        staying = {
            id(each.group)
            for each in placement.allocations
            if each.lane_id == each.group.lane and each.group.since_s is not None
        }
        return [
            each.native_id
            for group, each in zip(groups, found, strict=True)
            if each.state == "submitted" and (id(group) in leaving or id(group) not in staying)
        ]

    async def _unended(
        self, batch_ids: Sequence[str]
    ) -> tuple[list[OpenGroup], Mapping[str, LineCounts]]:
        async with self._store.read() as connection:
            found = await unended_groups(connection, batch_ids)
            return found, await line_counts(connection, batch_ids)

    async def _promised(
        self, now: float
    ) -> tuple[Mapping[str, BatchRow], list[OpenGroup], Mapping[str, LineCounts]]:
        """Batches that were accepted and still have time, and any that is just being made."""
        async with self._store.read() as connection:
            rows = await batches_in(connection, "validating", "in_progress")
        by_id = {row.id: row for row in rows if row.deadline_at > now}
        if not by_id:
            return {}, [], {}
        return by_id, *await self._unended(list(by_id))

    def _groups(
        self,
        by_id: Mapping[str, BatchRow],
        found: Iterable[OpenGroup],
        spent: Mapping[str, LineCounts],
        now: float,
    ) -> list[LineGroup]:
        facts = self._facts()
        return [
            _line_group(
                each,
                by_id[each.batch_id],
                facts,
                now,
                spent.get(each.batch_id, NO_LINES).cost_nanos,
            )
            for each in found
        ]

    def _all_offers(self, models: Mapping[str, Collection[str]], now: float) -> list[LaneOffer]:
        """`models`: by surface."""
        offers: dict[tuple[str, str], LaneOffer] = {}
        for surface, names in models.items():
            for offer in self._offers(names, Surface(surface), now):
                offers[offer.id, offer.model] = offer
        return list(offers.values())

    def _offers(self, models: Collection[str], surface: Surface, now: float) -> list[LaneOffer]:
        facts = self._facts()
        return lane_offers(
            self._policy(),
            self._fleet,
            models,
            surface,
            turnarounds=facts.turnarounds,
            native_endpoints=facts.endpoints,
            book=self._book,
            now=now,
        )

    async def _move(self, placement: Placement, found: Mapping[int, OpenGroup], now: float) -> None:
        wanted: dict[int, list[Allocation]] = defaultdict(list)
        for allocation in placement.allocations:
            if found[id(allocation.group)].state == "open":
                wanted[id(allocation.group)].append(allocation)
        for group, allocations in wanted.items():
            # What stays goes last, so that only those that move are told apart.
            allocations.sort(key=lambda each: each.lane_id == found[id(each.group)].lane)
            async with self._store.begin() as connection:
                for allocation in allocations:
                    await move_lines(
                        connection,
                        found[group],
                        lane=allocation.lane_id,
                        not_before=_wait_until(allocation, now),
                        count=allocation.count,
                        now=now,
                    )

    async def _note(
        self,
        placement: Placement,
        offers: Sequence[LaneOffer],
        rows: Mapping[str, BatchRow],
        now: float,
    ) -> None:
        for batch_id in rows:
            told = shown_placement(placement.of_batch(batch_id), offers, now)
            text = msgspec.json.encode(told).decode()
            async with self._store.begin() as connection:
                await update_batch(connection, batch_id, plan=text, planned_at=now)


def _models(
    by_id: Mapping[str, BatchRow],
    found: Iterable[OpenGroup],
    more: Mapping[str, Collection[str]] | None = None,
) -> dict[str, set[str]]:
    """Models in use, by surface."""
    models: dict[str, set[str]] = defaultdict(set)
    for surface, names in (more or {}).items():
        models[surface].update(names)
    for each in found:
        models[by_id[each.batch_id].surface].add(each.model)
    return models


def _crowded_out(
    whole: Placement, others: Sequence[LineGroup], offers: Sequence[LaneOffer], now: float
) -> int:
    """How many lines that were promised before would be late only because of the new batch."""
    known = {each.batch_id for each in others}
    with_it = sum(each.count for each in whole.late if each.batch_id in known)
    if not with_it:
        return 0
    without = sum(each.count for each in place(others, offers, now).late)
    return max(0, with_it - without)


def _grouped(
    row: BatchRow, lines: Sequence[NewLine], now: float
) -> tuple[list[LineGroup], list[list[int]]]:
    """Lines alike in model and size (steps of two), and which they are."""
    places: dict[tuple[str, int, int], list[int]] = defaultdict(list)
    for place_no, line in enumerate(lines):
        size = (line.prompt_tokens.bit_length(), line.output_tokens.bit_length())
        places[(line.model, *size)].append(place_no)
    groups: list[LineGroup] = []
    for (model, _, _), members in sorted(places.items()):
        groups.append(
            LineGroup(
                batch_id=row.id,
                model=model,
                count=len(members),
                prompt_tokens=math.fsum(lines[at].prompt_tokens for at in members) / len(members),
                output_tokens=math.fsum(lines[at].output_tokens for at in members) / len(members),
                deadline_at_s=row.deadline_at,
                max_cost_nanos=row.max_cost_nanos,
                waiting_since_s=now,
            )
        )
    return groups, [members for _, members in sorted(places.items())]


def _line_group(
    each: OpenGroup, row: BatchRow, facts: NativeFacts, now: float, spent_nanos: int
) -> LineGroup:
    since = facts.since.get(each.native_id) if each.state == "submitted" else None
    if each.state == "submitted" and since is None:
        since = now  # on its way to the provider
    return LineGroup(
        batch_id=each.batch_id,
        model=each.model,
        count=each.count,
        prompt_tokens=each.prompt_tokens,
        output_tokens=each.output_tokens,
        deadline_at_s=row.deadline_at,
        max_cost_nanos=row.max_cost_nanos,
        spent_nanos=spent_nanos,
        lane=each.lane,
        since_s=since,
        waiting_since_s=row.created_at if each.state == "open" else None,
    )


def _wait_until(allocation: Allocation, now: float) -> float | None:
    return allocation.not_before_s if allocation.not_before_s > now + WAITS_S_MIN else None


def _window(need_s: float) -> str:
    """The shortest completion_window that is long enough, as one may write it."""
    if need_s > WINDOW_S_MAX:
        return f"in all {need_s / 86_400.0:.1f} days, and 7d is the longest: split the file"
    unit_s, unit = (60.0, "m") if need_s < 2 * 3600.0 else (3600.0, "h")
    return f"completion_window {math.ceil(need_s / unit_s)}{unit}"


def _refusal(row: BatchRow, placement: Placement, num_crowded: int, now: float) -> str:
    """Why a batch cannot be had as asked, with how much is missing; "" = it can."""
    reasons = []
    for late in placement.late:
        if late.late_s == math.inf:
            reasons.append(f"no lane is open for the model {late.model!r} ({late.count} lines)")
            continue
        need_s = row.deadline_at - now + late.late_s
        reasons.append(
            f"{late.count} lines of {late.model!r} cannot be answered within "
            f"{row.completion_window} at any price: about {late.late_s:.0f} s more are needed "
            f"({_window(need_s)})"
        )
    for over in placement.over:
        assert row.max_cost_nanos is not None
        needed = row.max_cost_nanos + over.over_nanos
        reasons.append(
            f"the cheapest plan that keeps the deadline costs about ${dollars(needed)}, "
            f"${dollars(over.over_nanos)} more than max_cost ${dollars(row.max_cost_nanos)}"
        )
    if num_crowded:
        reasons.append(
            f"{num_crowded} lines of batches that were accepted before would be late; ask for a "
            "later deadline, or send it once they have ended"
        )
    if not reasons:
        return ""
    return f"the batch was not made, and nothing was charged: {'; '.join(reasons)}"


def shown_placement(
    placement: Placement, offers: Sequence[LaneOffer], now: float
) -> dict[str, Any]:
    """A placement for people: lanes with lines, dollars and times; saving against list price."""
    kinds = {offer.id: offer.kind for offer in offers}
    lanes: dict[str, dict[str, Any]] = {}
    for each in placement.allocations:
        lane = lanes.setdefault(
            each.lane_id,
            {"lane": each.lane_id, "kind": kinds.get(each.lane_id, NATIVE), "lines": 0,
             "cost_nanos": 0, "start_at": each.start_s, "finish_at": each.finish_s},
        )  # fmt: skip
        lane["lines"] += each.count
        lane["cost_nanos"] += each.cost_nanos
        lane["start_at"] = min(lane["start_at"], each.start_s)
        lane["finish_at"] = max(lane["finish_at"], each.finish_s)
    shown = []
    for lane in sorted(lanes.values(), key=lambda each: -int(each["lines"])):
        nanos = lane.pop("cost_nanos")
        shown.append({**lane, "cost_usd": dollars(nanos)})
    cost = sum(each.cost_nanos for each in placement.allocations)
    listed = placement.list_cost_nanos
    return {
        "lanes": shown,
        "cost_usd": dollars(cost),
        "list_price_usd": dollars(listed),
        "saving": round(1.0 - cost / listed, 4) if listed else 0.0,
        "finish_at": max((each.finish_s for each in placement.allocations), default=now),
        "late_lines": sum(each.count for each in placement.late),
        "over_usd": dollars(sum(each.over_nanos for each in placement.over)),
    }
