"""`python -m kernels tune`: other values than an op's defaults, on the GPU at hand.

A candidate (`kernels.ops.candidates`) is tried in a child process, in every serving case that asks
for it: the same results as torch's first, then timed in turn with the default. It is kept if the
cases together take GAIN_MIN less and none takes SLOWER_MAX more, twice, in two processes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch

from kernels.cases import table as cases
from kernels.cases.case import Case, Maker
from kernels.ops.candidates import candidates
from kernels.ops.configs import Question, Values, asking
from kernels.tools import bench, tuned_file
from kernels.tools.bench import Device
from kernels.tools.children import each_in_a_child
from kernels.tools.compiling import PRELOAD
from kernels.tools.recipes import Recipe, questions_of
from kernels.tools.tables import short, table
from kernels.tools.trial import Found, Trial, answers, tried
from kernels.tools.tuned_file import Choice, Progress

LIMIT_S = 1200.0
TRIAL_S_MAX = 60.0  # compiling and torch's own op included
LIMIT_S_MIN = 2 * TRIAL_S_MAX
PROBE_S_MAX = 60.0
GAIN_MIN = 0.05  # of the default's time: medians of one run differ by less
SLOWER_MAX = 0.02  # in any single case
CONFIRMED_MAX = 2  # of a question's best

HEADINGS = ("op", "sizes", "cases", "tried", "default us", "best", "its us", "gain", "kept")

TryIt = Callable[[Trial, float], Found]


class OutOfTime(Exception):
    """What was begun is left for the next run."""


@dataclass(frozen=True, slots=True)
class Asked:
    """A question, and the cases (name, dtype) whose op asks it."""

    question: Question
    cases: tuple[tuple[str, str], ...]


def questions(device: Device, *, ops: Sequence[str] = (), is_small: bool = False) -> list[Asked]:
    """Those with candidates, of the main cases first. Raises ValueError for an unknown op."""
    found: dict[tuple[str, str], tuple[Question, list[tuple[str, str]]]] = {}
    for case, dtype in bench.chosen(device.target, ops=ops, is_small=is_small):
        own = (case.name, str(dtype).removeprefix("torch."))
        for question in _questions_of(case, dtype, device):
            key = (question.op, question.sizes)
            _, askers = found.setdefault(key, (question, []))
            if own not in askers:
                askers.append(own)
    return [
        Asked(question, tuple(askers))
        for question, askers in found.values()
        if candidates(question)
    ]


def _questions_of(case: Case, dtype: torch.dtype, device: Device) -> list[Question]:
    if device.name != "cpu":
        name = str(dtype).removeprefix("torch.")
        return questions_of(Recipe(case.op, case.name, name, device.target.arch))
    # An interpreter writes no launch down, so there the op is called.
    call = case.make(Maker(device.name), dtype)
    with asking() as asked:
        cases.function(case.op)(*call.args, **call.kwargs)
    return asked


def gain(found: Found) -> float:
    """The share of the default's time that is saved; 0 for what is wrong, or slower in a case."""
    pairs = list(zip(found.own_s, found.default_s, strict=True))
    if not pairs or any(own > default * (1.0 + SLOWER_MAX) for own, default in pairs):
        return 0.0
    return 1.0 - sum(found.own_s) / sum(found.default_s)


def chosen(asked: Asked, try_it: Callable[[Values], Found]) -> Choice:
    """The best candidate if it is better twice, else the default (no values)."""
    question = asked.question
    results = [(values, try_it(values)) for values in candidates(question)]
    best = sorted(
        (each for each in results if gain(each[1]) >= GAIN_MIN), key=lambda each: -gain(each[1])
    )
    told = tuple(f"{shown_values(values)}: {each.wrong}" for values, each in results if each.wrong)
    (values, found), is_kept = _fastest(results), False
    for candidate, _ in best[:CONFIRMED_MAX]:
        again = try_it(candidate)
        if gain(again) >= GAIN_MIN:
            values, found, is_kept = candidate, again, True
            break
    return Choice(
        op=question.op,
        sizes=question.sizes,
        num_cases=len(asked.cases),
        num_tried=len(results),
        values=dict(values),
        default_s=sum(found.default_s),
        own_s=sum(found.own_s),
        gain=gain(found),
        is_kept=is_kept,
        wrong=told,
    )


def run(
    wanted: Sequence[Asked],
    device: Device,
    progress: Progress,
    out: Path,
    *,
    limit_s: float = LIMIT_S,
    try_it: TryIt | None = None,
    tell: Callable[[str], None] = print,
) -> bool:
    """Whether all of `wanted` is done: what `progress` has is not done again, what is found is
    written at once. Raises RuntimeError if the GPU stops answering, OSError if `out` cannot be
    written.
    """
    ends_s = device.clock() + limit_s
    for asked in wanted:
        if progress.has(asked.question):
            continue
        call = _within(ends_s, device, asked, try_it or in_a_child)
        try:
            choice = chosen(asked, call)
        except OutOfTime:
            return False
        tuned_file.write(out, choice)
        progress.add(choice)
        kept = shown_values(choice.values) if choice.is_kept else "the default"
        tell(f"  {choice.op} {choice.sizes}: {kept}")
    return True


def in_a_child(trial: Trial, limit_s: float) -> Found:
    """Raises RuntimeError if the device does not answer after it."""
    found = _alone(tried, trial, limit_s)
    if isinstance(found, Found):
        return found
    if _alone(answers, trial.device, PROBE_S_MAX) is not True:
        raise RuntimeError(
            f"the GPU stopped answering after {trial.op} {trial.sizes} with "
            f"{shown_values(trial.values)} ({found}); what was found before is kept: reset the "
            "GPU, then run it again"
        )
    return Found(wrong=str(found))


def shown(choices: Sequence[Choice]) -> str:
    """What was wrong, then one table."""
    told = [f"{each.op} {each.sizes}, {wrong}" for each in choices for wrong in each.wrong]
    return "\n".join([*told, table(HEADINGS, [list(_entries(each)) for each in choices])])


def _alone(work: Callable[..., object], argument: object, limit_s: float) -> object:
    """What it gives, or the text of what became of its process."""
    outcomes = each_in_a_child(work, [argument], limit_s=limit_s, num_at_once=1, preload=PRELOAD)
    [(_, outcome)] = outcomes
    return outcome.error or outcome.value


def _within(
    ends_s: float, device: Device, asked: Asked, try_it: TryIt
) -> Callable[[Values], Found]:
    """Raises OutOfTime where nothing new may begin."""

    def call(values: Values) -> Found:
        if ends_s - device.clock() < TRIAL_S_MAX:
            raise OutOfTime
        question = asked.question
        trial = Trial(question.op, question.sizes, values, asked.cases, device.name)
        return try_it(trial, TRIAL_S_MAX)

    return call


def shown_values(values: Values) -> str:
    return ", ".join(f"{name} {value}" for name, value in values.items())


def _fastest(results: Sequence[tuple[Values, Found]]) -> tuple[Values, Found]:
    """Of those that are right; nothing where none is."""
    right = [each for each in results if not each[1].wrong]
    return min(right, key=lambda each: sum(each[1].own_s)) if right else ({}, Found())


def _entries(choice: Choice) -> Iterator[str]:
    yield from (choice.op, choice.sizes, str(choice.num_cases), str(choice.num_tried))
    yield short(choice.default_s * 1e6) if choice.default_s else "-"
    yield shown_values(choice.values) or "-"
    yield short(choice.own_s * 1e6) if choice.own_s else "-"
    yield f"{choice.gain:.0%}"
    yield "yes" if choice.is_kept else "no"
