"""The process that tries one op: `python -m kernels.doctor.child`, a task in, a report out.

It imports what it needs before it is given its task, so that its time limit is the op's alone.
"""

from __future__ import annotations

import math
import os
import signal
import sys

import msgspec

from kernels.doctor.checking import Task, check

READY = b"ready\n"
ALONE_S = 5  # its parent comes first


def main() -> None:
    # What libraries print goes to standard error; the pipe is for the report alone.
    answers = os.dup(1)
    os.dup2(2, 1)
    os.write(answers, READY)
    line = sys.stdin.buffer.readline()
    if not line:
        return  # nobody needs this process any more
    task = msgspec.json.decode(line, type=Task)
    # Whatever it hangs in: the system ends it, no handler of Python's is waited for.
    signal.alarm(math.ceil(task.limit_s) + ALONE_S)
    report = check(task)
    os.write(answers, msgspec.json.encode(report) + b"\n")


if __name__ == "__main__":
    main()
