"""The page Batch in Debian's Chromium, before a real gateway and providers with batch APIs.

With LOOPROUTER_SCREENSHOTS=FOLDER the pictures are kept there.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from pathlib import Path

import pytest

from tests.run_tests import browser_packages
from tests.support.batch_world import batch_world
from tests.support.gateway_process import looprouter

pytestmark = [pytest.mark.e2e, pytest.mark.browser, pytest.mark.slow]
SUITE_S_MAX = 200
TESTS_MIN = 4
PICTURES = 8


@pytest.mark.timeout(SUITE_S_MAX + 120)
def test_batch_page_in_chromium(tmp_path: Path) -> None:
    node = shutil.which("node")
    assert node is not None

    images = Path(os.environ.get("LOOPROUTER_SCREENSHOTS") or tmp_path / "images").resolve()
    images.mkdir(exist_ok=True)
    home = tmp_path / "home"
    with browser_packages() as chromium, batch_world(home) as gateway:
        made = looprouter("admins", "create", "ada", "--role", "operator", "--json", home=home)
        world = {
            "base_url": gateway.base_url,
            "admin": "ada",
            "password": json.loads(made)["password"],
            "images": str(images),
            "chromium": chromium,
        }
        done = subprocess.run(
            [node, "--test", "--test-reporter=spec", "batch.test.mjs"],
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
    assert int(counts["pass"]) == int(counts["tests"]) == TESTS_MIN, done.stdout
    assert len(list(images.glob("batch*.png"))) == PICTURES
