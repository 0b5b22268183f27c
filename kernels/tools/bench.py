"""`python -m kernels bench`: every serving case on the GPU at hand, right first and then fast.

A kernel is held against torch's own op and against what the chip reaches in the same run. A case
whose result is wrong is not timed.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, field

import torch

from kernels.cases import table as cases
from kernels.cases.case import Call, Case, Maker, Work
from kernels.targets import Target
from kernels.tools import ceilings
from kernels.tools.ceilings import Ceilings
from kernels.tools.checking import Verdict, checked, poisoned
from kernels.tools.rivals import rival_of
from kernels.tools.tables import short, table
from kernels.tools.timing import Clock, Timer, Times, interleaved

LIMIT_S = 480.0
CASE_S_MIN = 0.5  # with less there is no use in beginning
RESERVED_S = 10.0  # for the ceilings at the end, and the table

HEADINGS = (
    *("case", "dtype", "error", "of at most", "us", "quartiles", "rival", "its us", "speed-up"),
    *("GB/s", "of copy", "TFLOP/s", "of matmul", "of bound"),
)


@dataclass(frozen=True, slots=True)
class Device:
    """`ceiling_sizes`: bytes copied and side of the product; smaller ones to try the command."""

    name: str  # as torch calls it
    chip: str
    target: Target
    timer: Timer
    clock: Clock
    ceiling_sizes: tuple[int, int] = (ceilings.COPY_BYTES, ceilings.MATMUL_SIDE)


@dataclass(frozen=True, slots=True)
class Result:
    """`message` says why there are no times, and is empty where there are."""

    op: str
    case: str
    dtype: str
    verdict: Verdict | None
    message: str
    work: Work | None = None
    ours: Times | None = None
    rival: str = ""
    theirs: Times | None = None


@dataclass(slots=True)
class Progress:
    """What a run has so far, for whoever must end it before its end."""

    results: list[Result] = field(default_factory=list)
    at: str = "the ceilings"
    ceilings: Ceilings | None = None


def chosen(
    target: Target, *, ops: Sequence[str] = (), is_small: bool = False
) -> list[tuple[Case, torch.dtype]]:
    """The main case of every op first, so that a run that ends early has said the most. Raises
    ValueError for an unknown op.
    """
    unknown = sorted(set(ops) - set(cases.ops()))
    if unknown:
        known = ", ".join(cases.ops())
        raise ValueError(f"no cases of {', '.join(unknown)}; ops with cases: {known}")
    fitting = [
        (case, dtype)
        for case in cases.cases()
        if case.is_serving != is_small and (not ops or case.op in ops)
        for dtype in case.dtypes
        if dtype not in (torch.float8_e4m3fn, torch.float8_e4m3fnuz) or dtype == target.fp8_dtype
    ]
    return sorted(fitting, key=lambda each: each[0].size != "main")


def run(
    wanted: Sequence[tuple[Case, torch.dtype]],
    device: Device,
    *,
    limit_s: float = LIMIT_S,
    progress: Progress | None = None,
) -> Progress:
    """Measures one after the other within `limit_s`; what time does not reach is named."""
    state = Progress() if progress is None else progress
    ends_s = device.clock() + limit_s - RESERVED_S
    first = _ceilings(device)
    state.ceilings = first
    for number, (case, dtype) in enumerate(wanted):
        budget_s = share_s(ends_s - device.clock(), len(wanted) - number)
        state.at = f"{case.op}/{case.name}"
        if budget_s < CASE_S_MIN:
            state.results.append(_without_times(case, dtype, "no time was left"))
            continue
        state.results.append(_measured(case, dtype, device, budget_s))
    state.at = "the ceilings"
    state.ceilings = ceilings.better(first, _ceilings(device))
    return state


def share_s(left_s: float, num_left: int) -> float:
    """Of the time left; a quick case leaves its rest to those behind it."""
    return max(0.0, left_s) / num_left


def shown(results: Sequence[Result], reached: Ceilings | None, chip: str) -> str:
    """One table last, below what went wrong."""
    told = [
        f"{each.op}/{each.case} {each.dtype}: {each.message}" for each in results if each.message
    ]
    num_wrong = sum(each.verdict is not None and not each.verdict.is_right for each in results)
    told.append(f"{chip}: {len(results)} cases, {num_wrong} wrong, {len(told)} without times")
    if reached is not None:
        told.append(
            f"reached in this run: copy {short(reached.bytes_s / 1e9)} GB/s, "
            f"bf16 matmul {short(reached.flops_s / 1e12)} TFLOP/s"
        )
        told.append(table(HEADINGS, [_entries(each, reached) for each in results]))
    return "\n".join(told)


def as_json(results: Sequence[Result], reached: Ceilings | None, chip: str) -> str:
    return json.dumps(
        {
            "chip": chip,
            "torch": torch.__version__,
            "ceilings": None if reached is None else asdict(reached),
            "results": [asdict(each) for each in results],
        },
        indent=1,
    )


def _ceilings(device: Device) -> Ceilings:
    copy_bytes, side = device.ceiling_sizes
    return ceilings.measured(
        device.timer, device.clock, device=device.name, copy_bytes=copy_bytes, side=side
    )


def _measured(case: Case, dtype: torch.dtype, device: Device, budget_s: float) -> Result:
    """An op that raises costs its own line only."""
    ends_s = device.clock() + budget_s
    function = cases.function(case.op)
    try:
        verdict = checked(case, dtype, function, device=device.name)
        if not verdict.is_right:
            return _without_times(case, dtype, f"WRONG: {verdict.message}", verdict)
        call = poisoned(case.op, case.make(Maker(device.name), dtype))
        runs = {"ours": _bound(function, call), **_rival(case.op, call)}
        left_s = max(CASE_S_MIN, ends_s - device.clock())
        times = interleaved(runs, device.timer, budget_s=left_s, clock=device.clock)
        work = case.work(call)
    except Exception as error:
        return _without_times(case, dtype, f"{type(error).__name__}: {error}")
    [*_, rival] = times
    return Result(
        *(case.op, case.name, _name(dtype), verdict, ""),
        work=work,
        ours=times["ours"],
        rival=rival if rival != "ours" else "none runs",
        theirs=times[rival] if rival != "ours" else None,
    )


def _rival(op: str, call: Call) -> dict[str, Callable[[], object]]:
    """Empty where torch cannot do it on this device."""
    try:
        name, run = rival_of(op, call)
        run()
    except (RuntimeError, NotImplementedError):
        return {}
    return {name: run}


def _bound(function: Callable[..., object], call: Call) -> Callable[[], object]:
    return lambda: function(*call.args, **call.kwargs)


def _without_times(
    case: Case, dtype: torch.dtype, message: str, verdict: Verdict | None = None
) -> Result:
    return Result(case.op, case.name, _name(dtype), verdict, message)


def _entries(result: Result, reached: Ceilings) -> list[str]:
    verdict, ours, theirs, work = result.verdict, result.ours, result.theirs, result.work
    head = [f"{result.op}/{result.case}", result.dtype, *_errors(verdict)]
    if ours is None or work is None:
        return [*head, *["-"] * (len(HEADINGS) - 4)]
    bytes_s, flops_s = work.num_bytes / ours.median_s, work.num_flops / ours.median_s
    bound_s = reached.time_s(work.num_bytes, work.num_flops)
    return [
        *head,
        short(ours.median_s * 1e6),
        f"{short(ours.low_s * 1e6)}..{short(ours.high_s * 1e6)}",
        result.rival,
        "-" if theirs is None else short(theirs.median_s * 1e6),
        "-" if theirs is None else f"{theirs.median_s / ours.median_s:.2f}",
        short(bytes_s / 1e9),
        f"{bytes_s / reached.bytes_s:.0%}",
        short(flops_s / 1e12),
        f"{flops_s / reached.flops_s:.0%}",
        f"{bound_s / ours.median_s:.0%}",
    ]


def _errors(verdict: Verdict | None) -> Iterator[str]:
    if verdict is None:
        yield from ("-", "-")
    elif verdict.error is None:
        yield from ("equal" if verdict.is_right else "WRONG", "-")
    else:
        yield from (f"{verdict.error:.1e}", f"{verdict.error_max:.1e}")


def _name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")
