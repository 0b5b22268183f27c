"""Keys are created, listed, rotated and revoked within their tenant, and all of it is recorded."""

from __future__ import annotations

from pathlib import Path

import pytest
import sqlalchemy as sa

from gateway.errors import InvalidRequest, NotFound
from gateway.keys import service
from gateway.keys.virtual_key import MintedKey, hash_secret, mint, parse
from gateway.keys.wanted import BUDGET_NANOS_MAX, OVERLAP_S_MAX, Budget, NewKey, nanos_of_dollars
from gateway.store import audit, tenancy
from gateway.store.changes import KEYS
from gateway.store.engine import Store
from gateway.store.tables import changes, keys

PEPPER = b"p" * 32
NOW = 1_000.0
FIVE_DOLLARS = Budget(limit_nanos=5_000_000_000, period="total")


async def _change_number(store: Store) -> int:
    async with store.read() as connection:
        query = sa.select(changes.c.number).where(changes.c.topic == KEYS)
        return (await connection.execute(query)).scalar_one_or_none() or 0


async def _actions(store: Store, tenant_id: str) -> list[str]:
    async with store.read() as connection:
        return [e.action for e in reversed(await audit.list_events(connection, tenant_id))]


async def _create(store: Store, wanted: NewKey | None = None) -> service.IssuedKey:
    tenant = await service.ensure_default_tenant(store, now=NOW)
    return await service.create_key(store, PEPPER, tenant.id, wanted or NewKey(), now=NOW)


@pytest.mark.anyio
async def test_created_key_has_what_was_asked_and_its_budgets(store: Store) -> None:
    wanted = NewKey(
        name="team app",
        models=("chat",),
        routes=("chat", "messages"),
        requests_per_minute=60,
        tokens_per_minute=10_000,
        concurrency_max=4,
        no_explore=True,
        expires_at=NOW + 60,
        budgets=(FIVE_DOLLARS, Budget(limit_nanos=10**9, period="day")),
    )
    issued = await _create(store, wanted)
    row = issued.row

    assert parse(issued.key).id == row.id
    assert [row] == await service.list_keys(store, row.tenant_id)
    assert (row.models, row.routes, row.no_explore) == (("chat",), ("chat", "messages"), True)
    budgets = await service.list_budgets(store, row.tenant_id)
    assert [(b.scope_kind, b.scope_id, b.period, b.limit_nanos) for b in budgets] == [
        ("key", row.id, "day", 10**9),
        ("key", row.id, "total", 5 * 10**9),
    ]
    assert await _actions(store, row.tenant_id) == ["key.create"]
    assert await _change_number(store) == 1


@pytest.mark.anyio
async def test_default_tenant_is_made_once(store: Store) -> None:
    first = await service.ensure_default_tenant(store, now=NOW)

    assert first == await service.ensure_default_tenant(store, now=NOW + 1)


@pytest.mark.anyio
async def test_key_is_stored_only_as_a_hash(sqlite: Store, tmp_path: Path) -> None:
    issued = await _create(sqlite, NewKey(name="canary-name"))
    await service.rotate_key(sqlite, PEPPER, issued.row.tenant_id, issued.row.id, now=NOW)
    async with sqlite.read() as connection:
        stored = (await connection.execute(sa.select(keys))).mappings().one()
    on_disk = b"".join(path.read_bytes() for path in tmp_path.iterdir())
    secret = parse(issued.key).secret

    assert stored["previous_hash"] == hash_secret(PEPPER, secret)
    assert b"canary-name" in on_disk
    assert secret.encode() not in on_disk
    assert secret not in repr(issued)


@pytest.mark.anyio
async def test_taken_public_id_is_drawn_again(store: Store) -> None:
    first = await _create(store)
    drawn: list[MintedKey] = [mint(key_id=first.row.id), mint(key_id="newnewid")]
    second = await service.create_key(
        store, PEPPER, first.row.tenant_id, NewKey(), now=NOW, mint_key=lambda: drawn.pop(0)
    )

    assert second.row.id == "newnewid"


