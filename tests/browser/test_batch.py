"""The page Batch in Debian's Chromium, before a real gateway and providers with batch APIs.

With LOOPROUTER_SCREENSHOTS=FOLDER the pictures are kept there.
"""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from tests.browser.node_script import run_suite
from tests.run_tests import browser_packages
from tests.support.batch_world import batch_world
from tests.support.gateway_process import looprouter

pytestmark = [pytest.mark.e2e, pytest.mark.browser, pytest.mark.slow]
SUITE_S_MAX = 200
TESTS_MIN = 4
PICTURES = 8


@pytest.mark.timeout(SUITE_S_MAX + 120)
def test_batch_page_in_chromium(tmp_path: Path) -> None:
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
        passed = run_suite("batch", world, within_s=SUITE_S_MAX)

    assert passed == TESTS_MIN
    assert len(list(images.glob("batch*.png"))) == PICTURES
