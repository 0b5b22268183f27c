"""The dashboard in Debian's Chromium, before a real `looprouter up`; the suites are in `node/`.

With LOOPROUTER_SCREENSHOTS=FOLDER the pictures of the pages are kept there.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.run_tests import browser_packages
from tests.support.up_process import running_up

pytestmark = [pytest.mark.e2e, pytest.mark.browser, pytest.mark.slow]
SUITE_S_MAX = 280
PAGES = ("/now", "/endpoints", "/requests", "/spend")
TESTS_MIN = {"board": 5 + 4 * len(PAGES)}
IMAGE_BYTES_MAX = 300_000


@pytest.fixture(scope="module")
def chromium() -> Iterator[str]:
    with browser_packages() as found:
        yield found


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, object]]:
    home = tmp_path_factory.mktemp("home")
    images = os.environ.get("LOOPROUTER_SCREENSHOTS") or tmp_path_factory.mktemp("images")
    with running_up(home, "--demo", "--lite", "--port", "0") as up:
        admin, password = up.login
        yield {
            "base_url": up.base_url,
            "key": up.key,
            "admin": admin,
            "password": password,
            "paths": PAGES,
            "images": str(Path(images).resolve()),
        }


@pytest.mark.timeout(SUITE_S_MAX + 120)
@pytest.mark.parametrize("suite", sorted(TESTS_MIN))
def test_suite_passes_in_chromium(world: dict[str, object], chromium: str, suite: str) -> None:
    node = shutil.which("node")
    assert node is not None

    done = subprocess.run(
        [node, "--test", "--test-reporter=spec", f"{suite}.test.mjs"],
        cwd=Path(__file__).parent / "node",
        env={
            **os.environ,
            "LOOPROUTER_WORLD": json.dumps({**world, "chromium": chromium}),
            "NO_COLOR": "1",
        },
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
    assert int(counts["pass"]) == int(counts["tests"]) >= TESTS_MIN[suite], done.stdout
    pictures = list(Path(str(world["images"])).glob("*.png"))
    assert len(pictures) > 4 * len(PAGES)
    assert all(0 < path.stat().st_size < IMAGE_BYTES_MAX for path in pictures)
