"""Race and Models & endpoints in Debian's Chromium, before a real `looprouter up --demo`."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.run_tests import browser_packages
from tests.support.up_process import running_up

pytestmark = [pytest.mark.e2e, pytest.mark.browser, pytest.mark.slow]
SUITE_S_MAX = 280
TESTS_MIN = 9
PICTURES_MIN = 8


@pytest.mark.timeout(SUITE_S_MAX + 120)
def test_race_and_pause_in_chromium(tmp_path: Path) -> None:
    node = shutil.which("node")
    assert node is not None

    images = Path(os.environ.get("LOOPROUTER_SCREENSHOTS") or tmp_path / "images").resolve()
    images.mkdir(exist_ok=True)
    home = tmp_path / "home"
    home.mkdir()
    with (
        browser_packages() as chromium,
        running_up(home, "--demo", "--lite", "--port", "0") as up,
    ):
        admin, password = up.login
        world = {
            "base_url": up.base_url,
            "key": up.key,
            "admin": admin,
            "password": password,
            "images": str(images),
            "chromium": chromium,
            "python": sys.executable,
            "folder": str(tmp_path),
        }
        done = subprocess.run(
            [node, "--test", "--test-reporter=spec", "playground.test.mjs"],
            cwd=Path(__file__).parent / "node",
            env={**os.environ, "LOOPROUTER_WORLD": json.dumps(world), "NO_COLOR": "1"},
            capture_output=True,
            text=True,
            timeout=SUITE_S_MAX,
            check=False,
        )

    said = dict(re.findall(r"^ℹ (\w+) (\d+)$", done.stdout, re.MULTILINE))
    assert done.returncode == 0, f"{done.stdout}\n{done.stderr}"
    assert said["fail"] == said["skipped"] == said["cancelled"] == "0", done.stdout
    assert int(said["pass"]) == int(said["tests"]) >= TESTS_MIN, done.stdout
    assert len(list(images.glob("playground-*.png"))) >= PICTURES_MIN
