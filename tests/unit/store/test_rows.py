"""Request log, snapshots, policies, endpoint state and audit keep what they are given."""

from __future__ import annotations

import msgspec
import pytest

from gateway.core import (
    Candidate,
    EndpointLive,
    EndpointStats,
    FleetSnapshot,
    FleetView,
    Lane,
    PriceRow,
    RequestFacts,
    ScoreTerms,
)
from gateway.store import audit, policies, requests, state
from gateway.store.audit import AuditEvent
from gateway.store.engine import Store
from gateway.store.requests import RequestRow
from gateway.wire.pieces import Surface
from gateway.wire.usage import Usage

pytestmark = pytest.mark.anyio

DAY_S = 86_400.0


def _snapshot(snapshot_id: str, at: float = 100.0) -> FleetSnapshot:
    stats = EndpointStats(
        endpoint_id="groq/llama",
        ttft_base_s=0.1 + 0.2,  # has no short decimal form
        prefill_tokens_per_s=1 / 3,
        ttft_mu=-1.2345678901234567,
        ttft_sigma=5e-324,
        ttft_n=7.5,
        rate_mu=3.9,
        rate_sigma=0.4,
        rate_n=9.0,
        success_p=0.999,
        success_n=12.0,
        failure_lost_s=2.0,
        ttft_p50_p75_p90_p99_s=(0.1, 0.2, 0.3, 0.4),
    )
    price = PriceRow(source="policy", input=590_000, output=790_000)
    return FleetSnapshot(
        id=snapshot_id, at_unix_s=at, stats={"groq/llama": stats}, prices={"groq/llama": (price,)}
    )


def _view() -> FleetView:
    return FleetView(
        snapshot=_snapshot("s1"),
        live={"groq/llama": EndpointLive(endpoint_id="groq/llama", in_flight=3, capacity=9.7)},
        output_tokens_expected=123.4,
        output_tokens_n=5.0,
        exploration_credits=0.02,
    )


def _row(request_id: str, *, tenant_id: str = "t1", at: float = 100.0) -> RequestRow:
    facts = RequestFacts(
        request_id=request_id,
        surface=Surface.CHAT,
        models=("chat", "backup"),
        stream=True,
        needs=frozenset({"tools", "vision"}),
        max_tokens=10,
    )
    terms = ScoreTerms(
        load=1.1,
        uncached_tokens=10.0,
        cached_tokens=0.0,
        ttft_s=0.3,
        decode_s=1.0,
        time_s=1.43,
        success_p=0.99,
        failure_s=0.01,
        cost_nanos=1234,
        cost_s=0.0,
        score_s=1.44,
        drawn_score_s=1.4,
    )
    return RequestRow(
        id=request_id,
        tenant_id=tenant_id,
        team_id="team",
        key_id="Ab3dE6gH",
        created_at=at,
        surface=Surface.CHAT,
        model="chat",
        lane=Lane.INTERACTIVE,
        stream=True,
        facts=facts,
        policy_version="v1",
        route="interactive",
        preference="fastest",
        candidates=(
            Candidate(endpoint_id="groq/llama", outcome="chosen", reason="fastest", terms=terms),
        ),
        live=requests.stored_view(_view()),
        seed=2**64 + 1,
        snapshot_id="s1",
        endpoint_id="groq/llama",
        num_attempts=1,
        status=200,
        ttft_any_ms=321.5,
        usage=Usage(input=10, output=20),
        cost_nanos=2**53 + 1,
        billed_nanos=7,
    )


async def test_request_row_comes_back_exactly(store: Store) -> None:
    row = _row("r1")
    async with store.begin() as connection:
        await requests.insert_requests(connection, [row])
    async with store.read() as connection:
        found = await requests.find_request(connection, "t1", "r1")

    assert row == found


async def test_view_of_a_decision_is_rebuilt_to_the_last_bit(store: Store) -> None:
    async with store.begin() as connection:
        await requests.insert_requests(connection, [_row("r1")])
        await requests.insert_snapshots(connection, [_view().snapshot])
    async with store.read() as connection:
        row = await requests.find_request(connection, "t1", "r1")
        snapshot = await requests.find_snapshot(connection, "s1")

    assert row is not None
    assert snapshot is not None
    assert _view() == requests.view_of(row, snapshot)


