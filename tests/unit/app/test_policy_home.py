"""Where the policy lives: one may replace what lies there, and only what they have seen."""

from __future__ import annotations

import asyncio
import errno
import os
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from gateway.app import policy_home
from gateway.app.compose import open_policy, running_gateway, running_store
from gateway.app.policy_home import FileHome, StoreHome
from gateway.app.policy_source import FilePolicySource
from gateway.errors import Conflict
from gateway.pipeline import Gateway
from gateway.policy.home import Change, PolicyHome
from gateway.policy.load import version_of
from gateway.settings import Settings
from gateway.store.engine import Store
from gateway.store.policies import (
    IMPORTED,
    PUBLISHED,
    activate_policy,
    active_policy,
    list_policy_changes,
)

pytestmark = pytest.mark.anyio
TEXT = b"""\
version: 1  # mine
providers:
  a: {base_url: "https://a.example/v1"}
models:
  one: [{provider: a, model: m, price: {input: 1, output: 2}}]
"""


def change(text: bytes, base: bytes, actor: str = "admin:ada") -> Change:
    return Change(
        text=text,
        version=version_of(text),
        base=version_of(base),
        actor=actor,
        action=PUBLISHED,
        note="why",
    )


@asynccontextmanager
async def serving(tmp_path: Path, policy: str) -> AsyncIterator[tuple[Gateway, Store]]:
    settings = Settings.from_environment({"LOOPROUTER_HOME": str(tmp_path)})
    async with running_store(settings) as store:
        async with store.begin() as connection:
            await activate_policy(
                connection,
                version=version_of(TEXT),
                text=TEXT.decode(),
                source="import",
                now=time.time(),
                actor="cli",
                action=IMPORTED,
            )
        source = await open_policy(settings, store, policy)
        async with running_gateway(settings, store, source) as (gateway, _):
            yield gateway, store


async def test_the_database_is_the_one_source_where_it_is_served(tmp_path: Path) -> None:
    text = TEXT + b"retry: {max: 1}\n"
    async with serving(tmp_path, "store") as (gateway, store):
        home = gateway.policy_home
        assert isinstance(home, StoreHome)
        found = (home.kind, home.place, await home.locked(), (await home.held()).version)
        await home.publish(change(text, TEXT))
        in_force = gateway.policy()
        with pytest.raises(Conflict, match="another than the one you began with") as late:
            await home.publish(change(TEXT + b"# late\n", TEXT))
        async with store.read() as connection:
            kept = await active_policy(connection)
            told = await list_policy_changes(connection)

    assert found == ("store", "", "", version_of(TEXT))
    assert in_force.version == version_of(text)
    assert in_force.retry.attempts_max == 1
    assert late.value.detail == {"version": version_of(text)}
    assert kept is not None
    assert kept.text.encode() == text
    assert [(each.actor, each.action, each.note) for each in told] == [
        ("admin:ada", "policy.publish", "why"),
        ("cli", "policy.import", ""),
    ]


@pytest.mark.parametrize("kind", ["file", "store"])
async def test_of_two_who_began_with_the_same_text_one_is_refused(
    tmp_path: Path, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(policy_home, "LOOKS_MAX", 25)  # nobody follows the second home
    file = tmp_path / "policy.yaml"
    file.write_bytes(TEXT)
    async with serving(tmp_path, str(file) if kind == "file" else kind) as (gateway, store):
        ours = gateway.policy_home
        assert ours is not None
        theirs: PolicyHome = ours  # two admins of one gateway
        if kind == "file":  # or of two that serve the same file
            source = FilePolicySource(file, {})
            theirs = FileHome(source, store, wall_clock=time.time, reload=asyncio.Event())
        results = await asyncio.gather(
            ours.publish(change(TEXT + b"# a\n", TEXT, "admin:a")),
            theirs.publish(change(TEXT + b"# b\n", TEXT, "admin:b")),
            return_exceptions=True,
        )
        held = await ours.held()
        async with store.read() as connection:
            told = await list_policy_changes(connection)

    refused = [isinstance(result, Conflict) for result in results]
    assert sorted(refused) == [False, True]
    winner = b"# a\n" if refused[1] else b"# b\n"
    assert held.text == TEXT + winner
    published = [each.actor for each in told if each.action == PUBLISHED]
    assert published == ["admin:a" if refused[1] else "admin:b"]


async def test_a_rename_that_fails_leaves_no_trace(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "policy.yaml"
    file.write_bytes(TEXT)

    def refuse(*_: object) -> None:
        raise OSError(errno.EBUSY, os.strerror(errno.EBUSY))  # a file mounted by itself

    async with serving(tmp_path, str(file)) as (gateway, store):
        assert gateway.policy_home is not None
        monkeypatch.setattr(os, "replace", refuse)
        with pytest.raises(Conflict, match="cannot be written") as caught:
            await gateway.policy_home.publish(change(TEXT + b"# x\n", TEXT))
        async with store.read() as connection:
            told = await list_policy_changes(connection)

    assert caught.value.code == "policy_not_writable"
    assert "--policy store" in caught.value.message
    assert file.read_bytes() == TEXT
    assert not list(tmp_path.glob("*.draft")) + list(tmp_path.glob(".*.draft"))
    assert [each.action for each in told] == [IMPORTED]
