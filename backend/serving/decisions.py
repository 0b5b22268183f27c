"""What was decided about drafting here, when and why: a short log for whoever looks at `/v1/load`.

Method and number are decided at the start. Afterwards only events change what is drafted or what to
think of it; an event that goes on is told again after `AGAIN_S`, with how often it has been so far.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import StrEnum

from backend.config import EngineConfig
from backend.engine.draft_why import DraftWhy
from backend.engine.interface import SpeculationLoad
from backend.serving.acceptance_alarm import LIKELY_CAUSES, AcceptanceCheck

DECISIONS_MAX = 32
WHY_CHARACTERS_MAX = 400
AGAIN_S = 60.0
CONFIGURED = "as configured"


class What(StrEnum):
    METHOD = "method"  # this one was taken
    DRAFTS = "drafts"  # so many a round at most
    PLAIN_STEPS = "plain_steps"  # measured: what rounds are held against
    KERNELS = "kernels"  # what doctor found of them
    NO_ROOM = "no_room"  # drafts left out: no free cache blocks
    FAILED = "failed"  # drafts left out: the method raised
    ALARM = "alarm"  # far fewer drafts accepted than recorded
    ALARM_OVER = "alarm_over"


@dataclass(frozen=True, slots=True)
class Decision:
    at_unix_s: float
    what: str
    method: str
    num_drafts: int
    why: str


class DecisionLog:
    """The last `DECISIONS_MAX`, the oldest first. One thread writes, any may read `entries`."""

    def __init__(self, wall_clock: Callable[[], float] = time.time) -> None:
        self.entries: tuple[Decision, ...] = ()
        self._wall_clock = wall_clock
        self._told: dict[What, tuple[float, int]] = {}  # when last, and how many steps by then
        self._low: frozenset[str] = frozenset()

    def begin(self, config: EngineConfig, load: SpeculationLoad) -> None:
        """The engine was made and has measured."""
        self._add(What.METHOD, load, config.method_why or CONFIGURED)
        if load.num_drafts_max:
            why = config.drafts_why or CONFIGURED
            if load.num_drafts_max < config.num_drafts_max:
                why = f"the method drafts no more; {config.num_drafts_max} were asked for"
            self._add(What.DRAFTS, load, why)
        plain = {batch: row[0] for batch, row in sorted(load.step_s.items()) if 0 in row}
        if plain:
            said = ", ".join(f"{batch}: {seconds * 1e3:.2f} ms" for batch, seconds in plain.items())
            self._add(What.PLAIN_STEPS, load, f"a plain step by batch, measured first: {said}")
        if config.kernels.withheld:
            said = "; ".join(f"{op}: {why}" for op, why in config.kernels.withheld.items())
            self._add(What.KERNELS, load, f"left to torch: {said}")

    def watch(self, load: SpeculationLoad, checks: Sequence[AcceptanceCheck]) -> None:
        """After every step."""
        self._go_on(What.NO_ROOM, DraftWhy.NO_ROOM, load, "no free cache blocks for drafts")
        self._go_on(What.FAILED, DraftWhy.FAILED, load, "the method raised; see the server's log")
        low = frozenset(each.workload for each in checks if each.is_low)
        if low != self._low:
            for check in checks:
                self._compare(check, load)
            self._low = low

    def _go_on(self, what: What, why: DraftWhy, load: SpeculationLoad, said: str) -> None:
        num = load.num_steps_by_why.get(why.value, 0)
        told_at_s, num_told = self._told.get(what, (float("-inf"), 0))
        now_s = self._wall_clock()
        if num > num_told and now_s - told_at_s >= AGAIN_S:
            self._told[what] = (now_s, num)
            self._add(what, load, f"{said}: in {num} steps since the start", num_drafts=0)

    def _compare(self, check: AcceptanceCheck, load: SpeculationLoad) -> None:
        was_low = check.workload in self._low
        if check.is_low == was_low:
            return
        said = (
            f"{check.workload or 'all work'}: {check.found or 0.0:.2f} drafts accepted a round, "
            f"{check.recorded or 0.0:.2f} after training"
        )
        if check.is_low:
            self._add(What.ALARM, load, f"{said}; likely causes: {LIKELY_CAUSES}")
        else:
            self._add(What.ALARM_OVER, load, said)

    def _add(
        self, what: What, load: SpeculationLoad, why: str, num_drafts: int | None = None
    ) -> None:
        made = Decision(
            at_unix_s=round(self._wall_clock(), 3),
            what=what.value,
            method=load.method,
            num_drafts=load.num_drafts_max if num_drafts is None else num_drafts,
            why=why[:WHY_CHARACTERS_MAX],
        )
        self.entries = (*self.entries, made)[-DECISIONS_MAX:]
