"""How a simulated provider's batch API behaves: price, turnaround, limits, and its faults."""

from __future__ import annotations

import enum
import math

import msgspec

FOREVER_S = 1e12


class BatchFaultMode(enum.StrEnum):
    """What goes wrong with a batch. Fields of `BatchFault` that a mode does not name do nothing."""

    SLOW = "slow"  # takes `factor` times as long
    EXPIRING = "expiring"  # ends as expired when `done_share` of its lines are done
    FAIL_VALIDATION = "fail_validation"  # is found wrong as a whole, and nothing is done
    LOST_SUBMIT = "lost_submit"  # is created, but the connection closes before that is said
    DUPLICATE_RESULTS = "duplicate_results"  # every `every`-th result line comes twice
    MISSING_RESULTS = "missing_results"  # every `every`-th line has no result, and costs nothing
    LINE_ERRORS = "line_errors"  # every `every`-th line fails with `status`, and costs nothing


class BatchFault(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One fault of the batches created in one window of the provider's own time."""

    mode: BatchFaultMode
    starts_s: float = 0.0
    ends_s: float = FOREVER_S
    share: float = 1.0  # of the batches in the window
    factor: float = 10.0
    done_share: float = 0.5
    every: int = 10
    status: int = 500

    def __post_init__(self) -> None:
        if not (0.0 <= self.share <= 1.0 and 0.0 <= self.done_share <= 1.0):
            raise ValueError("share and done_share must lie between 0 and 1")
        if not self.factor > 0.0 or self.every < 1:
            raise ValueError("factor must be above 0, every 1 or more")
        if not 400 <= self.status <= 599:
            raise ValueError("status must be a 4xx or 5xx")


class BatchProfile(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One provider's batch API. Each turnaround is drawn from a log-normal distribution."""

    price_percent: int = 50  # of the price at once, rounded up bucket by bucket
    turnaround_median_s: float = 60.0
    turnaround_sigma: float = 0.3  # of ln turnaround
    validation_s: float = 0.1
    cancel_s: float = 0.2  # from the request to cancel until nothing more is done
    window_s: float = 86_400.0  # a batch that is not done then expires
    lines_min: int = 1  # a smaller batch is found wrong
    lines_max: int = 50_000
    bytes_max: int = 200_000_000  # of one file, or of one batch with its lines in it
    stored_bytes_max: int = 512_000_000  # of all files and batches together
    faults: tuple[BatchFault, ...] = ()

    def __post_init__(self) -> None:
        for name in ("turnaround_sigma", "validation_s", "cancel_s"):
            if not 0.0 <= getattr(self, name) < math.inf:
                raise ValueError(f"{name} must be 0 or more")
        for name in ("turnaround_median_s", "window_s", "lines_min", "bytes_max"):
            if not getattr(self, name) > 0:
                raise ValueError(f"{name} must be above 0")
        if not self.lines_min <= self.lines_max:
            raise ValueError("lines_max must be lines_min or more")
        if not 0 <= self.price_percent <= 1_000:
            raise ValueError("price_percent must lie between 0 and 1,000")


def batch_faults(
    profile: BatchProfile, at_s: float, draw: float
) -> dict[BatchFaultMode, BatchFault]:
    """The faults of a batch created at `at_s`; `draw` is uniform in [0, 1)."""
    return {
        fault.mode: fault
        for fault in profile.faults
        if fault.starts_s <= at_s < fault.ends_s and draw < fault.share
    }
