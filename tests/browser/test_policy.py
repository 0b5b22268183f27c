"""The page Policy in Debian's Chromium, before a real `looprouter up`; the suite is in `node/`."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from pathlib import Path

import pytest

from tests.run_tests import browser_packages
from tests.support.up_process import running_up

pytestmark = [pytest.mark.e2e, pytest.mark.browser, pytest.mark.slow]
SUITE_S_MAX = 400
TESTS_MIN = 25


@pytest.mark.timeout(SUITE_S_MAX + 120)
def test_the_page_is_edited_tried_published_and_rolled_back(tmp_path: Path) -> None:
    node = shutil.which("node")
    assert node is not None
    images = Path(os.environ.get("LOOPROUTER_SCREENSHOTS") or tmp_path).resolve()

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
            "policy": str(home / "demo-policy.yaml"),
            "images": str(images),
            "chromium": chromium,
        }
        done = subprocess.run(
            [node, "--test", "--test-reporter=spec", "policy.test.mjs"],
            cwd=Path(__file__).parent / "node",
            env={**os.environ, "LOOPROUTER_WORLD": json.dumps(world), "NO_COLOR": "1"},
            capture_output=True,
            text=True,
            timeout=SUITE_S_MAX,
            check=False,
        )

    counts = dict(
        line.removeprefix("ℹ ").split(" ")[:2]
        for line in done.stdout.splitlines()
        if line.startswith("ℹ ")
    )
    assert done.returncode == 0, f"{done.stdout}\n{done.stderr}"
    assert counts["fail"] == counts["skipped"] == counts["cancelled"] == "0", done.stdout
    assert int(counts["pass"]) == int(counts["tests"]) >= TESTS_MIN, done.stdout
