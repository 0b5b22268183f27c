"""`make check`: lint, types, import contracts and the quick tests, in under a minute."""

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
# Two processes of pytest, not one with two workers: each collects only its own half.
HALVES = (
    ("tests of the gateway and the tree", ("tests/unit", "tests/architecture")),
    ("tests of the backend", ("tests/backend/unit", "tests/kernels")),
)
PYTHON_TREES = ("gateway", "backend", "kernels", "migrations", "tests", "deploy")

# The longest first, so that the others fill the second core beside it.
CHECKS: tuple[tuple[str, list[str]], ...] = (
    *(
        (
            name,
            [
                sys.executable,
                "-m",
                "pytest",
                *[t for t in trees if (ROOT / t).is_dir()],
                "-m",
                QUICK,
            ],
        )
        for name, trees in HALVES
    ),
    ("types", [str(BIN / "mypy")]),
    ("import contracts", [str(BIN / "lint-imports"), "--cache-dir", ".import_linter_cache"]),
    ("lint", [str(BIN / "ruff"), "check", *PYTHON_TREES]),
)


def run(check: tuple[str, list[str]]) -> tuple[str, int, float, str]:
    name, command = check
    started_s = time.monotonic()
    environ = {**os.environ, "PYTHONPATH": str(ROOT), "LOOPROUTER_TEST_PROFILE": "check"}
    # Compiling every test anew costs a quarter of the minute.
    environ.pop("PYTHONDONTWRITEBYTECODE", None)
    done = subprocess.run(
        command, cwd=ROOT, env=environ, capture_output=True, text=True, check=False
    )
    return name, done.returncode, time.monotonic() - started_s, done.stdout + done.stderr


def main() -> int:
    started_s = time.monotonic()
    num_failed = 0
    with ThreadPoolExecutor(AT_ONCE) as pool:
        for name, status, took_s, output in pool.map(run, CHECKS):
            print(f"{'ok    ' if status == 0 else 'FAILED'} {name} ({took_s:.0f} s)", flush=True)
            if status:
                num_failed += 1
                print(output, flush=True)
    took_s = time.monotonic() - started_s
    slow = f"; more than the {SECONDS_MAX:.0f} s it may take" if took_s > SECONDS_MAX else ""
    print(f"checked in {took_s:.0f} s{slow}")
    return 1 if num_failed else 0


if __name__ == "__main__":
    sys.exit(main())
