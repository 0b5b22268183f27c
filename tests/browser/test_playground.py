"""Race and Models & endpoints in Debian's Chromium, before a real `looprouter up --demo`."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest

from tests.browser.node_script import run_suite
from tests.run_tests import browser_packages
from tests.support.up_process import running_up

pytestmark = [pytest.mark.e2e, pytest.mark.browser, pytest.mark.slow]
SUITE_S_MAX = 280
TESTS_MIN = 9
PICTURES_MIN = 8


@pytest.mark.timeout(SUITE_S_MAX + 120)
def test_race_and_pause_in_chromium(tmp_path: Path) -> None:
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
        passed = run_suite("playground", world, within_s=SUITE_S_MAX)

    assert passed >= TESTS_MIN
    assert len(list(images.glob("playground-*.png"))) >= PICTURES_MIN
