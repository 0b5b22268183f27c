"""The page Policy in Debian's Chromium, before a real `looprouter up`; the suite is in `node/`."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tests.browser.node_script import run_suite
from tests.run_tests import browser_packages
from tests.support.up_process import running_up

pytestmark = [pytest.mark.e2e, pytest.mark.browser, pytest.mark.slow]
SUITE_S_MAX = 400
TESTS_MIN = 25


@pytest.mark.timeout(SUITE_S_MAX + 120)
def test_the_page_is_edited_tried_published_and_rolled_back(tmp_path: Path) -> None:
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
        passed = run_suite("policy", world, within_s=SUITE_S_MAX)

    assert passed >= TESTS_MIN
