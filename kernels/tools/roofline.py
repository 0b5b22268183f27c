"""The least time that a chip needs for given work: bytes over bandwidth or operations over peak,
whichever is longer (Williams, Waterman and Patterson, 2009). Bounds, not measurements.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from kernels.cases import table as cases
from kernels.cases.case import Work
from kernels.ops.launching import recording
from kernels.targets import Target, find
from kernels.tools.models import Geometry, StepOp, step
from kernels.tools.recipes import Recipe, call_of
from kernels.tools.tables import short, table

BATCHES = (1, 32, 256)
CONTEXT = 4096
VERIFY_TOKENS = 8  # of the step whose ops are compared
COST_TOKENS = (2, 4, 6, 9, 17)
# Mean acceptance lengths (the bonus token among them) and the tokens verified for them.
ACCEPTANCES = ((2, 4), (3, 4), (4, 6), (6, 9))


@dataclass(frozen=True, slots=True)
class Limit:
    memory_s: float
    compute_s: float

    @property
    def time_s(self) -> float:
        return max(self.memory_s, self.compute_s)

    @property
    def bound(self) -> str:
        return "memory" if self.memory_s >= self.compute_s else "compute"


def limit(work: Work, target: Target) -> Limit:
    """Raises ValueError if the chip's units do not take operands of that kind."""
    if not work.num_flops:
        return Limit(work.num_bytes / target.bytes_s, 0.0)
    if work.kind not in target.peaks:
        raise ValueError(
            f"{target.arch} has no units for products of {work.kind}; "
            f"it has {', '.join(target.peaks)}"
        )
    return Limit(work.num_bytes / target.bytes_s, work.num_flops / target.peaks[work.kind])


def in_turn_s(ops: Sequence[StepOp], target: Target) -> float:
    """The ops one after the other, each at its own bound: how a step runs."""
    return sum(limit(each.work, target).time_s for each in ops)


def overlapped_s(ops: Sequence[StepOp], target: Target) -> float:
    """As if every byte could move while every product is computed: no schedule can be faster."""
    limits = [limit(each.work, target) for each in ops]
    return max(sum(each.memory_s for each in limits), sum(each.compute_s for each in limits))


def by_op_s(ops: Sequence[StepOp], target: Target) -> dict[str, float]:
    """Time in turn by op, the longest first."""
    found: defaultdict[str, float] = defaultdict(float)
    for each in ops:
        found[each.op] += limit(each.work, target).time_s
    return dict(sorted(found.items(), key=lambda item: -item[1]))


def cost(model: Geometry, target: Target, batch: int, tokens: int) -> float:
    """A step of `tokens` a sequence over a step of one, both in turn."""
    one = step(model, batch=batch, tokens=1, context=CONTEXT)
    many = step(model, batch=batch, tokens=tokens, context=CONTEXT)
    return in_turn_s(many, target) / in_turn_s(one, target)


def speedup_max(
    model: Geometry, target: Target, *, batch: int, tokens: int, acceptance: float
) -> float:
    """If drafts cost nothing, `acceptance` tokens a step stand, and ops reach their bounds."""
    return acceptance / cost(model, target, batch, tokens)


def steps_shown(models: Sequence[Geometry], targets: Sequence[Target]) -> str:
    """Which op bounds a verifying step, and the largest speed-up by acceptance length."""
    headings = ["model", "chip", "batch", "t(1) ms", f"t({VERIFY_TOKENS}) ms", "bounded by"]
    headings += [f"t({n})/t(1)" for n in COST_TOKENS]
    headings += [f"AL {length} of {n}" for length, n in ACCEPTANCES]
    rows = [
        _step_row(model, target, batch)
        for model in models
        for target in targets
        for batch in BATCHES
    ]
    return (
        f"A step at {CONTEXT} keys a sequence, bfloat16; ops one after the other, each at its "
        f"bound.\nAL a of n: the largest speed-up if a of n verified tokens stand and drafts cost "
        f"nothing.\n{table(headings, rows)}"
    )


def cases_shown(archs: Sequence[str], ops: Sequence[str] = ()) -> str:
    """Bytes, operations and the time limit of every serving case."""
    headings = ["case", "MB", "GFLOP", *(f"{arch} us" for arch in archs), "bound"]
    return table(headings, list(_case_rows(archs, ops)))


def _case_rows(archs: Sequence[str], ops: Sequence[str]) -> Iterator[list[str]]:
    for case in cases.cases():
        if not case.is_serving or (ops and case.op not in ops):
            continue
        for dtype in case.dtypes:
            name = str(dtype).removeprefix("torch.")
            times, bounds, shown = [], [], ["-", "-"]
            for arch in archs:
                call = call_of(case, Recipe(case.op, case.name, name, arch))
                with recording(arch):
                    work = case.work(call)
                found = _limit_or_none(work, find(arch))
                shown = [short(work.num_bytes / 1e6), short(work.num_flops / 1e9)]
                times.append("-" if found is None else short(found.time_s * 1e6))
                if found is not None:
                    bounds.append(found.bound)
            yield [
                f"{case.op}/{case.name} {name}",
                *shown,
                *times,
                "/".join(dict.fromkeys(bounds)) or "-",
            ]


def _limit_or_none(work: Work, target: Target) -> Limit | None:
    """None where the chip has no such units: the case is not for it."""
    return None if work.num_flops and work.kind not in target.peaks else limit(work, target)


def _step_row(model: Geometry, target: Target, batch: int) -> list[str]:
    one = step(model, batch=batch, tokens=1, context=CONTEXT)
    verify = step(model, batch=batch, tokens=VERIFY_TOKENS, context=CONTEXT)
    op, longest_s = next(iter(by_op_s(verify, target).items()))
    verify_s = in_turn_s(verify, target)
    return [
        *(model.name, target.arch, str(batch)),
        *(short(in_turn_s(one, target) * 1e3), short(verify_s * 1e3)),
        f"{op} {longest_s / verify_s:.0%}",
        *(f"{cost(model, target, batch, tokens):.2f}" for tokens in COST_TOKENS),
        *(
            f"{speedup_max(model, target, batch=batch, tokens=n, acceptance=length):.2f}"
            for length, n in ACCEPTANCES
        ),
    ]
