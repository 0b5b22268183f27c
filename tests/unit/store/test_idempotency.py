"""A request sent twice is done once (reliability D.1)."""

from __future__ import annotations

import asyncio

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.errors import Conflict, IdempotencyMismatch, InvalidRequest
from gateway.store import idempotency
from gateway.store.engine import Store
from gateway.store.idempotency import BODY_BYTES_MAX, CLAIM_S, KEEP_S, Claim, StoredAnswer
from gateway.wire.usage import Usage

HASH = b"h" * 32
ANSWER = StoredAnswer(
    status=200,
    headers=[("content-type", "application/json"), ("x-request-id", "r1")],
    body=b'{"a":1}',
    usage=Usage(input=3, output=4),
)


async def _claim(
    store: Store,
    claim_id: str = "c1",
    *,
    tenant_id: str = "t1",
    key: str = "k",
    request_hash: bytes = HASH,
    now: float = 0.0,
) -> Claim | StoredAnswer:
    async with store.begin() as connection:
        return await idempotency.claim(
            connection,
            tenant_id,
            key,
            request_hash=request_hash,
            claim_id=claim_id,
            holder_id="p1",
            now=now,
        )


async def _finish(
    store: Store, claim_id: str = "c1", *, answer: StoredAnswer = ANSWER, now: float = 1.0
) -> bool:
    async with store.begin() as connection:
        return await idempotency.finish(
            connection, "t1", "k", claim_id=claim_id, answer=answer, now=now
        )


@pytest.mark.anyio
async def test_second_request_while_the_first_runs_is_a_conflict(store: Store) -> None:
    assert Claim(claim_id="c1") == await _claim(store)
    with pytest.raises(Conflict) as caught:
        await _claim(store, "c2", now=1.0)

    assert caught.value.status == 409
    assert caught.value.retry_after_s == 1.0


@pytest.mark.anyio
async def test_finished_request_is_answered_from_the_store_for_a_day(store: Store) -> None:
    await _claim(store)
    assert await _finish(store)

    assert await _claim(store, "c2", now=KEEP_S) == ANSWER
    assert Claim(claim_id="c3") == await _claim(store, "c3", now=KEEP_S + 1.0)


@pytest.mark.anyio
async def test_same_key_with_another_body_is_a_mismatch_running_or_done(store: Store) -> None:
    await _claim(store)
    with pytest.raises(IdempotencyMismatch):
        await _claim(store, "c2", request_hash=b"o" * 32)
    await _finish(store)
    with pytest.raises(IdempotencyMismatch) as caught:
        await _claim(store, "c3", request_hash=b"o" * 32, now=2.0)

    assert caught.value.status == 422


@pytest.mark.anyio
async def test_keys_of_two_tenants_are_two_keys(store: Store) -> None:
    await _claim(store)
    await _finish(store)

    other = await _claim(store, "c2", tenant_id="t2", request_hash=b"o" * 32)

    assert Claim(claim_id="c2") == other


@pytest.mark.anyio
async def test_of_many_at_once_one_gets_the_key(store: Store) -> None:
    results = await asyncio.gather(
        *(_claim(store, f"c{i}") for i in range(8)), return_exceptions=True
    )

    assert sum(isinstance(result, Claim) for result in results) == 1
    assert sum(isinstance(result, Conflict) for result in results) == 7


@pytest.mark.anyio
async def test_dropped_key_may_be_used_anew(store: Store) -> None:
    await _claim(store)
    async with store.begin() as connection:
        assert not await idempotency.drop(connection, "t1", "k", claim_id="other")
        assert not await idempotency.drop(connection, "t2", "k", claim_id="c1")
        assert await idempotency.drop(connection, "t1", "k", claim_id="c1")

    assert Claim(claim_id="c2") == await _claim(store, "c2", request_hash=b"o" * 32)


@pytest.mark.anyio
async def test_claim_of_a_dead_process_ends_and_its_late_answer_is_not_kept(store: Store) -> None:
    await _claim(store)
    assert Claim(claim_id="c2") == await _claim(store, "c2", now=CLAIM_S)

    assert not await _finish(store, "c1")
    assert await _finish(store, "c2", now=CLAIM_S)


@pytest.mark.anyio
async def test_renewed_claim_holds(store: Store) -> None:
    await _claim(store)
    async with store.begin() as connection:
        assert (
            await idempotency.renew_claims(connection, holder_id="p2", claim_ids=["c1"], now=50.0)
            == 0
        )
        assert (
            await idempotency.renew_claims(
                connection, holder_id="p1", claim_ids=["given up"], now=50.0
            )
            == 0
        )
        assert (
            await idempotency.renew_claims(
                connection, holder_id="p1", claim_ids=["c1", "given up"], now=50.0
            )
            == 1
        )

    with pytest.raises(Conflict):
        await _claim(store, "c2", now=CLAIM_S + 1.0)


@pytest.mark.anyio
async def test_stream_and_long_answer_are_kept_without_their_body(store: Store) -> None:
    await _claim(store)
    long = StoredAnswer(status=200, headers=[], body=b"x" * (BODY_BYTES_MAX + 1), usage=None)
    await _finish(store, answer=long)

    found = await _claim(store, "c2", now=2.0)

    assert StoredAnswer(status=200, headers=[], body=None, usage=None) == found


@pytest.mark.anyio
async def test_expired_rows_are_purged(store: Store) -> None:
    await _claim(store)
    await _finish(store, now=0.0)
    await _claim(store, "c9", key="running", now=KEEP_S)
    async with store.begin() as connection:
        assert await idempotency.purge_expired(connection, now=KEEP_S, rows=9) == 1
        assert await idempotency.purge_expired(connection, now=KEEP_S, rows=9) == 0


@given(st.text(alphabet=st.characters(min_codepoint=0x21, max_codepoint=0x7E), min_size=1))
def test_visible_ascii_is_a_key(text: str) -> None:
    assert text[:255] == idempotency.checked_key(text[:255])


@pytest.mark.parametrize("text", ["", "a b", "x" * 256, "é", "a\n", "a\x00"])
def test_other_text_is_no_key(text: str) -> None:
    with pytest.raises(InvalidRequest, match="Idempotency-Key"):
        idempotency.checked_key(text)
