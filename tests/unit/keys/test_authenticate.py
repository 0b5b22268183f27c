"""Who holds a key: from memory when it can be, from the store when it must be."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from sqlalchemy import event

from gateway.core import Caller
from gateway.errors import InvalidRequest, Overloaded, Unauthenticated
from gateway.keys import authenticate as module
from gateway.keys import service
from gateway.keys.authenticate import FRESH_S, Authenticator
from gateway.keys.service import IssuedKey
from gateway.keys.virtual_key import mint
from gateway.keys.wanted import Budget, NewKey
from gateway.store.changes import ChangeWatcher
from gateway.store.engine import Store, open_store
from tests.support.clocks import TurnedClock

pytestmark = pytest.mark.anyio

PEPPER = b"p" * 32


@pytest.fixture
def authenticator(store: Store, clock: TurnedClock, wall_clock: TurnedClock) -> Authenticator:
    return Authenticator(store, PEPPER, clock=clock, wall_clock=wall_clock)


async def _issue(store: Store, now: float, wanted: NewKey | None = None) -> IssuedKey:
    tenant = await service.ensure_default_tenant(store, now=now)
    return await service.create_key(store, PEPPER, tenant.id, wanted or NewKey(), now=now)


def _count_selects(store: Store) -> list[str]:
    seen: list[str] = []

    def note(_c: object, _k: object, statement: str, *_: Any) -> None:
        if statement.startswith("SELECT"):
            seen.append(statement)

    event.listen(store.engine.sync_engine, "before_cursor_execute", note)
    return seen


async def test_caller_is_all_that_the_key_says(
    store: Store, authenticator: Authenticator, wall_clock: TurnedClock
) -> None:
    wanted = NewKey(
        name="app",
        models=("chat",),
        routes=("chat",),
        requests_per_minute=60,
        tokens_per_minute=1000,
        concurrency_max=2,
        no_explore=True,
        budgets=(Budget(limit_nanos=5),),
    )
    issued = await _issue(store, wall_clock(), wanted)
    (budget,) = await service.list_budgets(store, issued.row.tenant_id)

    for headers in (
        {"authorization": f"Bearer {issued.key}"},
        {"x-api-key": issued.key},
        {"api-key": issued.key},
    ):
        assert await authenticator.authenticate(headers) == Caller(
            tenant_id=issued.row.tenant_id,
            team_id=issued.row.team_id,
            key_id=issued.row.id,
            key_name="app",
            models=("chat",),
            routes=("chat",),
            requests_per_minute=60,
            tokens_per_minute=1000,
            concurrency_max=2,
            no_explore=True,
            budget_ids=(budget.id,),
        )


async def test_two_credentials_are_refused_before_any_look_up(
    store: Store, authenticator: Authenticator
) -> None:
    selects = _count_selects(store)
    with pytest.raises(InvalidRequest):
        await authenticator.authenticate(
            {"authorization": f"Bearer {mint().key}", "x-api-key": mint().key}
        )

    assert selects == []


async def test_second_request_asks_no_database(
    store: Store, authenticator: Authenticator, wall_clock: TurnedClock
) -> None:
    issued = await _issue(store, wall_clock())
    await authenticator.identify(issued.key)
    selects = _count_selects(store)
    for _ in range(5):
        await authenticator.identify(issued.key)

    assert selects == []


async def test_unknown_key_and_wrong_secret_get_the_same_error(
    store: Store, authenticator: Authenticator, wall_clock: TurnedClock
) -> None:
    issued = await _issue(store, wall_clock())
    errors = []
    for key in (mint().key, mint(key_id=issued.row.id).key):
        with pytest.raises(Unauthenticated) as caught:
            await authenticator.identify(key)
        errors.append((caught.value.message, caught.value.status, caught.value.code))

    assert errors[0] == errors[1]
    assert await authenticator.identify(issued.key)


async def test_unknown_key_and_wrong_secret_do_the_same_work(
    sqlite: Store, clock: TurnedClock, wall_clock: TurnedClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Time is compared as work: statements asked, hashes made and hashes compared.
    authenticator = Authenticator(sqlite, PEPPER, clock=clock, wall_clock=wall_clock)
    issued = await _issue(sqlite, wall_clock())
    selects = _count_selects(sqlite)
    work: list[str] = []
    compare = module.hmac.compare_digest

    def counted_compare(a: bytes, b: bytes) -> bool:
        work.append(f"compare {len(a)} {len(b)}")
        return compare(a, b)

    monkeypatch.setattr(module.hmac, "compare_digest", counted_compare)
    done = []
    unknown = mint()
    for key_id in (unknown.id, issued.row.id):
        for _ in range(3):
            with pytest.raises(Unauthenticated):
                await authenticator.identify(mint(key_id=key_id).key)
            done.append((len(selects) > 0, list(work)))
            selects.clear()
            work.clear()

    assert done[:3] == done[3:]
    assert done[0] == (True, ["compare 32 32"] * 2)
    assert done[1] == (False, ["compare 32 32"] * 2)


async def test_key_of_another_pepper_is_unknown(
    store: Store, clock: TurnedClock, wall_clock: TurnedClock
) -> None:
    issued = await _issue(store, wall_clock())
    other = Authenticator(store, b"q" * 32, clock=clock, wall_clock=wall_clock)
    with pytest.raises(Unauthenticated, match="unknown"):
        await other.identify(issued.key)


async def test_malformed_key_asks_no_database(store: Store, authenticator: Authenticator) -> None:
    selects = _count_selects(store)
    with pytest.raises(Unauthenticated, match="provider's own key"):
        await authenticator.identify("sk-something")

    assert selects == []


async def test_key_expires_at_its_instant_even_from_memory(
    store: Store, authenticator: Authenticator, wall_clock: TurnedClock
) -> None:
    issued = await _issue(store, wall_clock(), NewKey(expires_at=wall_clock() + 10))
    await authenticator.identify(issued.key)
    wall_clock.turn(9.9)
    await authenticator.identify(issued.key)
    wall_clock.turn(0.1)
    with pytest.raises(Unauthenticated, match="expired on 2027-01-15"):
        await authenticator.identify(issued.key)


async def test_rotated_secret_ends_with_its_overlap_even_from_memory(
    store: Store, authenticator: Authenticator, wall_clock: TurnedClock
) -> None:
    old = await _issue(store, wall_clock())
    new = await service.rotate_key(
        store, PEPPER, old.row.tenant_id, old.row.id, now=wall_clock(), overlap_s=10.0
    )
    callers = [await authenticator.identify(key) for key in (old.key, new.key)]
    assert callers[0] == callers[1]

    wall_clock.turn(10.0)
    assert await authenticator.identify(new.key) == callers[0]
    with pytest.raises(Unauthenticated, match="replaced by a rotation"):
        await authenticator.identify(old.key)


async def test_second_rotation_ends_the_first_secret_at_once(
    store: Store, authenticator: Authenticator, wall_clock: TurnedClock
) -> None:
    first = await _issue(store, wall_clock())
    keys = [first.key]
    for _ in range(2):
        rotated = await service.rotate_key(
            store, PEPPER, first.row.tenant_id, first.row.id, now=wall_clock(), overlap_s=60.0
        )
        keys.append(rotated.key)
    with pytest.raises(Unauthenticated, match="unknown"):
        await authenticator.identify(keys[0])
    assert await authenticator.identify(keys[1]) == await authenticator.identify(keys[2])


async def test_revoked_key_and_its_previous_secret_are_refused(
    store: Store, authenticator: Authenticator, wall_clock: TurnedClock
) -> None:
    old = await _issue(store, wall_clock())
    new = await service.rotate_key(
        store, PEPPER, old.row.tenant_id, old.row.id, now=wall_clock(), overlap_s=60.0
    )
    await authenticator.identify(new.key)
    await service.revoke_key(store, old.row.tenant_id, old.row.id, now=wall_clock())
    authenticator.invalidate()
    for key in (old.key, new.key):
        with pytest.raises(Unauthenticated, match="revoked on"):
            await authenticator.identify(key)


async def test_missed_revocation_is_found_when_memory_is_no_longer_fresh(
    store: Store, authenticator: Authenticator, clock: TurnedClock, wall_clock: TurnedClock
) -> None:
    issued = await _issue(store, wall_clock())
    await authenticator.identify(issued.key)
    await service.revoke_key(store, issued.row.tenant_id, issued.row.id, now=wall_clock())
    await authenticator.identify(issued.key)  # nobody told, so still believed
    clock.turn(FRESH_S)
    with pytest.raises(Unauthenticated, match="revoked"):
        await authenticator.identify(issued.key)


async def test_key_made_after_it_was_refused_works_once_the_change_is_told(
    store: Store, authenticator: Authenticator, wall_clock: TurnedClock
) -> None:
    tenant = await service.ensure_default_tenant(store, now=wall_clock())
    minted = mint()
    with pytest.raises(Unauthenticated):
        await authenticator.identify(minted.key)
    await service.create_key(
        store, PEPPER, tenant.id, NewKey(), now=wall_clock(), mint_key=lambda: minted
    )
    authenticator.invalidate()

    assert (await authenticator.identify(minted.key)).key_id == minted.id


async def test_revocation_by_another_process_reaches_a_server_within_a_second(
    store: Store, authenticator: Authenticator, wall_clock: TurnedClock
) -> None:
    issued = await _issue(store, wall_clock())
    watcher = ChangeWatcher(store, lambda _topics: authenticator.invalidate())
    task = asyncio.create_task(watcher.run())
    command = await open_store(store.url.render_as_string(hide_password=False))
    try:
        async with asyncio.timeout(5.0):
            await watcher.is_watching.wait()
        await authenticator.identify(issued.key)
        await service.revoke_key(command, issued.row.tenant_id, issued.row.id, now=wall_clock())
        async with asyncio.timeout(1.0):
            while True:
                try:
                    await authenticator.identify(issued.key)
                except Unauthenticated:
                    break
                await asyncio.sleep(0.01)
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        await command.close()


async def test_many_first_requests_of_one_key_make_one_look_up(
    store: Store, authenticator: Authenticator, wall_clock: TurnedClock
) -> None:
    issued = await _issue(store, wall_clock())
    selects = _count_selects(store)
    callers = await asyncio.gather(*(authenticator.identify(issued.key) for _ in range(50)))

    assert len(set(callers)) == 1
    assert sum("FROM keys" in statement for statement in selects) == 1


async def test_cancelled_look_up_does_not_take_those_who_wait_with_it(
    store: Store, authenticator: Authenticator, wall_clock: TurnedClock
) -> None:
    issued = await _issue(store, wall_clock())
    first = asyncio.create_task(authenticator.identify(issued.key))
    second = asyncio.create_task(authenticator.identify(issued.key))
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    first.cancel()

    assert (await second).key_id == issued.row.id
    with pytest.raises(asyncio.CancelledError):
        await first


async def test_strangers_are_slowed_down_and_known_keys_are_not(
    sqlite: Store, clock: TurnedClock, wall_clock: TurnedClock
) -> None:
    authenticator = Authenticator(
        sqlite, PEPPER, clock=clock, wall_clock=wall_clock, misses_per_s=1.0, misses_burst=3.0
    )
    issued = await _issue(sqlite, wall_clock())
    await authenticator.identify(issued.key)
    for _ in range(2):
        with pytest.raises(Unauthenticated):
            await authenticator.identify(mint().key)
    with pytest.raises(Overloaded) as caught:
        await authenticator.identify(mint().key)
    assert caught.value.code == "key_lookups_exhausted"
    assert caught.value.retry_after_s == 1.0

    authenticator.invalidate()
    assert await authenticator.identify(issued.key)
    clock.turn(1.0)
    with pytest.raises(Unauthenticated):
        await authenticator.identify(mint().key)


async def test_memory_is_bounded(
    sqlite: Store, clock: TurnedClock, wall_clock: TurnedClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "KNOWN_MAX", 3)
    monkeypatch.setattr(module, "UNKNOWN_MAX", 2)
    authenticator = Authenticator(sqlite, PEPPER, clock=clock, wall_clock=wall_clock)
    for _ in range(6):
        await authenticator.identify((await _issue(sqlite, wall_clock())).key)
        with pytest.raises(Unauthenticated):
            await authenticator.identify(mint().key)

    assert authenticator.num_remembered == 3 + 2 + 3


async def test_lost_database_refuses_new_keys_and_serves_fresh_ones(
    sqlite: Store, clock: TurnedClock, wall_clock: TurnedClock
) -> None:
    authenticator = Authenticator(sqlite, PEPPER, clock=clock, wall_clock=wall_clock)
    issued, other = await _issue(sqlite, wall_clock()), await _issue(sqlite, wall_clock())
    await authenticator.identify(issued.key)
    async with sqlite.begin() as connection:
        await connection.exec_driver_sql("ALTER TABLE keys RENAME TO lost")

    assert await authenticator.identify(issued.key)
    with pytest.raises(Overloaded, match="cannot be checked now"):
        await authenticator.identify(other.key)
    clock.turn(FRESH_S)
    with pytest.raises(Overloaded):
        await authenticator.identify(issued.key)
