"""The process that tries one op: `python -m kernels.doctor.child`, a task in, a report out.

It imports what it needs before it is given its task, so that its time limit is the op's alone.
"""

from __future__ import annotations

import os
import sys

import msgspec

from kernels.doctor.checking import Task, check

READY = b"ready\n"


def main() -> None:
    # What libraries print goes to standard error; the pipe is for the report alone.
    answers = os.dup(1)
    os.dup2(2, 1)
    os.write(answers, READY)
    line = sys.stdin.buffer.readline()
    if not line:
        return  # nobody needs this process any more
    report = check(msgspec.json.decode(line, type=Task))
    os.write(answers, msgspec.json.encode(report) + b"\n")


if __name__ == "__main__":
    main()
