"""The page Backend in Debian's Chromium, before a real gateway and a real backend server.

With LOOPROUTER_SCREENSHOTS=FOLDER the pictures are kept there.
"""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from tests.browser.node_script import run_suite
from tests.run_tests import browser_packages
from tests.support.backend_process import TINY, running_backend
from tests.support.gateway_process import looprouter, running_gateway
from tests.support.spelling_model import save_spelling_model

pytestmark = [pytest.mark.e2e, pytest.mark.browser, pytest.mark.slow]
SUITE_S_MAX = 150
TESTS_MIN = 7
PICTURES = 5
KEY = "a-key-of-the-backend"
POLICY = """
version: 1
providers:
  own:
    api: openai
    base_url: "{base_url}"
    network: private
    key_env: OWN_KEY
    self_hosted: {{billing: owned, watts: 30, usd_per_kwh: 0.20, tokens_per_hour: 100000}}
models:
  words:
    - {{provider: own, model: {model}, surfaces: [chat, completions]}}
routes: [{{name: all, prefer: {{by: fastest}}}}]
"""


@pytest.mark.timeout(SUITE_S_MAX + 120)
def test_backend_page_in_chromium(tmp_path: Path) -> None:
    images = Path(os.environ.get("LOOPROUTER_SCREENSHOTS") or tmp_path / "images").resolve()
    images.mkdir(exist_ok=True)
    home = tmp_path / "home"
    home.mkdir()
    save_spelling_model(tmp_path / "spelling")
    options = (*TINY, "--speculation", "ngram", "--drafts", "4")
    with (
        browser_packages() as chromium,
        running_backend(tmp_path / "spelling", tmp_path / "own", *options, key=KEY) as backend,
        running_gateway(
            POLICY.format(base_url=backend.v1, model=backend.model), home, environ={"OWN_KEY": KEY}
        ) as gateway,
    ):
        made = looprouter("admins", "create", "ada", "--role", "viewer", "--json", home=home)
        world = {
            "base_url": gateway.v1.removesuffix("/v1"),
            "key": gateway.key,
            "admin": "ada",
            "password": json.loads(made)["password"],
            "images": str(images),
            "chromium": chromium,
            "prompts": ["words", "more words"],
            "tokens": 40,
            "method": "ngram",
            "backend_pid": backend.process.pid,
        }
        passed = run_suite("backend", world, within_s=SUITE_S_MAX)

    assert passed >= TESTS_MIN
    assert len(list(images.glob("backend-*.png"))) >= PICTURES
