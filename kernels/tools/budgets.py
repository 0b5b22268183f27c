"""What a compiled kernel may take, by triton's version: another compiler, other figures.

A figure over its budget is a breach unless an allowance names it with the reason. An allowance that
nothing needs any more is a breach too.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from kernels.cases import table
from kernels.targets import find
from kernels.tools.recipes import Recipe, call_of
from kernels.tools.resources import Resources

VERIFY_ROWS_MAX = 16  # queries a sequence: up to here a call is decode or verify


@dataclass(frozen=True, slots=True)
class Budget:
    """`waves_min` a SIMD of decode and verify attention, by the largest head it holds for."""

    vgpr_spills_max: int
    scratch_bytes_max: int
    waves_min: Mapping[int, float]


@dataclass(frozen=True, slots=True)
class Allowance:
    """`allowed`: the figure that `limit` may reach (for "waves": may fall to) for this kernel."""

    op: str
    kernel: str
    arch: str
    limit: str
    allowed: float
    reason: str
    case: str = ""  # every case if empty


@dataclass(frozen=True, slots=True)
class Breach:
    arch: str
    shown: str  # the case, or whatever else is meant
    kernel: str
    message: str


@dataclass(frozen=True, slots=True)
class Measured:
    """A compiled launch in one of the cases that has it."""

    recipe: Recipe
    kernel: str
    resources: Resources


BUDGETS: Mapping[str, Budget] = {
    "3.7.1": Budget(vgpr_spills_max=0, scratch_bytes_max=0, waves_min={128: 3.0, 512: 1.0}),
}
ALLOWANCES: Mapping[str, Sequence[Allowance]] = {"3.7.1": ()}


def judged(
    measured: Sequence[Measured],
    budget: Budget,
    allowances: Sequence[Allowance],
    *,
    is_whole: bool = True,
) -> list[Breach]:
    """Of architectures with budgets. `is_whole`: everything was compiled, so that an allowance that
    no figure needed is one too many.
    """
    breaches: list[Breach] = []
    needed: set[Allowance] = set()
    mine = [each for each in measured if not find(each.recipe.arch).is_compile_only]
    for each in mine:
        for limit, value, allowed in _over(each, budget):
            found = _allowance(each, limit, value, allowances)
            if found is not None:
                needed.add(found)
                continue
            message = f"{limit} is {value:g}; {'at least' if limit == 'waves' else 'at most'} "
            shown, arch = each.recipe.shown, each.recipe.arch
            breaches.append(Breach(arch, shown, each.kernel, f"{message}{allowed:g}"))
    breaches += _without_matrix_instructions(mine)
    if is_whole:
        archs = {each.recipe.arch for each in mine}
        breaches += [
            Breach(a.arch, a.op, a.kernel, f"its allowance for {a.limit} is not needed: remove it")
            for a in allowances
            if a.arch in archs and a not in needed
        ]
    return breaches


def waves_min(recipe: Recipe, budget: Budget) -> float:
    """0 where the case is not decode or verify attention."""
    if recipe.op != "paged_attention":
        return 0.0
    call = call_of(table.find(recipe.op, recipe.case), recipe)
    if call.kwargs["query_len"] > VERIFY_ROWS_MAX:
        return 0.0
    head_dim = call.args[0].shape[-1]
    fitting = [size for size in sorted(budget.waves_min) if head_dim <= size]
    return budget.waves_min[fitting[0]] if fitting else 0.0


def _over(each: Measured, budget: Budget) -> list[tuple[str, float, float]]:
    """(limit, figure, what it should be) of every figure outside the budget."""
    found: list[tuple[str, float, float]] = []
    target, resources = find(each.recipe.arch), each.resources
    limits = (
        ("vgpr_spills", resources.vgpr_spills, budget.vgpr_spills_max),
        ("scratch_bytes", resources.scratch_bytes, budget.scratch_bytes_max),
        ("lds_bytes", resources.lds_bytes, target.lds_bytes),
    )
    for limit, value, allowed in limits:
        if value is not None and value > allowed:
            found.append((limit, value, allowed))
    least = waves_min(each.recipe, budget)
    if resources.waves is not None and resources.waves.waves < least:
        found.append(("waves", resources.waves.waves, least))
    return found


def _allowance(
    each: Measured, limit: str, value: float, allowances: Sequence[Allowance]
) -> Allowance | None:
    wanted = (each.recipe.op, each.kernel, each.recipe.arch, limit)
    for allowance in allowances:
        is_enough = value >= allowance.allowed if limit == "waves" else value <= allowance.allowed
        if (
            (allowance.op, allowance.kernel, allowance.arch, allowance.limit) == wanted
            and allowance.case in ("", each.recipe.case)
            and is_enough
        ):
            return allowance
    return None


def _without_matrix_instructions(measured: Sequence[Measured]) -> list[Breach]:
    """Cases that promise products of matrices, none of whose kernels has such an instruction."""
    seen: dict[Recipe, bool] = {}
    for each in measured:
        if table.find(each.recipe.op, each.recipe.case).has_matrix_products:
            seen[each.recipe] = seen.get(each.recipe, False) or bool(each.resources.matrix)
    return [
        Breach(recipe.arch, recipe.shown, "all", "no matrix instruction in any of its kernels")
        for recipe, has_matrix in seen.items()
        if not has_matrix
    ]
