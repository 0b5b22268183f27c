"""A simulated batch: its lines fall due one after the other, and are done when they are."""

from __future__ import annotations

import math
import random
from collections.abc import Callable
from dataclasses import dataclass, field
from enum import StrEnum

from gateway.simulator.native_profile import (
    BatchFault,
    BatchFaultMode,
    BatchProfile,
    batch_faults,
)
from gateway.wire.pieces import Surface


class JobState(StrEnum):
    VALIDATING = "validating"
    FAILED = "failed"
    IN_PROGRESS = "in_progress"
    CANCELLING = "cancelling"
    COMPLETED = "completed"
    EXPIRED = "expired"
    CANCELLED = "cancelled"


ENDED = frozenset({JobState.FAILED, JobState.COMPLETED, JobState.EXPIRED, JobState.CANCELLED})


@dataclass(frozen=True, slots=True)
class Problem:
    """Why a batch is wrong as a whole, as OpenAI lists it."""

    code: str
    message: str
    line: int | None = None
    param: str | None = None


@dataclass(frozen=True, slots=True)
class Entry:
    """One line as it was given: its name and the request's body."""

    number: int  # from 1
    custom_id: str
    body: bytes


@dataclass(frozen=True, slots=True)
class Told:
    """A result line, ready to be written. `is_success`: into the output file, else the errors'."""

    line: bytes
    is_success: bool
    output_tokens: int = 0
    prompt_tokens: int = 0


# An entry and the second at which it is done → its result.
Work = Callable[["Job", Entry, float], Told]


@dataclass(slots=True)
class Job:
    """Times are seconds on the provider's clock."""

    id: str
    surface: Surface
    created_s: float
    starts_s: float
    expires_s: float
    due_s: list[float]
    entries: list[Entry]  # in the order in which they are done
    num_lines: int
    cancel_s: float
    is_expiring: bool = False
    faults: dict[BatchFaultMode, BatchFault] = field(default_factory=dict)
    problems: tuple[Problem, ...] = ()
    metadata: object = None
    input_file_id: str = ""
    cancelled_s: float | None = None  # when somebody asked for it
    num_done: int = 0  # entries worked on or passed over
    outputs: list[bytes] = field(default_factory=list)
    errors: list[bytes] = field(default_factory=list)
    num_succeeded: int = 0
    num_failed: int = 0
    num_undone: int = 0
    prompt_tokens: int = 0
    output_tokens: int = 0

    @property
    def ends_s(self) -> float:
        """When it ends, as far as is known now."""
        if self.problems:
            return self.starts_s
        ends_s = self.due_s[-1] if self.due_s else self.starts_s
        if self.is_expiring or ends_s > self.expires_s:
            ends_s = self.expires_s
        if self.cancelled_s is not None:
            ends_s = min(ends_s, self.cancelled_s + self.cancel_s)
        return ends_s

    def state(self, now_s: float) -> JobState:
        if now_s < self.starts_s and self.cancelled_s is None:
            return JobState.VALIDATING
        if self.problems:
            return JobState.FAILED
        if now_s < self.ends_s:
            is_leaving = self.cancelled_s is not None
            return JobState.CANCELLING if is_leaving else JobState.IN_PROGRESS
        if self.num_lines and self.due_s and self.due_s[-1] <= self.ends_s:
            return JobState.COMPLETED
        if self.cancelled_s is not None and self.cancelled_s + self.cancel_s <= self.ends_s:
            return JobState.CANCELLED
        return JobState.EXPIRED

    def work(self, now_s: float, work: Work, *, most: int) -> bool:
        """Do up to `most` lines that are due; whether there are more."""
        if self.problems or self.num_done >= len(self.entries):
            return False
        until_s = min(now_s, self.ends_s)
        for _ in range(most):
            if self.num_done >= len(self.entries) or self.due_s[self.num_done] > until_s:
                return False
            entry, at_s = self.entries[self.num_done], self.due_s[self.num_done]
            self.num_done += 1
            self._tell(entry, at_s, work)
        return True

    def _tell(self, entry: Entry, at_s: float, work: Work) -> None:
        missing = self.faults.get(BatchFaultMode.MISSING_RESULTS)
        if missing is not None and entry.number % missing.every == 0:
            self.num_failed += 1
            return
        told = work(self, entry, at_s)
        twice = self.faults.get(BatchFaultMode.DUPLICATE_RESULTS)
        times = 2 if twice is not None and entry.number % twice.every == 0 else 1
        (self.outputs if told.is_success else self.errors).extend([told.line] * times)
        self.num_succeeded += told.is_success
        self.num_failed += not told.is_success
        self.prompt_tokens += told.prompt_tokens
        self.output_tokens += told.output_tokens

    def undone(self) -> list[Entry]:
        """What nothing more will be done about; told once."""
        rest = self.entries[self.num_done :]
        self.num_done = len(self.entries)
        self.num_undone += len(rest)
        return rest


def made(
    profile: BatchProfile,
    entries: list[Entry],
    *,
    id: str,
    surface: Surface,
    now_s: float,
    rng: random.Random,
    problems: tuple[Problem, ...] = (),
) -> Job:
    """A batch with its turnaround drawn and its lines shuffled and spread over it."""
    faults = batch_faults(profile, now_s, rng.random())
    turnaround_s = profile.turnaround_median_s * math.exp(
        rng.gauss(0.0, 1.0) * profile.turnaround_sigma
    )
    if (slow := faults.get(BatchFaultMode.SLOW)) is not None:
        turnaround_s *= slow.factor
    if BatchFaultMode.FAIL_VALIDATION in faults:
        problems += (Problem("simulated", "simulated failure of the whole batch"),)
    starts_s = now_s + profile.validation_s
    order = list(entries)
    rng.shuffle(order)
    due_s = [starts_s + turnaround_s * (n + 1) / len(order) for n in range(len(order))]
    expires_s = now_s + profile.window_s
    expiring = faults.get(BatchFaultMode.EXPIRING)
    if expiring is not None and order:
        done = int(len(order) * expiring.done_share)
        # Between the last line that is done and the first that is not.
        expires_s = due_s[done - 1] if done else starts_s
        expires_s += turnaround_s / len(order) / 2
    return Job(
        id=id,
        surface=surface,
        created_s=now_s,
        starts_s=starts_s,
        expires_s=expires_s,
        due_s=due_s,
        entries=order,
        num_lines=len(order),
        cancel_s=profile.cancel_s,
        is_expiring=expiring is not None and due_s[-1:] > [expires_s],
        faults=faults,
        problems=problems,
    )
