"""Work for child processes: answers, errors, deaths and hangs; few imports, as each makes them."""

from __future__ import annotations

import os
import signal
import subprocess
import time
from pathlib import Path


def doubled(value: int) -> int:
    return 2 * value


def fails(value: int) -> int:
    raise RuntimeError(f"no {value}\nin the middle\n\nat last\n")


def dies(value: int) -> int:
    os._exit(value)


def is_killed(value: int) -> int:
    os.kill(os.getpid(), signal.SIGSEGV)
    return value


def hangs_if_odd(value: int) -> int:
    while value % 2:
        time.sleep(0.01)
    return value


def hangs_with_a_child_of_its_own(file: str) -> None:
    child = subprocess.Popen(["sleep", "60"])
    Path(file).write_text(str(child.pid))
    time.sleep(60)