@pytest.mark.anyio
async def test_keys_are_listed_in_pages(store: Store) -> None:
    issued = [await _create(store) for _ in range(5)]
    tenant_id = issued[0].row.tenant_id
    seen: list[str] = []
    after = None
    while page := await service.list_keys(store, tenant_id, limit=2, after=after):
        seen += [row.id for row in page]
        after = (page[-1].created_at, page[-1].id)

    assert sorted(one.row.id for one in issued) == seen
    for page_len in (2, 5, 100):
        every = await service.list_all_keys(store, tenant_id, page=page_len)
        assert [row.id for row in every] == seen


@pytest.mark.anyio
async def test_rotation_keeps_id_and_budgets_and_changes_the_secret(store: Store) -> None:
    first = await _create(store, NewKey(budgets=(FIVE_DOLLARS,)))
    second = await service.rotate_key(
        store, PEPPER, first.row.tenant_id, first.row.id, now=NOW + 5, overlap_s=60
    )

    assert second.row.id == first.row.id
    assert parse(second.key).secret != parse(first.key).secret
    assert (second.row.rotated_at, second.row.previous_expires_at) == (NOW + 5, NOW + 65)
    assert [second.row] == await service.list_keys(store, first.row.tenant_id)
    assert await _change_number(store) == 2
    assert await _actions(store, first.row.tenant_id) == ["key.create", "key.rotate"]


@pytest.mark.anyio
@pytest.mark.parametrize("overlap_s", [-1.0, OVERLAP_S_MAX + 1, float("nan"), float("inf")])
async def test_overlap_longer_than_a_day_is_refused(sqlite: Store, overlap_s: float) -> None:
    issued = await _create(sqlite)
    with pytest.raises(InvalidRequest, match="overlap"):
        await service.rotate_key(
            sqlite, PEPPER, issued.row.tenant_id, issued.row.id, now=NOW, overlap_s=overlap_s
        )


@pytest.mark.anyio
async def test_revoked_key_stays_revoked_and_cannot_be_rotated(store: Store) -> None:
    row = (await _create(store)).row
    revoked = await service.revoke_key(store, row.tenant_id, row.id, now=NOW + 1)
    again = await service.revoke_key(store, row.tenant_id, row.id, now=NOW + 9)

    assert revoked.revoked_at == again.revoked_at == NOW + 1
    assert await _change_number(store) == 2
    with pytest.raises(InvalidRequest, match="revoked"):
        await service.rotate_key(store, PEPPER, row.tenant_id, row.id, now=NOW + 2)


@pytest.mark.anyio
async def test_key_of_another_tenant_is_not_found(store: Store) -> None:
    row = (await _create(store)).row
    other = await service.create_tenant(store, "other", now=NOW)

    for call in (
        service.revoke_key(store, other.id, row.id, now=NOW),
        service.rotate_key(store, PEPPER, other.id, row.id, now=NOW),
        service.create_key(store, PEPPER, other.id, NewKey(team=row.team_id), now=NOW),
        service.set_budget(
            store, other.id, FIVE_DOLLARS, scope_kind="key", scope_id=row.id, now=NOW
        ),
        service.set_budget(
            store, other.id, FIVE_DOLLARS, scope_kind="tenant", scope_id=row.tenant_id, now=NOW
        ),
    ):
        with pytest.raises(NotFound):
            await call
    assert (await service.list_keys(store, row.tenant_id))[0].revoked_at is None
    assert await service.list_budgets(store, other.id) == []


@pytest.mark.anyio
async def test_budgets_of_tenant_team_and_key_can_be_set_changed_and_ended(store: Store) -> None:
    row = (await _create(store)).row
    for scope_kind, scope_id in (
        ("tenant", row.tenant_id),
        ("team", row.team_id),
        ("key", row.id),
        ("key", row.id),  # twice: changed, not added
    ):
        await service.set_budget(
            store, row.tenant_id, FIVE_DOLLARS, scope_kind=scope_kind, scope_id=scope_id, now=NOW
        )
    budgets = await service.list_budgets(store, row.tenant_id)
    assert [b.scope_kind for b in budgets] == ["key", "team", "tenant"]

    await service.end_budget(store, row.tenant_id, budgets[0].id, now=NOW)
    with pytest.raises(NotFound):
        await service.end_budget(store, row.tenant_id, budgets[0].id, now=NOW)
    assert len(await service.list_budgets(store, row.tenant_id)) == 2
    await service.set_budget(
        store, row.tenant_id, FIVE_DOLLARS, scope_kind="key", scope_id=row.id, now=NOW
    )
    assert budgets == await service.list_budgets(store, row.tenant_id)


