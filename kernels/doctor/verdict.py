"""What the doctor found, as it is kept, shown and sent with a bug report."""

from __future__ import annotations

import time
from collections.abc import Mapping
from enum import StrEnum

import msgspec

FORMAT = 1
CAPTURE = "capture"  # among the ops: steps recorded as graphs, as `kernels.dispatch` calls it


class Outcome(StrEnum):
    OK = "ok"
    WRONG = "wrong"  # numbers beyond the error bound, other tokens, NaN
    RAISED = "raised"
    CRASHED = "crashed"  # a signal, or an exit without a word
    HUNG = "hung"
    SLOW = "slow"  # slower than torch's own op
    UNCHECKED = "unchecked"  # torch's own op, or the case, did not run either


# The others are served as offered: nothing was found against them.
WITHHELD = frozenset(Outcome) - {Outcome.OK, Outcome.UNCHECKED}


class Key(msgspec.Struct, frozen=True, kw_only=True):
    """A verdict is one for all of these; another value of any, and the ops are tried anew."""

    arch: str
    driver: str
    torch: str
    triton: str
    version: str  # of this package, and a digest of its kernels
    shapes: str  # which model's sizes, and a digest of them


class OpReport(msgspec.Struct, frozen=True, kw_only=True):
    """`error`: the largest one relative to the largest value, over the cases."""

    op: str
    outcome: Outcome
    reason: str = ""
    cases: tuple[str, ...] = ()
    error: float | None = None
    op_s: float | None = None  # medians, summed over the cases
    reference_s: float | None = None
    took_s: float = 0.0

    @property
    def is_withheld(self) -> bool:
        return self.outcome in WITHHELD


class Verdict(msgspec.Struct, frozen=True, kw_only=True):
    """`is_whole`: False if the device went away meanwhile; the rest is tried next time."""

    key: Key
    chip: str
    host: str  # system, Python and processor
    reports: tuple[OpReport, ...]
    is_whole: bool = True
    checked_at_unix_s: float = msgspec.field(default_factory=time.time)
    format: int = FORMAT

    @property
    def withheld(self) -> Mapping[str, str]:
        """Op → why torch serves it instead."""
        return {
            each.op: f"{each.outcome}: {each.reason}" for each in self.reports if each.is_withheld
        }

    @property
    def summary(self) -> str:
        """One line."""
        if not self.withheld:
            return f"all {len(self.reports)} kernels are as they should be"
        names = [op for op in self.withheld if op != CAPTURE]
        num_ops = sum(each.op != CAPTURE for each in self.reports)
        told = [f"torch serves {len(names)} of {num_ops} ops: {', '.join(names)}"] if names else []
        told += ["no graphs"] if CAPTURE in self.withheld else []
        return "; ".join(told)


def report_text(verdict: Verdict) -> str:
    """For people, and to be attached to a bug report."""
    key = verdict.key
    when = time.strftime("%Y-%m-%d %H:%M UTC", time.gmtime(verdict.checked_at_unix_s))
    head = [
        f"LoopRouter kernels {key.version}, checked {when}",
        f"{key.arch} ({verdict.chip}), driver {key.driver}, torch {key.torch}, triton {key.triton}",
        verdict.host,
        f"shapes: {key.shapes}",
        "",
    ]
    rows: list[tuple[str, ...]] = [
        ("op", "served by", "outcome", "error", "us", "torch us", "cases")
    ]
    rows += [_row(each) for each in verdict.reports]
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    lines = [
        "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip()
        for row in rows
    ]
    reasons = [f"{each.op}: {each.reason}" for each in verdict.reports if each.reason]
    ending = [verdict.summary]
    if not verdict.is_whole:
        ending.append("The device stopped answering before all ops had been tried.")
    return "\n".join([*head, *lines, "", *reasons, *([""] if reasons else []), *ending])


def served_by(report: OpReport) -> str:
    """Of `capture`, which is no op, how steps are launched if graphs are asked for."""
    if report.op == CAPTURE:
        return "op by op" if report.is_withheld else "graphs"
    return "torch" if report.is_withheld else "triton"


def _row(report: OpReport) -> tuple[str, ...]:
    return (
        report.op,
        served_by(report),
        report.outcome.value,
        "-" if report.error is None else f"{report.error:.1e}",
        _us(report.op_s),
        _us(report.reference_s),
        ", ".join(report.cases) or "-",
    )


def _us(seconds: float | None) -> str:
    return "-" if seconds is None else f"{seconds * 1e6:.1f}"
