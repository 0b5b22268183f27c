"""What `looprouter serve` says on a first start, when nobody could get in yet."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from gateway.cli.serve import _missing
from gateway.keys.service import create_key
from gateway.keys.tenants import ensure_tenant
from gateway.keys.wanted import NewKey
from tests.support.databases import sqlite_store

pytestmark = pytest.mark.anyio


async def test_a_first_start_names_the_commands_that_make_a_key_and_an_admin(
    tmp_path: Path,
) -> None:
    async with sqlite_store(tmp_path) as store:
        first = await _missing(store)
        now = time.time()
        tenant_id = await ensure_tenant(store, "other", "team", now=now)
        await create_key(store, b"p" * 32, tenant_id, NewKey(name="k"), now=now)
        later = await _missing(store)

    assert "looprouter keys create" in first[0]
    assert "looprouter admins create" in first[1]
    assert later == ()
