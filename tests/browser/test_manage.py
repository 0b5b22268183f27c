"""Keys, Requests and Audit & settings in Debian's Chromium, before a real `looprouter up --demo`.

With LOOPROUTER_SCREENSHOTS=FOLDER the pictures of the pages are kept there.
"""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tests.browser.node_script import run_suite
from tests.run_tests import browser_packages
from tests.support.up_process import running_up

pytestmark = [pytest.mark.e2e, pytest.mark.browser, pytest.mark.slow]
SUITE_S_MAX = 200
TESTS_MIN = 8
PICTURES_MIN = 10


@pytest.mark.timeout(SUITE_S_MAX + 120)
def test_keys_requests_and_settings_in_chromium(tmp_path: Path) -> None:
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
        }
        passed = run_suite("manage", world, within_s=SUITE_S_MAX)

    assert passed >= TESTS_MIN
    assert len(list(images.glob("*.png"))) >= PICTURES_MIN
