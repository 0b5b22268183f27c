"""What drafts were worth here: how many stood at which place, and what a round cost and won.

A *round* of a sequence is a step in which it had a draft. Its cost is told in plain steps: the
seconds of the step, and those that a plain step of the same batch takes by the median of the last
ones. Only steps that do nothing but decode are timed. Sequences that want no drafts do not count.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from statistics import median

from backend.engine.interface import RoundFigures

WORKLOADS_MAX = 16
OTHER_WORKLOADS = "other"
_SAMPLES_MAX = 32


@dataclass(frozen=True, slots=True)
class SequenceStep:
    """What one step was for one decoding sequence."""

    workload: str
    num_drafted: int
    num_tokens: int  # that it got: accepted drafts, and one more


@dataclass(slots=True)
class _Sums:
    """Of one class of work, since the start."""

    num_drafts: int = 0
    num_draft_tokens: int = 0
    num_accepted_tokens: int = 0
    num_at_risk: list[int] = field(default_factory=list)
    num_accepted: list[int] = field(default_factory=list)
    num_timed_rounds: int = 0
    round_s: float = 0.0
    round_plain_s: float = 0.0
    num_timed_steps: int = 0
    step_s: float = 0.0
    step_plain_s: float = 0.0

    def count(self, num_drafted: int, num_accepted: int) -> None:
        """A draft is at risk if all before it stood."""
        self.num_drafts += 1
        self.num_draft_tokens += num_drafted
        self.num_accepted_tokens += num_accepted
        missing = num_drafted - len(self.num_at_risk)
        if missing > 0:
            self.num_at_risk += [0] * missing
            self.num_accepted += [0] * missing
        for place in range(min(num_accepted + 1, num_drafted)):
            self.num_at_risk[place] += 1
            self.num_accepted[place] += place < num_accepted

    def time(self, seconds: float, plain_s: float, step: SequenceStep) -> None:
        """Its tokens would have been as many plain steps."""
        self.num_timed_steps += 1
        self.step_s += seconds
        self.step_plain_s += plain_s * step.num_tokens
        if step.num_drafted:
            self.num_timed_rounds += 1
            self.round_s += seconds
            self.round_plain_s += plain_s


class RoundMeter:
    """Of one engine with one draft method."""

    def __init__(self, method: str) -> None:
        self.method = method
        # Batch as it was padded → drafts a sequence, 0: a plain step → median seconds of a step.
        self.step_s: Mapping[int, Mapping[int, float]] = {}
        self.num_steps: Mapping[int, Mapping[int, int]] = {}  # likewise: how many were timed
        self._samples: dict[tuple[int, int], deque[float]] = {}
        self._sums: dict[str, _Sums] = {}

    def observe(self, steps: Iterable[SequenceStep]) -> None:
        """Of every sequence that may have drafts, in whatever step."""
        for step in steps:
            if step.num_drafted:
                self._of(step.workload).count(step.num_drafted, step.num_tokens - 1)

    def time(
        self, seconds: float, batch: int, num_drafts: int, steps: Iterable[SequenceStep]
    ) -> None:
        """A step that only decoded. `num_drafts`: rows a sequence beside its own, whoever filled
        them."""
        steps = list(steps)
        # One without drafts in which the method still took in its rows is no plain one: only those
        # of requests that want no drafts tell what plain decoding costs.
        if num_drafts or not steps:
            self._sample(seconds, batch, num_drafts)
        plain_s = self.step_s.get(batch, {}).get(0)
        if plain_s is None:
            return
        for step in steps:
            self._of(step.workload).time(seconds, plain_s, step)

    def figures(self) -> tuple[RoundFigures, ...]:
        return tuple(
            RoundFigures(
                method=self.method,
                workload=workload,
                num_drafts=each.num_drafts,
                num_draft_tokens=each.num_draft_tokens,
                num_accepted_tokens=each.num_accepted_tokens,
                num_at_risk=tuple(each.num_at_risk),
                num_accepted=tuple(each.num_accepted),
                num_timed_rounds=each.num_timed_rounds,
                round_s=each.round_s,
                round_plain_s=each.round_plain_s,
                num_timed_steps=each.num_timed_steps,
                step_s=each.step_s,
                step_plain_s=each.step_plain_s,
            )
            for workload, each in sorted(self._sums.items())
        )

    def _of(self, workload: str) -> _Sums:
        """Names come from outside: their number is bounded."""
        if workload not in self._sums and len(self._sums) >= WORKLOADS_MAX:
            workload = OTHER_WORKLOADS
        return self._sums.setdefault(workload, _Sums())

    def _sample(self, seconds: float, batch: int, num_drafts: int) -> None:
        samples = self._samples.setdefault((batch, num_drafts), deque(maxlen=_SAMPLES_MAX))
        samples.append(seconds)
        row = {**self.step_s.get(batch, {}), num_drafts: median(samples)}
        # New tables each time: the old ones may be in a reader's hands.
        self.step_s = {**self.step_s, batch: row}
        counts = self.num_steps.get(batch, {})
        counts = {**counts, num_drafts: counts.get(num_drafts, 0) + 1}
        self.num_steps = {**self.num_steps, batch: counts}