async def test_batch_can_be_repeated_after_an_unknown_commit(store: Store) -> None:
    rows = [_row("r1"), _row("r2")]
    for _ in range(2):
        async with store.begin() as connection:
            await requests.insert_requests(connection, rows)
            await requests.insert_snapshots(connection, [_snapshot("s1")])
    async with store.read() as connection:
        assert len(await requests.list_requests(connection, "t1")) == 2


async def test_empty_batch_is_no_statement(store: Store) -> None:
    async with store.begin() as connection:
        await requests.insert_requests(connection, [])
        await requests.insert_snapshots(connection, [])
        await audit.append_events(connection, [])
        await state.save_endpoint_state(connection, {}, now=1.0)
    async with store.read() as connection:
        assert await requests.list_requests(connection, "t1") == []


async def test_pages_go_newest_first_and_miss_nothing_at_equal_instants(store: Store) -> None:
    rows = [_row(f"r{i}", at=float(i // 3)) for i in range(10)]
    async with store.begin() as connection:
        await requests.insert_requests(connection, [*rows, _row("other", tenant_id="t2")])
    seen: list[str] = []
    before = None
    async with store.read() as connection:
        while page := await requests.list_requests(connection, "t1", limit=4, before=before):
            seen += [row.id for row in page]
            before = (page[-1].created_at, page[-1].id)

    wanted = sorted(rows, key=lambda row: (row.created_at, row.id), reverse=True)
    assert [row.id for row in wanted] == seen


async def test_pages_can_be_of_one_key(store: Store) -> None:
    other = msgspec.structs.replace(_row("r2"), key_id="zzzzzzzz")
    async with store.begin() as connection:
        await requests.insert_requests(connection, [_row("r1"), other])
    async with store.read() as connection:
        found = await requests.list_requests(connection, "t1", key_id="zzzzzzzz")

    assert [row.id for row in found] == ["r2"]


async def test_decided_requests_of_all_tenants_page_back_to_an_instant(store: Store) -> None:
    refused = msgspec.structs.replace(_row("refused", at=8.0), snapshot_id="")
    rows = [_row(f"r{i}", at=float(i // 2), tenant_id=f"t{i % 3}") for i in range(12)]
    async with store.begin() as connection:
        await requests.insert_requests(connection, [*rows, refused])
    seen: list[str] = []
    before = None
    async with store.read() as connection:
        while page := await requests.list_decided(connection, since=2.0, limit=3, before=before):
            seen += [row.id for row in page]
            before = (page[-1].created_at, page[-1].id)

    wanted = [row for row in rows if row.created_at >= 2.0]
    wanted.sort(key=lambda row: (row.created_at, row.id), reverse=True)
    assert [row.id for row in wanted] == seen


async def test_old_snapshots_go_and_those_of_the_last_instant_stay(store: Store) -> None:
    old = 23 * DAY_S
    async with store.begin() as connection:
        await requests.insert_snapshots(
            connection, [_snapshot("old", old - 1), _snapshot("new", old)]
        )
        assert await requests.purge_snapshots(connection, older_than=old, rows=9) == 1
        assert await requests.purge_snapshots(connection, older_than=old, rows=9) == 0
        assert await requests.find_snapshot(connection, "old") is None
        assert await requests.find_snapshot(connection, "new") is not None


async def test_old_requests_are_purged_in_slices(store: Store) -> None:
    async with store.begin() as connection:
        await requests.insert_requests(connection, [_row(f"r{i}", at=float(i)) for i in range(5)])
        counts = [
            await requests.purge_requests(connection, older_than=3.0, rows=2) for _ in range(3)
        ]
        left = await requests.list_requests(connection, "t1")

    assert counts == [2, 1, 0]
    assert [row.id for row in left] == ["r4", "r3"]


async def test_long_error_text_is_cut(store: Store) -> None:
    row = msgspec.structs.replace(_row("r1"), error="x" * 10_000)
    async with store.begin() as connection:
        await requests.insert_requests(connection, [row])
        found = await requests.find_request(connection, "t1", "r1")

    assert found is not None
    assert len(found.error) == requests.ERROR_CHARS_MAX


async def test_policy_versions_are_kept_and_an_old_one_can_come_back(store: Store) -> None:
    async with store.begin() as connection:
        assert await policies.active_policy(connection) is None
        for version, now in (("a", 1.0), ("b", 2.0), ("a", 3.0)):
            await policies.activate_policy(
                connection, version=version, text=f"# {version}\n", source="file", now=now
            )
        active = await policies.active_policy(connection)
        kept = await policies.list_policies(connection)
        older = await policies.find_policy(connection, "b")

    assert active is not None
    assert (active.version, active.created_at, active.activated_at) == ("a", 1.0, 3.0)
    assert [row.version for row in kept] == ["a", "b"]
    assert older is not None
    assert older.text == "# b\n"


async def test_endpoint_state_is_replaced_by_key(store: Store) -> None:
    async with store.begin() as connection:
        await state.save_endpoint_state(connection, {"a": {"n": 1}, "b": [1.5]}, now=1.0)
        await state.save_endpoint_state(connection, {"a": {"n": 2}}, now=2.0)
        found = await state.load_endpoint_state(connection)

    assert found == {"a": (2.0, {"n": 2}), "b": (1.0, [1.5])}


async def test_endpoint_state_has_a_limit(store: Store) -> None:
    async with store.begin() as connection:
        with pytest.raises(ValueError, match="at most"):
            await state.save_endpoint_state(
                connection, {"a": "x" * (state.STATE_BYTES_MAX + 1)}, now=1.0
            )


async def test_small_facts_are_kept(store: Store) -> None:
    async with store.begin() as connection:
        assert await state.get_meta(connection, "k") is None
        await state.put_meta(connection, "k", "1")
        await state.put_meta(connection, "k", "2")
        assert await state.get_meta(connection, "k") == "2"


async def test_audit_events_come_newest_first_in_pages(store: Store) -> None:
    events = [
        AuditEvent(
            tenant_id="t1", at=float(i), actor="cli", action="key.create", subject=str(i),
            detail={"n": i},
        )
        for i in range(3)
    ]  # fmt: skip
    long = AuditEvent(
        tenant_id="", at=9.0, actor="gateway", action="x", subject="y", detail={"t": "x" * 20_000}
    )
    async with store.begin() as connection:
        await audit.append_events(connection, [*events, long])
        first = await audit.list_events(connection, "t1", limit=2)
        rest = await audit.list_events(connection, "t1", before_id=first[-1].id)
        whole = await audit.list_events(connection, audit.WHOLE_GATEWAY)

    assert [event.subject for event in first] == ["2", "1"]
    assert [event.detail for event in rest] == [{"n": 0}]
    assert list(whole[0].detail) == ["omitted_bytes"]


async def test_each_change_of_policy_is_told_once_with_author_and_note(store: Store) -> None:
    async with store.begin() as connection:
        for version, actor, action, note in (
            ("a", "file:me", policies.FROM_FILE, ""),
            ("a", "file:me", policies.FROM_FILE, ""),  # a restart
            ("b", "admin:ada", policies.PUBLISHED, "cheaper"),
            ("b", "file:me", policies.FROM_FILE, ""),  # the file that ada's page wrote
            ("a", "admin:ada", policies.ROLLED_BACK, "not cheaper"),
        ):
            await policies.activate_policy(
                connection, version=version, text=version, source="f", now=1.0, actor=actor,
                action=action, note=note,
            )  # fmt: skip
        found = await policies.list_policy_changes(connection)

    assert [(each.actor, each.action, each.before, each.version, each.note) for each in found] == [
        ("admin:ada", "policy.rollback", "b", "a", "not cheaper"),
        ("admin:ada", "policy.publish", "a", "b", "cheaper"),
        ("file:me", "policy.file", "", "a", ""),
    ]


async def test_texts_of_old_policies_go_and_their_history_stays(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(policies, "VERSIONS_KEPT", 3)
    async with store.begin() as connection:
        for number in range(5):
            await policies.activate_policy(
                connection, version=f"v{number}", text="x", source="f", now=float(number)
            )
        kept = await policies.list_policies(connection)
        told = [each.version for each in await policies.list_policy_changes(connection)]
        here = await policies.kept_versions(connection, told)

    assert [row.version for row in kept] == ["v4", "v3", "v2"]
    assert told == ["v4", "v3", "v2", "v1", "v0"]
    assert here == {"v2", "v3", "v4"}
