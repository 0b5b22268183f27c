"""The dashboard in Debian's Chromium, before a real `looprouter up`; the suites are in `node/`.

With LOOPROUTER_SCREENSHOTS=FOLDER the pictures of the pages are kept there.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.browser.node_script import run_suite
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
    passed = run_suite(suite, {**world, "chromium": chromium}, within_s=SUITE_S_MAX)

    assert passed >= TESTS_MIN[suite]
    pictures = list(Path(str(world["images"])).glob("*.png"))
    assert len(pictures) > 4 * len(PAGES)
    assert all(0 < path.stat().st_size < IMAGE_BYTES_MAX for path in pictures)
