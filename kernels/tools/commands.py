"""The commands of `python -m kernels` and their arguments."""

from __future__ import annotations

import argparse
import os
import sys
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import torch

import kernels
from kernels.ops.launching import IS_INTERPRETED, arch_of, current_target
from kernels.targets import TARGETS, find
from kernels.tools import aot, bench, roofline, tune, tuned_file
from kernels.tools.models import MODELS
from kernels.tools.timing import ClockTimer, EventTimer, Timer

BUDGETED = tuple(target.arch for target in TARGETS if not target.is_compile_only)
BREACHED = 1
WRONG_USE = 2
HUNG = 3
UNFINISHED = 4
TOLD_EVERY = 50  # kernels compiled
TRIED_SIZES = (1 << 20, 64)  # of the ceilings where the command itself is tried


def main(arguments: Sequence[str]) -> int:
    """The exit status: 0 good, 1 something was found, 2 wrongly used, 3 hung, 4 unfinished."""
    parsed = _parser().parse_args(arguments)
    try:
        status: int = parsed.command(parsed)
    except (ValueError, RuntimeError) as error:
        print(f"kernels: {error}", file=sys.stderr)
        return WRONG_USE
    return status


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m kernels", description=__doc__)
    commands = parser.add_subparsers(required=True)
    compiling = commands.add_parser("aot", help="compile the serving cases; no GPU is needed")
    _choosing(compiling)
    which = compiling.add_mutually_exclusive_group()
    which.add_argument("--all", action="store_true", help="every serving case (the default)")
    which.add_argument("--main", action="store_true", help="one case an op, as `make test` does")
    compiling.add_argument(
        "--candidates", action="store_true", help="what `tune` would try, in place of what serves"
    )
    compiling.add_argument("--jobs", type=int, default=os.cpu_count() or 1, metavar="N")
    compiling.add_argument("--limit-s", type=float, default=aot.LIMIT_S, help="for one kernel")
    compiling.add_argument("--roofline", action="store_true", help="print the bounds as well")
    compiling.add_argument("--json", type=Path, metavar="FILE", help="write the rows there too")
    compiling.set_defaults(command=_aot)
    bounding = commands.add_parser("roofline", help="bytes, operations and time limits")
    _choosing(bounding)
    bounding.set_defaults(command=_roofline)
    measuring = commands.add_parser("bench", help="measure on the GPU at hand")
    _measuring(measuring)
    measuring.add_argument("--limit-s", type=float, default=bench.LIMIT_S, help="for all of it")
    measuring.add_argument("--json", type=Path, metavar="FILE", help="write the results there too")
    measuring.set_defaults(command=_bench)
    tuning = commands.add_parser("tune", help="try other tiles on the GPU at hand, keep the faster")
    _measuring(tuning)
    tuning.add_argument("--limit-s", type=float, default=tune.LIMIT_S, help="for all of it")
    tuning.add_argument("--out", type=Path, metavar="FILE", help="instead of this chip's own file")
    tuning.set_defaults(command=_tune)
    return parser


