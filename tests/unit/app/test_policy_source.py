"""A policy file that is still being written is not taken for one."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from gateway.app import policy_source
from gateway.app.policy_source import FilePolicySource
from gateway.policy.load import Policy

HEAD = 'version: 1\nproviders:\n  a: {base_url: "https://a.example/v1"}\nmodels:\n'
FIRST = HEAD + "  one:\n    - {provider: a, model: m}\n"
SECOND = FIRST + "  two:\n    - {provider: a, model: m}\n"


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


@pytest.mark.anyio
async def test_half_a_file_is_not_a_policy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "policy.yaml"
    path.write_text(FIRST + "# as it began\n")
    source = FilePolicySource(path, {})
    adopted: list[Policy] = []

    async def on_change(policy: Policy) -> None:
        adopted.append(policy)

    monkeypatch.setattr(policy_source, "SETTLED_S", 0.2)
    with path.open("w") as handle:
        handle.write(FIRST)  # a whole policy by itself
        handle.flush()
        reading = asyncio.create_task(source.reload(on_change))
        await asyncio.sleep(0.05)
        handle.write(SECOND.removeprefix(FIRST))
    assert await reading is False
    assert adopted == []

    assert await source.reload(on_change) is True
    assert source.text == SECOND.encode()
