"""The official openai npm package against a running gateway; its suites are in `node/`."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from collections.abc import Iterator

import pytest

from tests.run_tests import node_packages
from tests.support.sdk_world import SdkWorld

pytestmark = [pytest.mark.e2e, pytest.mark.node]
SUITE_S_MAX = 240
TESTS_MIN = {"surfaces": 15, "failures": 10}


@pytest.fixture(scope="module")
def node_modules() -> Iterator[str]:
    with node_packages() as folder:
        yield folder


@pytest.mark.parametrize("suite", sorted(TESTS_MIN))
def test_node_suite_passes(world: SdkWorld, node_modules: str, suite: str) -> None:
    node = shutil.which("node")
    assert node is not None
    facts = {
        "base_url": world.gateway.base_url,
        "keys": dict(world.keys),
        "providers": {
            name: provider.base_url.removesuffix("/v1")
            for name, provider in world.providers.by_name.items()
        },
    }

    done = subprocess.run(
        [node, "--test", "--test-reporter=spec", f"{suite}.test.js"],
        cwd=node_modules,
        env={**os.environ, "LOOPROUTER_WORLD": json.dumps(facts), "NO_COLOR": "1"},
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
