"""From a device and a model's sizes to a verdict: read from the cache, or op by op.

examine(Subject(device="cuda", geometry=geometry)).withheld  # what `dispatch.select` is given
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace

import torch

from kernels.cases.case import Size
from kernels.dispatch import MODULES
from kernels.doctor import capturing, machine
from kernels.doctor.cache import VerdictCache
from kernels.doctor.checking import Task, offered
from kernels.doctor.process import Child
from kernels.doctor.shapes import Geometry
from kernels.doctor.verdict import CAPTURE, Key, OpReport, Outcome, Verdict
from kernels.ops.launching import IS_INTERPRETED
from kernels.targets import GIB

OP_S_MAX = 120.0  # compiling its kernels included
PROBE_S_MAX = 60.0
SMALL_DEVICE_BYTES = 16 * GIB  # the main cases do not fit there

Tell = Callable[[str], None]


class NothingToExamine(Exception):
    """There is no GPU, or no triton; the message says so and what to do."""


@dataclass(frozen=True, slots=True)
class Subject:
    """What is tried: `module` offers the ops; without `geometry` the cases' own sizes serve."""

    device: str
    geometry: Geometry | None = None
    dtype: str = "bfloat16"
    module: str = MODULES["triton"]

    @property
    def is_gpu(self) -> bool:
        return torch.device(self.device).type != "cpu"

    @property
    def size(self) -> Size:
        if not self.is_gpu:
            return "small"
        total = torch.cuda.get_device_properties(self.device).total_memory
        return "small" if total < SMALL_DEVICE_BYTES else "main"

    def fitted(self) -> Subject:
        """An interpreter gets through small steps only."""
        if self.geometry is None or self.is_gpu:
            return self
        return replace(self, geometry=self.geometry.small())

    def key(self) -> Key:
        return machine.key_of(self.device, self.geometry, self.size, self.dtype)

    def task(self, op: str, *, is_timed: bool) -> Task:
        return Task(
            module=self.module,
            op=op,
            device=self.device,
            dtype=self.dtype,
            geometry=self.geometry,
            size=self.size,
            is_timed=is_timed,
        )


@dataclass(frozen=True, slots=True)
class Manner:
    """How. `is_timed` None: on a GPU only, as an interpreter's times say nothing."""

    is_again: bool = False
    op_s_max: float = OP_S_MAX
    is_timed: bool | None = None


def known(subject: Subject, cache: VerdictCache) -> Verdict | None:
    """The verdict on this machine, if all of it is there."""
    found = cache.read(subject.fitted().key())
    return found if found is not None and found.is_whole else None


def examine(
    subject: Subject, cache: VerdictCache, *, manner: Manner | None = None, tell: Tell = print
) -> Verdict:
    """The verdict on this machine: the one that is kept, or a new one, which is then kept.

    `tell` is given a line an op. Raises NothingToExamine where the kernels do not run at all,
    OSError if the verdict cannot be kept, ChildFailed if no process can be started.
    """
    manner, subject = manner or Manner(), subject.fitted()
    ops = _offered(subject)
    key = subject.key()
    with cache.locked():
        kept = None if manner.is_again else cache.read(key)
        if kept is not None and kept.is_whole:
            return kept
        # Of a verdict that was broken off: what hung the device is not tried again.
        reports = {each.op: each for each in (kept.reports if kept is not None else ())}
        is_whole = True
        for report in _tried(subject, [op for op in ops if op not in reports], manner):
            reports[report.op] = report
            tell(_line(report))
            is_lost = report.outcome in (Outcome.HUNG, Outcome.CRASHED) and not _answers(subject)
            is_whole = not is_lost
            cache.write(
                _verdict(subject, key, reports, is_whole=is_whole and len(reports) == len(ops))
            )
            if is_lost:
                break
        verdict = _verdict(subject, key, reports, is_whole=is_whole)
        cache.write(verdict)
        return verdict


def _offered(subject: Subject) -> tuple[str, ...]:
    if not subject.is_gpu and not IS_INTERPRETED and subject.module == MODULES["triton"]:
        raise NothingToExamine(
            "there is no GPU here, and on a CPU the Triton kernels run for tests only "
            "(TRITON_INTERPRET=1); torch's and the native ops serve"
        )
    ops = offered(subject.module)
    if not ops:
        raise NothingToExamine("the Triton kernels do not load here; torch's own ops serve")
    has_capture = subject.is_gpu and set(capturing.NEEDED) <= set(ops)
    return (*ops, CAPTURE) if has_capture else ops


def _tried(subject: Subject, ops: list[str], manner: Manner) -> Iterator[OpReport]:
    """One after the other; the next one's process gets ready meanwhile."""
    is_timed = subject.is_gpu if manner.is_timed is None else manner.is_timed
    with _children() as start:
        following = start() if ops else None
        for number, op in enumerate(ops):
            assert following is not None
            child, following = following, start() if number + 1 < len(ops) else None
            yield child.try_op(subject.task(op, is_timed=is_timed), manner.op_s_max)
            child.close()


@contextmanager
def _children() -> Iterator[Callable[[], Child]]:
    """Starts them, and ends them whatever happens."""
    started: list[Child] = []

    def start() -> Child:
        started.append(Child())
        return started[-1]

    try:
        yield start
    finally:
        for child in started:
            child.close()


def _answers(subject: Subject) -> bool:
    """Whether the device still computes at all, asked by a fresh process."""
    if not subject.is_gpu:
        return True
    # Nothing here may ask the device itself.
    task = Task(module=subject.module, op="", device=subject.device, dtype=subject.dtype)
    with _children() as start:
        report = start().try_op(task, PROBE_S_MAX)
    return report.outcome is Outcome.OK


def _verdict(
    subject: Subject, key: Key, reports: dict[str, OpReport], *, is_whole: bool
) -> Verdict:
    return Verdict(
        key=key,
        chip=machine.chip_of(subject.device),
        host=machine.host(),
        reports=tuple(reports.values()),
        is_whole=is_whole,
    )


def _line(report: OpReport) -> str:
    said = f" ({report.reason})" if report.reason else ""
    return f"  {report.op}: {report.outcome}{said}, {report.took_s:.1f} s"
