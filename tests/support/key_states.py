"""Credentials in every state a key can be in, and texts that only look like one."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from pathlib import Path

from gateway.cli.support import open_current_store
from gateway.keys import service
from gateway.keys.tenants import ensure_tenant
from gateway.keys.virtual_key import hash_secret, mint, parse
from gateway.keys.wanted import NewKey
from gateway.settings import Settings
from gateway.store.engine import Store

HOUR_S = 3_600.0
GOOD_STATES = frozenset({"valid", "rotated, in the overlap"})


def issue(home: Path, *wanted: NewKey, tenant: str = "default") -> list[str]:
    """Keys made as the CLI makes them, all at once."""

    async def main() -> list[str]:
        settings = Settings.from_environment({"LOOPROUTER_HOME": str(home)})
        async with open_current_store(settings) as store:
            tenant_id = await ensure_tenant(store, tenant, "default", now=time.time())
            return [await _key(store, settings, tenant_id, each) for each in wanted]

    return asyncio.run(main())


async def _key(store: Store, settings: Settings, tenant_id: str, wanted: NewKey) -> str:
    made = await service.create_key(store, settings.pepper(), tenant_id, wanted, now=time.time())
    return made.key


def credentials(home: Path) -> dict[str, str]:
    """State → what is sent as the key. GOOD_STATES are let in, all others are strangers."""
    return asyncio.run(_credentials(Settings.from_environment({"LOOPROUTER_HOME": str(home)})))


async def _credentials(settings: Settings) -> dict[str, str]:
    now, pepper = time.time(), settings.pepper()
    async with open_current_store(settings) as store:
        tenant_id = await ensure_tenant(store, "default", "default", now=now)

        async def made(at: float = now, **more: float) -> service.IssuedKey:
            return await service.create_key(store, pepper, tenant_id, NewKey(**more), now=at)  # type: ignore[arg-type]

        valid, revoked, other = await made(), await made(), await made()
        await service.revoke_key(store, tenant_id, revoked.row.id, now=now)
        expired = await made(now - 2 * HOUR_S, expires_at=now - HOUR_S)
        overlapped, replaced, cut_off = await made(), await made(), await made()
        for issued, at, overlap_s in (
            (overlapped, now, HOUR_S),
            (replaced, now - 2 * HOUR_S, HOUR_S),
            (cut_off, now, 0.0),
        ):
            await service.rotate_key(
                store, pepper, tenant_id, issued.row.id, now=at, overlap_s=overlap_s
            )
    text, secret = valid.key, parse(valid.key).secret
    stored = hash_secret(pepper, secret)
    return {
        "valid": text,
        "rotated, in the overlap": overlapped.key,
        "rotated, after the overlap": replaced.key,
        "rotated without overlap": cut_off.key,
        "revoked": revoked.key,
        "expired": expired.key,
        "never issued": mint().key,
        "secret of another key": mint(key_id=valid.row.id).key,
        "id of one, secret of another": "lr-" + valid.row.id + other.key[11:],
        "one letter changed": text[:30] + ("a" if text[30] != "a" else "b") + text[31:],
        "cut to 20 characters": text[:20],
        "with more behind it": text + "x",
        "id alone": "lr-" + valid.row.id,
        "the stored hash": stored.hex(),
        "the stored hash as a key": "lr-" + valid.row.id + stored.hex()[:49],
        "lower case": text.lower(),
        "the word null": "null",
        "SQL": "lr-' OR '1'='1",
    }


def scoped(models: Sequence[str] = (), routes: Sequence[str] = ()) -> NewKey:
    return NewKey(models=tuple(models), routes=tuple(routes))
