"""Adapters at simulated providers: translated lines, faults, and bills to the nano-dollar."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from typing import Any

import pytest

from gateway.batch.native.api import (
    LineOutcome,
    NativeBatchApi,
    NativeError,
    NativeLine,
    NativeResult,
    NativeState,
    NativeStatus,
    ResultCounts,
)
from gateway.batch.native.registry import native_api
from gateway.core import Endpoint, Network, PriceRow
from gateway.prices.book import PriceBook
from gateway.prices.rows import complete_row, cost_nanos, pick_row
from gateway.providers.httpx_transport import HttpxTransport
from gateway.simulator.native_profile import BatchProfile
from gateway.simulator.profile import ProviderProfile, SimulatedPrice
from gateway.simulator.serve import RunningProvider, start_simulated
from gateway.wire.pieces import Dialect, Surface
from gateway.wire.requests import parse_request
from gateway.wire.translate import translate_answer

pytestmark = pytest.mark.anyio

PRICE = SimulatedPrice(input=333_333, output=777_777)
QUICK: dict[str, Any] = {"turnaround_median_s": 0.2, "turnaround_sigma": 0.0, "validation_s": 0.0}


@pytest.fixture
async def running(anyio_backend: str) -> AsyncIterator[RunningProvider]:
    profile = ProviderProfile(
        name="q", model="m", api_key="k", price=PRICE, batch=BatchProfile(**QUICK)
    )
    [started] = await start_simulated([profile])
    yield started
    await started.aclose()


@pytest.fixture(params=["openai", "anthropic"])
def endpoint(request: pytest.FixtureRequest, running: RunningProvider) -> Endpoint:
    own = complete_row(PriceRow(source="policy", input=PRICE.input, output=PRICE.output))
    return Endpoint(
        id=f"q/{request.param}",
        provider="q",
        api=Dialect(request.param),
        base_url=running.base_url,
        model="m",
        network=Network.PRIVATE,
        surfaces=frozenset({"messages"}) if request.param == "anthropic" else frozenset(),
        quirks=frozenset({"native_batch"}),
        prices=(own,),
        is_simulated=True,
    )


@pytest.fixture
async def api(endpoint: Endpoint) -> AsyncIterator[NativeBatchApi]:
    transport = HttpxTransport()
    made = native_api(endpoint, transport, secret="k")
    assert made is not None
    yield made
    await transport.aclose()


def _lines(num: int, native_id: str = "nb_1") -> list[NativeLine]:
    found = []
    for number in range(1, num + 1):
        content = f"[[sim tokens={number % 7 + 1}]] {number}"
        body = {"model": "public", "messages": [{"role": "user", "content": content}]}
        parsed = parse_request(Surface.CHAT, json.dumps(body).encode())
        found.append(NativeLine(custom_id=f"{native_id}:{number}", parsed=parsed, max_tokens=32))
    return found


async def _each(lines: list[NativeLine]) -> AsyncIterator[NativeLine]:
    for line in lines:
        yield line


async def _ended(api: NativeBatchApi, batch_id: str) -> NativeStatus:
    async with asyncio.timeout(20.0):
        while True:
            status = await api.poll(batch_id)
            if status.state in (NativeState.ENDED, NativeState.FAILED):
                return status
            await asyncio.sleep(0.02)


async def _results(api: NativeBatchApi, batch_id: str) -> dict[str, NativeResult]:
    return {one.custom_id: one async for one in api.results(batch_id)}


async def test_whole_way_and_each_line_costs_what_the_invoice_says(
    api: NativeBatchApi, endpoint: Endpoint, running: RunningProvider
) -> None:
    submitted = await api.submit("nb_1", _each(_lines(50)))
    status = await _ended(api, submitted.batch_id)
    results = await _results(api, submitted.batch_id)

    assert (status.num_lines, status.num_done, status.num_failed) == (50, 50, 0)
    assert status.turnaround_s is not None
    assert results.keys() == {f"nb_1:{n}" for n in range(1, 51)}
    row = pick_row(PriceBook().rows(endpoint, 1.8e9), tier="batch")
    bills = {
        bill.client_request_id.replace("nb_1-", "nb_1:"): bill.cost_nanos
        for bill in running.provider.books.lines
    }
    assert bills.keys() == results.keys()
    for name, result in results.items():
        assert result.outcome is LineOutcome.SUCCEEDED
        assert result.usage is not None
        assert cost_nanos(row, result.usage) == bills[name]
    one = results["nb_1:3"]
    body = one.body
    if one.surface is Surface.MESSAGES:
        body = translate_answer(body, one.surface, Surface.CHAT, model="public")
    answer = json.loads(body)
    assert answer["choices"][0]["message"]["content"].startswith("[simulated]")
    assert answer["usage"]["completion_tokens"] == 4


async def test_lost_submission_is_found_again_and_not_made_twice(
    api: NativeBatchApi, running: RunningProvider
) -> None:
    running.provider.control({"batch": {**QUICK, "faults": [{"mode": "lost_submit"}]}})
    now_s = running.provider.unix_s(running.provider.now_s)
    with pytest.raises(NativeError) as caught:
        await api.submit("nb_1", _each(_lines(5)))
    running.provider.control({"batch": QUICK})
    other = await api.submit("nb_2", _each(_lines(5, "nb_2")))
    await _ended(api, other.batch_id)
    found = await api.find("nb_1", submitted_at_s=now_s, num_lines=5)
    again = await api.find("nb_1", submitted_at_s=now_s, num_lines=0)  # when that is not known
    never = await api.find("nb_3", submitted_at_s=now_s - 3_600.0, num_lines=5)

    assert caught.value.is_lost
    assert found.status is not None
    assert found.status.batch_id != other.batch_id
    assert again.status == found.status
    assert never.status is None
    results = await _results(api, found.status.batch_id)
    assert results.keys() == {f"nb_1:{n}" for n in range(1, 6)}
    assert len(running.provider.books.lines) == 10


async def test_expired_batch_tells_what_was_done_and_what_was_not(
    api: NativeBatchApi, running: RunningProvider
) -> None:
    fault = {"mode": "expiring", "done_share": 0.4}
    running.provider.control({"batch": {**QUICK, "faults": [fault]}})
    submitted = await api.submit("nb_1", _each(_lines(10)))
    await _ended(api, submitted.batch_id)
    outcomes = [one.outcome for one in (await _results(api, submitted.batch_id)).values()]

    assert outcomes.count(LineOutcome.SUCCEEDED) == 4
    assert outcomes.count(LineOutcome.EXPIRED) == 6
    assert len(running.provider.books.lines) == 4


async def test_repeated_missing_and_failed_result_lines(
    api: NativeBatchApi, running: RunningProvider
) -> None:
    faults = [
        {"mode": "duplicate_results", "every": 2},
        {"mode": "missing_results", "every": 5},
        {"mode": "line_errors", "every": 7, "status": 503},
    ]
    running.provider.control({"batch": {**QUICK, "faults": faults}})
    submitted = await api.submit("nb_1", _each(_lines(10)))
    await _ended(api, submitted.batch_id)
    counts = ResultCounts()
    results = {one.custom_id: one async for one in api.results(submitted.batch_id, counts)}

    assert {int(name[5:]) for name in results} == {1, 2, 3, 4, 6, 7, 8, 9}
    assert results["nb_1:7"].outcome is LineOutcome.ERRORED
    assert counts.num_repeated == 4  # 2, 4, 6 and 8; line 10 is missing
    assert len(running.provider.books.lines) == 7


@pytest.mark.parametrize("endpoint", ["openai"], indirect=True)
async def test_batch_found_wrong_as_a_whole_fails_without_results(
    api: NativeBatchApi, running: RunningProvider
) -> None:
    running.provider.control({"batch": {**QUICK, "faults": [{"mode": "fail_validation"}]}})
    submitted = await api.submit("nb_1", _each(_lines(2)))
    status = await _ended(api, submitted.batch_id)

    assert status.state is NativeState.FAILED
    assert "failure of the whole batch" in status.errors[0].message
    assert await _results(api, submitted.batch_id) == {}


@pytest.mark.parametrize("endpoint", ["anthropic"], indirect=True)
async def test_batch_found_wrong_as_a_whole_is_refused_at_once(
    api: NativeBatchApi, running: RunningProvider
) -> None:
    running.provider.control({"batch": {**QUICK, "faults": [{"mode": "fail_validation"}]}})
    with pytest.raises(NativeError, match="failure of the whole batch") as caught:
        await api.submit("nb_1", _each(_lines(2)))

    assert not caught.value.is_lost
    assert not caught.value.is_transient


async def test_cancelled_batch_keeps_what_was_done(
    api: NativeBatchApi, running: RunningProvider
) -> None:
    running.provider.control({"batch": {**QUICK, "turnaround_median_s": 1.0, "cancel_s": 0.0}})
    submitted = await api.submit("nb_1", _each(_lines(200)))
    while (len(running.provider.books.lines)) == 0:
        await api.poll(submitted.batch_id)
        await asyncio.sleep(0.02)
    await api.cancel(submitted.batch_id)
    await _ended(api, submitted.batch_id)
    again = await api.cancel(submitted.batch_id)
    results = await _results(api, submitted.batch_id)

    done = [one for one in results.values() if one.outcome is LineOutcome.SUCCEEDED]
    assert again.state is NativeState.ENDED
    assert 0 < len(done) == len(running.provider.books.lines) < 200


async def test_wrong_key_and_too_many_lines(
    endpoint: Endpoint, api: NativeBatchApi, running: RunningProvider
) -> None:
    transport = HttpxTransport()
    wrong = native_api(endpoint, transport, secret="other")
    assert wrong is not None
    with pytest.raises(NativeError, match="401") as caught:
        await wrong.submit("nb_1", _each(_lines(1)))
    await transport.aclose()
    assert not caught.value.is_transient

    running.provider.control({"batch": {**QUICK, "bytes_max": 600}})
    with pytest.raises(NativeError, match="413") as caught:
        await api.submit("nb_2", _each(_lines(9, "nb_2")))
    assert caught.value.is_too_large
    assert not caught.value.is_lost
    assert running.provider.books.lines == []
