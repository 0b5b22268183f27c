"""A recorded trace as arrays, and how a run takes its arrivals from it: windows, wrapped, overlaid.

Load xK is K windows of the same process at once, each from another place of the trace, never one
request K times. The seed places the windows, so runs with other seeds see other minutes.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from gateway.errors import SetupError
from gateway.simulator.routing.arrivals import Arrival

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]
LOAD_MAX = 64.0


class TraceError(SetupError):
    """A trace file is missing or is not what its format says. Names the file and the line."""

    def __init__(self, path: Path, problem: str) -> None:
        super().__init__(f"{path}: {problem}")
        self._parts = (path, problem)

    def __reduce__(self) -> tuple[type[TraceError], tuple[Path, str]]:
        """By its two parts, for it crosses from a worker process to the command."""
        return TraceError, self._parts


@dataclass(frozen=True, slots=True)
class Trace:
    """Requests as recorded, by time of arrival."""

    at_s: Floats  # [num_requests], from 0, ascending
    prompt_tokens: Ints
    output_tokens: Ints
    span_s: float  # after which it begins again
    blocks: tuple[tuple[int, ...], ...] = ()  # one a request, or none at all
    common_blocks: frozenset[int] = frozenset()  # that every user of the service shares
    stamp_step_s: float = 0.0  # its clock's step: arrivals lie anywhere within it


def read_text(path: Path) -> str:
    """The file's text; a missing or unreadable file is a TraceError."""
    try:
        return path.read_text("utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise TraceError(path, f"cannot be read ({error})") from error


def check_scale(duration_s: float, load: float) -> None:
    """Refuse what no workload can be made of."""
    if not 0.0 < duration_s < math.inf:
        raise ValueError(f"duration_s must be positive and finite, not {duration_s}")
    if not 0.0 < load <= LOAD_MAX:
        raise ValueError(f"load must be above 0 and at most {LOAD_MAX:g}, not {load}")


def copies_of(load: float) -> list[float]:
    """How much of each overlaid copy is kept: x2.5 is two whole ones and half of a third."""
    num_whole = int(load)
    rest = load - num_whole
    return [1.0] * num_whole + ([rest] if rest > 0.0 else [])


def overlay(trace: Trace, *, seed: int, duration_s: float, load: float) -> tuple[Arrival, ...]:
    """
    `duration_s` of arrivals at `load` times the trace's own rate.

    Copies and laps are other people: their prefix blocks get ids of their own, all but the blocks
    that everyone shares, or an overlay would find more in a cache than the trace does.
    """
    check_scale(duration_s, load)
    rng = np.random.default_rng(seed)
    num_requests = len(trace.at_s)
    num_laps = math.ceil(duration_s / trace.span_s)
    shares = copies_of(load)
    first_s = rng.random() * trace.span_s
    times: list[Floats] = []
    rows: list[Ints] = []
    people: list[Ints] = []
    for copy, share in enumerate(shares):
        start_s = (first_s + copy * trace.span_s / len(shares)) % trace.span_s
        has_wrapped = trace.at_s < start_s
        for lap in range(num_laps):
            at_s = trace.at_s - start_s + (lap + has_wrapped) * trace.span_s
            if trace.stamp_step_s > 0.0:
                at_s = at_s + rng.random(num_requests) * trace.stamp_step_s
            is_in = at_s < duration_s
            if share < 1.0:
                is_in &= rng.random(num_requests) < share
            taken = np.flatnonzero(is_in)
            times.append(at_s[taken])
            rows.append(taken)
            people.append((copy * (num_laps + 1) + lap + has_wrapped)[taken])
    at_s, row, who = np.concatenate(times), np.concatenate(rows), np.concatenate(people)
    by_time = np.argsort(at_s, kind="stable")
    return _arrivals(trace, at_s[by_time], row[by_time], who[by_time])


def _arrivals(trace: Trace, at_s: Floats, row: Ints, who: Ints) -> tuple[Arrival, ...]:
    prompts, outputs = trace.prompt_tokens[row], trace.output_tokens[row]
    if not trace.blocks:
        return _without_blocks(at_s, prompts, outputs)
    num_ids = 1 + max((block for blocks in trace.blocks for block in blocks), default=0)
    return tuple(
        Arrival(
            at_s=at,
            prompt_tokens=prompt,
            output_tokens=output,
            blocks=owned(trace.blocks[idx], person * num_ids, trace.common_blocks),
        )
        for at, prompt, output, idx, person in zip(
            *(each.tolist() for each in (at_s, prompts, outputs, row, who)), strict=True
        )
    )


def merged(parts: Iterable[tuple[Floats, Ints, Ints]], duration_s: float) -> tuple[Arrival, ...]:
    """Arrivals before `duration_s` out of (times, prompts, outputs), in order of time."""
    at_s, prompts, outputs = (np.concatenate(each) for each in zip(*parts, strict=True))
    order = np.argsort(at_s, kind="stable")
    order = order[at_s[order] < duration_s]
    return _without_blocks(at_s[order], prompts[order], outputs[order])


def _without_blocks(at_s: Floats, prompts: Ints, outputs: Ints) -> tuple[Arrival, ...]:
    return tuple(
        Arrival(at_s=at, prompt_tokens=prompt, output_tokens=output)
        for at, prompt, output in zip(
            at_s.tolist(), prompts.tolist(), outputs.tolist(), strict=True
        )
    )


def owned(blocks: tuple[int, ...], offset: int, common: frozenset[int]) -> tuple[int, ...]:
    """`blocks` moved to ids that nobody else uses, those of `common` excepted."""
    if offset == 0:
        return blocks
    return tuple(block if block in common else block + offset for block in blocks)
