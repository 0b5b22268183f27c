"""`make bench`: runs every bench_*.py in this folder, one by one. Arguments choose some."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

FOLDER = Path(__file__).resolve().parent


def main(chosen: list[str]) -> int:
    scripts = sorted(FOLDER.glob("bench_*.py"))
    if chosen:
        scripts = [each for each in scripts if any(name in each.stem for name in chosen)]
    if not scripts:
        known = ", ".join(each.stem.removeprefix("bench_") for each in FOLDER.glob("bench_*.py"))
        print(f"no such benchmark; there are: {known}", file=sys.stderr)
        return 2
    environ = {**os.environ, "PYTHONPATH": str(FOLDER.parents[1])}
    worst = 0
    for script in scripts:
        print(f"\n== {script.stem.removeprefix('bench_')} ==", flush=True)
        worst = max(worst, subprocess.run([sys.executable, str(script)], env=environ).returncode)
    return worst


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