@pytest.mark.anyio
async def test_budgets_in_force_for_a_key_are_found_with_it(store: Store) -> None:
    row = (await _create(store, NewKey(budgets=(FIVE_DOLLARS,)))).row
    await service.create_team(store, row.tenant_id, "elsewhere", now=NOW)
    other = await service.create_key(
        store, PEPPER, row.tenant_id, NewKey(team="elsewhere", budgets=(FIVE_DOLLARS,)), now=NOW
    )
    for scope_kind, scope_id in (
        ("tenant", row.tenant_id),
        ("team", row.team_id),
        ("team", other.row.team_id),
    ):
        await service.set_budget(
            store, row.tenant_id, FIVE_DOLLARS, scope_kind=scope_kind, scope_id=scope_id, now=NOW
        )
    wanted = {
        b.id
        for b in await service.list_budgets(store, row.tenant_id)
        if b.scope_id in (row.tenant_id, row.team_id, row.id)
    }
    async with store.read() as connection:
        stored = await tenancy.find_stored_key(connection, row.id)

    assert stored is not None
    assert len(wanted) == 3
    assert wanted == set(stored.budget_ids)


@pytest.mark.anyio
@pytest.mark.parametrize(
    ("wanted", "says"),
    [
        (NewKey(name="x" * 101), "name"),
        (NewKey(name="line\nbreak"), "name"),
        (NewKey(models=("",)), "models"),
        (NewKey(models=("m",) * 257), "models"),
        (NewKey(routes=("admin",)), "'admin' is unknown"),
        (NewKey(requests_per_minute=0), "requests_per_minute"),
        (NewKey(tokens_per_minute=-5), "tokens_per_minute"),
        (NewKey(concurrency_max=10**13), "concurrency_max"),
        (NewKey(expires_at=NOW), "past"),
        (NewKey(expires_at=float("nan")), "past"),
        (NewKey(budgets=(FIVE_DOLLARS, FIVE_DOLLARS)), "one budget a period"),
        (NewKey(budgets=(Budget(limit_nanos=1, period="week"),)), "day, month, total"),
        (NewKey(budgets=(Budget(limit_nanos=-1),)), "between 0"),
        (NewKey(budgets=(Budget(limit_nanos=BUDGET_NANOS_MAX + 1),)), "between 0"),
    ],
)
async def test_impossible_keys_are_refused_with_the_field(
    sqlite: Store, wanted: NewKey, says: str
) -> None:
    with pytest.raises(InvalidRequest, match=says):
        await _create(sqlite, wanted)
    tenant = await service.ensure_default_tenant(sqlite, now=NOW)
    assert await service.list_keys(sqlite, tenant.id) == []


@pytest.mark.anyio
async def test_names_are_unique_within_their_level(sqlite: Store) -> None:
    tenant = await service.create_tenant(sqlite, "one", now=NOW)
    with pytest.raises(InvalidRequest, match="already"):
        await service.create_tenant(sqlite, "one", now=NOW)
    with pytest.raises(InvalidRequest, match="already"):
        await service.create_team(sqlite, tenant.id, "default", now=NOW)
    with pytest.raises(NotFound, match="no team"):
        await service.create_key(sqlite, PEPPER, tenant.id, NewKey(team="gone"), now=NOW)


@pytest.mark.parametrize(
    ("text", "nanos"),
    [("5", 5 * 10**9), ("0.25", 250_000_000), ("0", 0), ("1e-9", 1), ("0.000000001", 1)],
)
def test_dollars_become_nanos_exactly(text: str, nanos: int) -> None:
    assert nanos == nanos_of_dollars(text)


@pytest.mark.parametrize("text", ["", "five", "-1", "NaN", "Infinity", "1e-10", "1e30", "$5"])
def test_other_amounts_are_refused(text: str) -> None:
    with pytest.raises(InvalidRequest, match="no amount of dollars"):
        nanos_of_dollars(text)
