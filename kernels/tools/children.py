"""Work in child processes of a server that has loaded everything once, each under a time limit.

A compiler that hangs or a kernel that takes the process with it costs one answer, not the run.
"""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import signal
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess
from typing import Any

ERROR_CHARACTERS_MAX = 500
_END_S = 5.0  # for a child that has answered


@dataclass(frozen=True, slots=True)
class Outcome:
    """`error` is empty where there is a value."""

    value: Any
    error: str
    took_s: float


@dataclass(frozen=True, slots=True)
class _Child:
    index: int
    process: BaseProcess
    started_s: float


def each_in_a_child(
    work: Callable[[Any], Any],
    arguments: Sequence[Any],
    *,
    limit_s: float,
    num_at_once: int,
    preload: Sequence[str] = (),
) -> Iterator[tuple[int, Outcome]]:
    """`work(argument)` for each, in any order of ending: (its index, what came of it).

    `work` is a function of a module, and it and its arguments and values must be picklable. The
    server starts at the first use in a process and keeps the `preload` modules of that time. What
    still runs when the iterator is closed is ended.
    """
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(list(preload))
    waiting = deque(range(len(arguments)))
    running: dict[Connection, _Child] = {}
    try:
        while waiting or running:
            while waiting and len(running) < num_at_once:
                index = waiting.popleft()
                receiver, sender = context.Pipe(duplex=False)
                process = context.Process(
                    target=_in_child, args=(work, arguments[index], sender), daemon=True
                )
                process.start()
                sender.close()
                running[receiver] = _Child(index, process, time.monotonic())
            yield from _ended(running, limit_s)
    finally:
        for receiver, child in running.items():
            _kill(child.process)
            receiver.close()


def _ended(running: dict[Connection, _Child], limit_s: float) -> Iterator[tuple[int, Outcome]]:
    """Waits until a child has answered, died or reached its limit."""
    soonest_s = min(child.started_s for child in running.values()) + limit_s
    ready = wait(list(running), timeout=max(0.0, soonest_s - time.monotonic()))
    now_s = time.monotonic()
    for receiver, child in list(running.items()):
        took_s = now_s - child.started_s
        if receiver in ready:
            outcome = _answer(receiver, child.process, took_s)
        elif took_s >= limit_s:
            _kill(child.process)
            outcome = Outcome(None, f"no end after {limit_s:g} s; it was killed", took_s)
        else:
            continue
        del running[receiver]
        receiver.close()
        yield child.index, outcome


def _answer(receiver: Connection, process: BaseProcess, took_s: float) -> Outcome:
    try:
        value, error = receiver.recv()
    except EOFError:
        process.join()
        code = process.exitcode or 0
        how = f"by signal {-code}" if code < 0 else f"with status {code}"
        return Outcome(None, f"the process ended {how} and gave no answer", took_s)
    process.join(_END_S)
    if process.is_alive():
        _kill(process)
    return Outcome(value, error, took_s)


def _in_child(work: Callable[[Any], Any], argument: Any, sender: Connection) -> None:
    # A group of its own, so that a compiler's own children end with it.
    os.setsid()
    try:
        answer = (work(argument), "")
    except Exception as error:
        answer = (None, f"{type(error).__name__}: {_shortened(str(error))}")
    sender.send(answer)


def _shortened(message: str) -> str:
    """One line: compilers say first where it is and last what it is."""
    lines = [line.strip() for line in message.splitlines() if line.strip()]
    return " ... ".join(dict.fromkeys((*lines[:1], *lines[-1:])))[:ERROR_CHARACTERS_MAX]


def _kill(process: BaseProcess) -> None:
    if process.pid is not None:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(process.pid, signal.SIGKILL)  # not there if it has not come to setsid
    process.kill()
    process.join()
