"""Runs what is in `node/`: scripts that take pictures and suites of tests, told of their world."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
from collections.abc import Mapping
from pathlib import Path

FOLDER = Path(__file__).parent / "node"
_COUNT = re.compile(r"^ℹ (\w+) (\d+)$", re.MULTILINE)


def run_node(script: str, world: Mapping[str, object]) -> None:
    """To its end; raises CalledProcessError where it fails."""
    subprocess.run([_node(), script], cwd=FOLDER, env=_environ(world), check=True)


def run_suite(suite: str, world: Mapping[str, object], *, within_s: float) -> int:
    """How many tests passed; fails the caller's test unless all of them did, none skipped."""
    done = subprocess.run(
        [_node(), "--test", "--test-reporter=spec", f"{suite}.test.mjs"],
        cwd=FOLDER,
        env={**_environ(world), "NO_COLOR": "1"},
        capture_output=True,
        text=True,
        timeout=within_s,
        check=False,
    )
    counts = dict(_COUNT.findall(done.stdout))
    assert done.returncode == 0, f"{done.stdout}\n{done.stderr}"
    assert counts["fail"] == counts["skipped"] == counts["cancelled"] == "0", done.stdout
    assert counts["pass"] == counts["tests"], done.stdout
    return int(counts["pass"])


def _node() -> str:
    node = shutil.which("node")
    assert node is not None
    return node


def _environ(world: Mapping[str, object]) -> dict[str, str]:
    return {**os.environ, "LOOPROUTER_WORLD": json.dumps(world)}
