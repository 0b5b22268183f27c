"""Runs what takes pictures of pages: a script in `node/` that is told of its world."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from collections.abc import Mapping
from pathlib import Path


def run_node(script: str, world: Mapping[str, object]) -> None:
    """To its end; raises CalledProcessError where it fails."""
    subprocess.run(
        [shutil.which("node") or "node", script],
        cwd=Path(__file__).parent / "node",
        env={**os.environ, "LOOPROUTER_WORLD": json.dumps(world)},
        check=True,
    )
