"""`make check`: lint, types, import contracts and the quick tests, in under a minute.

`--static` leaves the tests out, for who runs all of them anyway.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
BIN = Path(sys.executable).parent
SECONDS_MAX = 60.0
AT_ONCE = 2

QUICK = "not slow and not e2e and not postgres and not redis and not node"
if not any(map(shutil.which, ("c++", "g++", "clang++"))):
    QUICK += " and not compiler"
# Processes of pytest, not one with two workers: each collects only its own part. The last one's
# kernels are interpreted, which holds for a whole process; it tries one case of every op.
PARTS: tuple[tuple[str, tuple[str, ...], dict[str, str]], ...] = (
    ("tests of the gateway and the tree", ("tests/unit", "tests/architecture"), {}),
    ("tests of the backend and the kernels", ("tests/backend/unit", "tests/kernels"), {}),
    ("ops against their truth", ("tests/kernels/ops/test_cases.py",), {"TRITON_INTERPRET": "1"}),
)
PYTHON_TREES = ("gateway", "backend", "kernels", "migrations", "tests", "deploy")

Check = tuple[str, list[str], dict[str, str]]

STATIC: tuple[Check, ...] = (
    ("types", [str(BIN / "mypy")], {}),
    ("import contracts", [str(BIN / "lint-imports"), "--cache-dir", ".import_linter_cache"], {}),
    ("lint", [str(BIN / "ruff"), "check", *PYTHON_TREES], {}),
)
# The longest first, so that the others fill the second core beside it.
CHECKS: tuple[Check, ...] = (
    *(
        (name, [sys.executable, "-m", "pytest", *trees, "-m", QUICK], environ)
        for name, trees, environ in PARTS
    ),
    *STATIC,
)


def run(check: Check) -> tuple[str, int, float, str]:
    name, command, more = check
    started_s = time.monotonic()
    quick = {"PYTHONPATH": str(ROOT), "LOOPROUTER_TEST_PROFILE": "check"}
    environ = {**os.environ, **quick, **more}
    # Compiling every test anew costs a quarter of the minute.
    environ.pop("PYTHONDONTWRITEBYTECODE", None)
    done = subprocess.run(
        command, cwd=ROOT, env=environ, capture_output=True, text=True, check=False
    )
    return name, done.returncode, time.monotonic() - started_s, done.stdout + done.stderr


def main(arguments: list[str]) -> int:
    if set(arguments) - {"--static"}:
        print(f"make check knows ARGS=--static only, not {' '.join(arguments)}")
        return 2
    started_s = time.monotonic()
    num_failed = 0
    with ThreadPoolExecutor(AT_ONCE) as pool:
        for name, status, took_s, output in pool.map(run, STATIC if arguments else CHECKS):
            print(f"{'ok    ' if status == 0 else 'FAILED'} {name} ({took_s:.0f} s)", flush=True)
            if status:
                num_failed += 1
                print(output, flush=True)
    took_s = time.monotonic() - started_s
    is_slow = took_s > SECONDS_MAX and not arguments
    slow = f"; more than the {SECONDS_MAX:.0f} s it may take" if is_slow else ""
    print(f"checked in {took_s:.0f} s{slow}")
    return 1 if num_failed else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
