"""`python -m kernels aot`: compiles every serving case for GPUs that need not be there.

Prints what each kernel takes of a chip and ends with status 1 if one does not compile in its time
or breaks its budget.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass

from kernels.tools.budgets import ALLOWANCES, BUDGETS, Breach, Measured, judged
from kernels.tools.children import each_in_a_child
from kernels.tools.compiling import PRELOAD, check_compiles_here, compile_job, triton_version
from kernels.tools.recipes import Plan, Planned, Recipe, plan, recipes, with_candidates
from kernels.tools.resources import Resources
from kernels.tools.tables import short, table

LIMIT_S = 60.0

HEADINGS = (
    *("arch", "case", "kernel", "LDS", "VGPR", "AGPR", "SGPR", "spills v/s", "scratch"),
    *("waves", "limit", "matrix", "loads b/g", "code", "s"),
)


@dataclass(frozen=True, slots=True)
class Row:
    """One launch; `resources` is None where it did not compile, and `error` says why."""

    planned: Planned
    resources: Resources | None
    error: str
    took_s: float


@dataclass(frozen=True, slots=True)
class Report:
    rows: Sequence[Row]
    plan: Plan
    breaches: Sequence[Breach]
    took_s: float

    @property
    def is_good(self) -> bool:
        return not (self.breaches or self.plan.failures or any(row.error for row in self.rows))


def run(
    archs: Sequence[str],
    *,
    ops: Sequence[str] = (),
    is_main_only: bool = False,
    has_candidates: bool = False,
    num_jobs: int = 2,
    limit_s: float = LIMIT_S,
    on_progress: Callable[[int, int], None] = lambda num_done, num_all: None,
) -> Report:
    """Compiles and judges; `on_progress` is told after each. `has_candidates`: what `tune` would
    try instead of what serves. Raises ValueError for unknown names or a version of triton without
    budgets, RuntimeError where nothing can be compiled.
    """
    check_compiles_here()
    version = triton_version()
    if version not in BUDGETS:
        raise ValueError(
            f"there are no budgets for triton {version}, only for {', '.join(BUDGETS)}; "
            "look at what it compiles to, then add it to kernels/tools/budgets.py"
        )
    started_s = time.monotonic()
    wanted = recipes(archs, ops=ops, is_main_only=is_main_only)
    planned = plan(with_candidates(wanted) if has_candidates else wanted)
    by_place: dict[int, Row] = {}
    for place, row in _compiled(planned.planned, num_jobs, limit_s):
        by_place[place] = row
        on_progress(len(by_place), len(planned.planned))
    rows = [by_place[place] for place in sorted(by_place)]
    measured = [
        Measured(recipe, row.planned.kernel, row.resources)
        for row in rows
        if row.resources is not None
        for recipe in row.planned.used_by
    ]
    breaches = judged(
        measured,
        BUDGETS[version],
        ALLOWANCES.get(version, ()),
        is_whole=not (ops or is_main_only or has_candidates),
    )
    return Report(rows, planned, breaches, time.monotonic() - started_s)


def shown(report: Report) -> str:
    """The table, then what is wrong, then one line."""
    parts = [table(HEADINGS, [_entries(row) for row in report.rows])]
    parts += [f"not compiled: {_name(row)}: {row.error}" for row in report.rows if row.error]
    parts += [
        f"not recorded: {recipe.arch} {recipe.shown}: {why}"
        for recipe, why in report.plan.failures.items()
    ]
    parts += [f"over budget: {b.arch} {b.shown} {b.kernel}: {b.message}" for b in report.breaches]
    num_recipes = len({each for row in report.rows for each in row.planned.used_by})
    parts.append(
        f"{len(report.rows)} kernels of {num_recipes} cases in {report.took_s:.0f} s; "
        f"{len(report.plan.left_out)} left out for an fp8 type the chip does not take; "
        f"{'all within budget' if report.is_good else 'NOT within budget'}"
    )
    return "\n".join(parts)


def as_json(report: Report) -> str:
    """For other programs: a list of rows, and what is wrong."""
    rows = [
        {
            "arch": row.planned.job.recipe.arch,
            "kernel": row.planned.kernel,
            "cases": [recipe.shown for recipe in row.planned.used_by],
            "resources": None if row.resources is None else asdict(row.resources),
            "error": row.error,
            "took_s": round(row.took_s, 3),
        }
        for row in report.rows
    ]
    breaches = [asdict(each) for each in report.breaches]
    failures = {f"{each.arch} {each.shown}": why for each, why in report.plan.failures.items()}
    return json.dumps({"rows": rows, "breaches": breaches, "failures": failures}, indent=1)


def _compiled(
    planned: Sequence[Planned], num_jobs: int, limit_s: float
) -> Iterator[tuple[int, Row]]:
    outcomes = each_in_a_child(
        compile_job,
        [each.job for each in planned],
        limit_s=limit_s,
        num_at_once=num_jobs,
        preload=PRELOAD,
    )
    for index, outcome in outcomes:
        yield index, Row(planned[index], outcome.value, outcome.error, outcome.took_s)


def _name(row: Row) -> str:
    recipe: Recipe = row.planned.job.recipe
    return f"{recipe.arch} {recipe.shown} {row.planned.kernel}"


def _entries(row: Row) -> list[str]:
    recipe, found = row.planned.job.recipe, row.resources
    num_more = len(row.planned.used_by) - 1
    case = recipe.shown + (f" +{num_more}" if num_more else "")
    head = [recipe.arch, case, row.planned.kernel]
    if found is None:
        return [*head, *["-"] * (len(HEADINGS) - 4), short(row.took_s, 2)]
    waves = found.waves
    return [
        *head,
        str(found.lds_bytes),
        *(_count(each) for each in (found.vgprs, found.agprs, found.sgprs)),
        f"{_count(found.vgpr_spills)}/{_count(found.sgpr_spills)}",
        _count(found.scratch_bytes),
        "-" if waves is None else short(waves.waves),
        "-" if waves is None else waves.limited_by,
        _matrix(found.matrix),
        f"{_count(found.num_buffer_loads)}/{_count(found.num_global_loads)}",
        _count(found.code_bytes),
        short(row.took_s, 2),
    ]


def _matrix(names: Sequence[str]) -> str:
    """The first, without what all of one chip's have in common."""
    if not names:
        return "no"
    first = names[0].removeprefix("v_").removesuffix(".sync")
    return first if len(names) == 1 else f"{first} +{len(names) - 1}"


def _count(value: int | None) -> str:
    return "-" if value is None else str(value)