def _measuring(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--op", action="append", default=[], metavar="OP")
    parser.add_argument(
        "--interpreted",
        action="store_true",
        help="try the command itself: small cases, no GPU; its times say nothing",
    )


def _choosing(parser: argparse.ArgumentParser) -> None:
    names = ", ".join(target.arch for target in TARGETS)
    parser.add_argument("--arch", action="append", metavar="ARCH", help=f"one of {names}")
    parser.add_argument("--op", action="append", default=[], metavar="OP")


def _aot(parsed: argparse.Namespace) -> int:
    every = BUDGETED if parsed.main else tuple(target.arch for target in TARGETS)
    archs = tuple(parsed.arch or every)
    if parsed.jobs < 1 or parsed.limit_s <= 0:
        raise ValueError("--jobs and --limit-s must be positive")
    report = aot.run(
        archs,
        ops=parsed.op,
        is_main_only=parsed.main,
        has_candidates=parsed.candidates,
        num_jobs=parsed.jobs,
        limit_s=parsed.limit_s,
        on_progress=_told_every_so_often,
    )
    print(aot.shown(report))
    if parsed.json is not None:
        parsed.json.write_text(aot.as_json(report) + "\n", encoding="utf-8")
    if parsed.roofline:
        print()
        _roofline(parsed)
    return 0 if report.is_good else BREACHED


def _told_every_so_often(num_done: int, num_all: int) -> None:
    if num_done % TOLD_EVERY == 0:
        print(f"kernels: {num_done} of {num_all} compiled", file=sys.stderr, flush=True)


def _roofline(parsed: argparse.Namespace) -> int:
    archs = tuple(parsed.arch or BUDGETED)
    print(roofline.cases_shown(archs, parsed.op))
    print()
    print(roofline.steps_shown(list(MODELS.values()), [find(arch) for arch in archs]))
    return 0


def _bench(parsed: argparse.Namespace) -> int:
    """Ends in time even if a kernel never does: then with the results so far."""
    if parsed.limit_s <= bench.RESERVED_S:
        raise ValueError(f"--limit-s must be more than {bench.RESERVED_S:g}")
    device = _interpreted() if parsed.interpreted else _gpu("bench", EventTimer)
    wanted = bench.chosen(device.target, ops=parsed.op, is_small=parsed.interpreted)
    progress = bench.Progress()

    def give_up() -> None:
        print(f"kernels: no end in {parsed.limit_s:g} s, at {progress.at}", file=sys.stderr)
        _tell(progress, device.chip, parsed.json)
        sys.stdout.flush()
        os._exit(HUNG)

    watchdog = _watchdog(parsed.limit_s, give_up)
    try:
        bench.run(wanted, device, limit_s=parsed.limit_s, progress=progress)
    finally:
        watchdog.cancel()
    _tell(progress, device.chip, parsed.json)
    is_good = all(each.verdict is None or each.verdict.is_right for each in progress.results)
    return 0 if is_good else BREACHED


def _tell(progress: bench.Progress, chip: str, file: Path | None) -> None:
    if file is not None:
        text = bench.as_json(progress.results, progress.ceilings, chip)
        file.write_text(text + "\n", encoding="utf-8")
    print(bench.shown(progress.results, progress.ceilings, chip))


def _watchdog(limit_s: float, give_up: Callable[[], None]) -> threading.Timer:
    watchdog = threading.Timer(limit_s, give_up)
    watchdog.daemon = True
    watchdog.start()
    return watchdog


def _tune(parsed: argparse.Namespace) -> int:
    """Good if all is done, whatever was kept; else what is left is told."""
    if parsed.limit_s < tune.LIMIT_S_MIN:
        raise ValueError(f"--limit-s must be at least {tune.LIMIT_S_MIN:g}: a trial may take half")
    # Its children have timers; this process leaves the GPU's memory alone.
    device = _interpreted() if parsed.interpreted else _gpu("tune", ClockTimer)
    out = parsed.out or _file_of(device, is_interpreted=parsed.interpreted)
    tuned_file.check(out, device.target.arch)
    progress = tuned_file.Progress(out, device.chip)
    wanted = tune.questions(device, ops=parsed.op, is_small=parsed.interpreted)
    is_done = tune.run(wanted, device, progress, out, limit_s=parsed.limit_s)
    choices = progress.choices
    num_left = sum(not progress.has(each.question) for each in wanted)
    num_kept = sum(each.is_kept for each in choices)
    print(
        f"{device.chip}: {len(choices)} questions tried, {num_kept} better than the default by "
        f"{tune.GAIN_MIN:.0%} or more, twice; {out} has them"
        if num_kept
        else f"{device.chip}: {len(choices)} questions tried, the defaults stay; {out} is as it was"
    )
    if is_done:
        progress.forget()
    else:
        print(f"{num_left} questions are left: run the same command again to go on")
    print(tune.shown(choices))
    return 0 if is_done else UNFINISHED


def _file_of(device: bench.Device, *, is_interpreted: bool) -> Path:
    """Raises ValueError where what is found would serve another chip, or none."""
    arch = device.target.arch
    if is_interpreted:
        raise ValueError("times of an interpreter say nothing; give --out FILE to try the command")
    if (here := arch_of(torch.cuda.current_device())) != arch:
        raise ValueError(
            f"this GPU is {here}, which has no line in kernels/targets.py and borrows the choices "
            f"of {arch}: what is best here would be served there. Give --out FILE"
        )
    return Path(kernels.__file__).parent / "ops/tuned" / f"{arch}.json"


def _gpu(command: str, timer: Callable[[], Timer]) -> bench.Device:
    if not torch.cuda.is_available():
        raise RuntimeError(
            f"torch {torch.__version__} sees no GPU, and {command} measures on one; "
            "`python -m kernels aot` compiles without, `make test` checks results without"
        )
    if IS_INTERPRETED:
        raise RuntimeError("TRITON_INTERPRET=1 is set; unset it to measure on the GPU")
    chip = torch.cuda.get_device_properties(torch.cuda.current_device()).name
    return bench.Device("cuda", chip, current_target(), timer(), time.monotonic)


def _interpreted() -> bench.Device:
    if not IS_INTERPRETED:
        raise RuntimeError("--interpreted needs TRITON_INTERPRET=1 set before it starts")
    return bench.Device(
        *("cpu", "no GPU (interpreted)", current_target(), ClockTimer(), time.monotonic),
        ceiling_sizes=TRIED_SIZES,
    )
