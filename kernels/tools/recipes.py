"""What there is to compile: cases recorded for an architecture, and each launch once.

A launch cannot go to another process, a recipe can: the child records it again.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor

from kernels.cases import table
from kernels.cases.case import Call, Case, Maker
from kernels.ops.candidates import candidates
from kernels.ops.configs import Question, asking, trying
from kernels.ops.launching import (
    BUFFER_BYTES_MAX,
    Launch,
    UnsupportedOnTargetError,
    recording,
)
from kernels.specs import BY_NAME
from kernels.targets import Target, find

CACHES = ("k_cache", "v_cache")
_FP8 = {torch.float8_e4m3fnuz: "fp8e4b8", torch.float8_e4m3fn: "fp8e4nv"}


@dataclass(frozen=True, slots=True)
class Recipe:
    """A case in a dtype on an architecture. `is_large`: with a pool of keys and values beyond what
    buffer instructions reach, which compiles to other loads. `tried`: values over the default at
    `sizes`, one of `kernels.ops.candidates`.
    """

    op: str
    case: str
    dtype: str
    arch: str
    is_large: bool = False
    sizes: str = ""
    tried: tuple[tuple[str, int], ...] = ()

    @property
    def shown(self) -> str:
        large = " (pool > 2 GiB)" if self.is_large else ""
        tried = ", ".join(f"{name} {value}" for name, value in self.tried)
        return f"{self.op}/{self.case} {self.dtype}{large}{f' ({tried})' if tried else ''}"


@dataclass(frozen=True, slots=True)
class Job:
    """The `index`-th launch of a recipe."""

    recipe: Recipe
    index: int


@dataclass(slots=True)
class Planned:
    """One launch to compile, and every recipe that has the same."""

    job: Job
    kernel: str
    num_warps: int
    used_by: list[Recipe] = field(default_factory=list)


@dataclass(slots=True)
class Plan:
    planned: list[Planned]
    failures: dict[Recipe, str]  # cases that could not be recorded, and why
    left_out: list[Recipe]  # of a type that the architecture's matrix units do not take


def recipes(
    archs: Sequence[str], *, ops: Sequence[str] = (), is_main_only: bool = False
) -> list[Recipe]:
    """Of every serving case, or of the main ones. Raises ValueError for an unknown op or arch, and
    if nothing is left.
    """
    unknown = sorted(set(ops) - set(table.ops()))
    if unknown:
        raise ValueError(
            f"no cases of {', '.join(unknown)}; ops with cases: {', '.join(table.ops())}"
        )
    found = [
        Recipe(case.op, case.name, _name(dtype), find(arch).arch, is_large)
        for arch in archs
        for case in table.cases()
        if (case.size == "main" if is_main_only else case.is_serving)
        if not ops or case.op in ops
        for dtype in case.dtypes
        for is_large in ((False, True) if has_caches(case) else (False,))
    ]
    if not found:
        raise ValueError("no case is left to compile; ask for fewer restrictions")
    return found


def has_caches(case: Case) -> bool:
    return CACHES[0] in BY_NAME[case.op].signature


def launches_of(recipe: Recipe) -> list[Launch]:
    """What the op would start. Raises whatever the op or the case raises."""
    case, function = table.find(recipe.op, recipe.case), table.function(recipe.op)
    call = call_of(case, recipe)
    values = {recipe.op: {recipe.sizes: dict(recipe.tried)}}
    with recording(recipe.arch) as launches, trying(values) if recipe.tried else nullcontext():
        function(*call.args, **call.kwargs)
    return launches


def questions_of(recipe: Recipe) -> list[Question]:
    """What its op asks of `kernels.ops.configs` on the recipe's chip, each once; nothing where the
    chip's units do not take the case.
    """
    with asking() as asked:
        try:
            launches_of(recipe)
        except UnsupportedOnTargetError:
            return []
    return [each for number, each in enumerate(asked) if each not in asked[:number]]


def with_candidates(wanted: Sequence[Recipe]) -> list[Recipe]:
    """Each recipe once with every candidate of every question that its op asks, and not without."""
    return [
        replace(recipe, sizes=question.sizes, tried=tuple(values.items()))
        for recipe in wanted
        for question in questions_of(recipe)
        for values in candidates(question)
    ]


def call_of(case: Case, recipe: Recipe) -> Call:
    """As on the recipe's chip: a case may look at what it is made for."""
    with recording(recipe.arch):
        call = case.make(Maker("meta"), getattr(torch, recipe.dtype))
    return with_large_caches(recipe.op, call) if recipe.is_large else call


def with_large_caches(op: str, call: Call) -> Call:
    """The same call over pools of more blocks, just beyond the reach of buffer instructions."""
    names = [name for name in BY_NAME[op].signature if name != "*"]
    args = tuple(
        _enlarged(value) if name in CACHES else value
        for name, value in zip(names, call.args, strict=False)
    )
    kwargs = {k: _enlarged(v) if k in CACHES else v for k, v in call.kwargs.items()}
    return replace(call, args=args, kwargs=kwargs)


def plan(wanted: Sequence[Recipe]) -> Plan:
    """Records each recipe, and keeps of equal launches (kernel, types, promises, options) one."""
    by_key: dict[tuple[Any, ...], Planned] = {}
    made = Plan([], {}, [])
    for recipe in wanted:
        target = find(recipe.arch)
        try:
            launches = launches_of(recipe)
        except UnsupportedOnTargetError:
            made.left_out.append(recipe)
            continue
        except Exception as error:
            made.failures[recipe] = f"{type(error).__name__}: {error}"
            continue
        if not launches:
            made.failures[recipe] = "the op launched nothing"
        if not all(_is_for(launch, target) for launch in launches):
            made.left_out.append(recipe)
            continue
        for index, launch in enumerate(launches):
            key = (recipe.arch, *_key(launch))
            if key not in by_key:
                num_warps = launch.options["num_warps"]
                by_key[key] = Planned(Job(recipe, index), launch.name, num_warps)
                made.planned.append(by_key[key])
            if recipe not in by_key[key].used_by:
                by_key[key].used_by.append(recipe)
    return made


def _is_for(launch: Launch, target: Target) -> bool:
    own = _FP8[target.fp8_dtype] if target.fp8_dtype is not None else ""
    return all(kind.removeprefix("*") == own for kind in launch.signature.values() if "fp8" in kind)


def _key(launch: Launch) -> tuple[Any, ...]:
    function = launch.kernel.fn
    return (
        f"{function.__module__}.{function.__qualname__}",
        tuple(launch.signature.items()),
        repr(sorted(launch.constexprs.items())),
        repr(sorted(launch.attrs.items())),
        tuple(sorted(launch.options.items())),
    )


def _enlarged(cache: Any) -> Any:
    if not isinstance(cache, Tensor):
        return cache
    num_blocks = BUFFER_BYTES_MAX // (cache[0].numel() * cache.itemsize) + 1
    shape = (max(num_blocks, cache.shape[0]), *cache.shape[1:])
    return torch.empty(shape, dtype=cache.dtype, device=cache.device)


def _name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")
