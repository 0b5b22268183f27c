"""`python -m kernels`: compile ahead of time, bound, measure."""

from __future__ import annotations

import sys

if __name__ == "__main__":
    from kernels.tools.commands import main  # here: child processes load this file too

    sys.exit(main(sys.argv[1:]))
