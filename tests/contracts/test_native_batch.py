"""What every adapter of a provider's batch API must do, against an HTTP server that plays it."""

from __future__ import annotations

import json
import time
from typing import Any

import msgspec
import pytest

from gateway.batch.native.api import NativeError, NativeStatus, ResultCounts
from gateway.errors import FailureClass
from gateway.wire.usage import Usage
from tests.support.native_playback import (
    PROVIDERS,
    chat_line,
    facts_of,
    golden,
    lines_of,
    playing,
)

pytestmark = pytest.mark.anyio


@pytest.fixture(params=PROVIDERS)
def provider(request: pytest.FixtureRequest) -> str:
    name: str = request.param
    return name


def _check(status: NativeStatus, expect: dict[str, Any]) -> None:
    found = msgspec.to_builtins(status) | {"turnaround_s": status.turnaround_s}
    found["error"] = status.errors[0].message if status.errors else None
    assert {name: found[name] for name in expect} == expect


async def test_lines_are_submitted_as_documented(provider: str) -> None:
    plan = golden(provider, "submit")
    async with playing(provider, plan["exchanges"]) as api:
        # What a batch decides for all its lines is taken out of them.
        first = chat_line(1, "one", stream=True, stream_options={"include_usage": True})
        second = chat_line(2, "two", service_tier="flex")
        submitted = await api.submit("nb_7", lines_of(first, second))

    found = msgspec.to_builtins(submitted)
    assert {name: found[name] for name in plan["expect"]} == plan["expect"]
    assert submitted.refused == ()


async def test_every_state_is_understood(provider: str) -> None:
    plan = golden(provider, "statuses")
    for each in plan["statuses"]:
        async with playing(provider, each["exchanges"]) as api:
            status = await api.poll(plan["batch_id"])
        assert status.batch_id == plan["batch_id"]
        _check(status, each["expect"])


async def test_each_line_is_told_once_in_whatever_order_it_comes(provider: str) -> None:
    plan = golden(provider, "results")
    counts = ResultCounts()
    async with playing(provider, plan["exchanges"]) as api:
        results = [one async for one in api.results(plan["batch_id"], counts)]

    assert [(r.custom_id, r.outcome, r.status_code) for r in results] == [
        (e["custom_id"], e["outcome"], e["status_code"]) for e in plan["expect"]
    ]
    for result, expect in zip(results, plan["expect"], strict=True):
        if "text" in expect:
            assert f'"{expect["text"]}"'.encode() in result.body
            assert result.usage == Usage(**expect["usage"])
            assert result.error is None
        else:
            assert result.error is not None
            assert result.error.message == expect["message"]
            assert result.usage is None
    assert msgspec.to_builtins(counts) == plan["counts"]


async def test_byte_order_mark_crlf_blank_and_broken_lines_do_no_harm(provider: str) -> None:
    plan = golden(provider, "results")
    [*before, last] = [dict(each) for each in plan["exchanges"]]
    lines = [json.dumps(line) for line in last["answer"]["lines"]]
    broken = ["", "{", '{"no": "id"}', '"text"', "\udcff"]
    text = "\r\n".join(["\ufeff" + lines[0], *broken, *lines[1:]])  # no end of line at the end
    last["answer"] = {"text": ""}
    counts = ResultCounts()

    async with playing(
        provider, [*before, _Raw(last, text.encode("utf-8", "surrogateescape"))]
    ) as api:
        results = [one async for one in api.results(plan["batch_id"], counts)]

    assert len(results) == plan["counts"]["num_results"]
    assert counts.num_broken == 4
    assert counts.num_repeated == plan["counts"]["num_repeated"]


class _Raw(dict[str, Any]):
    """An exchange whose answer is these very bytes."""

    def __init__(self, exchange: dict[str, Any], body: bytes) -> None:
        super().__init__(exchange)
        self["answer"] = {"bytes": body}


async def test_no_results_of_a_batch_that_runs(provider: str) -> None:
    plan = golden(provider, "results")
    async with playing(provider, plan["running"]) as api:
        with pytest.raises(NativeError, match="when it has ended") as caught:
            [one async for one in api.results(plan["batch_id"])]

    assert not caught.value.is_transient


async def test_results_that_break_off_are_a_transient_failure_after_what_came(
    provider: str,
) -> None:
    plan = golden(provider, "results")
    exchanges = plan["exchanges"]
    at = next(i for i, each in enumerate(exchanges) if "lines" in each["answer"])
    cut = {**exchanges[at], "answer": {**exchanges[at]["answer"], "cut": True}}
    came: list[str] = []

    async def collect() -> None:
        async for one in api.results(plan["batch_id"]):
            came.append(one.custom_id)

    async with playing(provider, [*exchanges[:at], cut]) as api:
        with pytest.raises(NativeError) as caught:
            await collect()

    assert caught.value.failure is FailureClass.STREAM_BROKEN
    assert caught.value.is_transient
    assert came == [plan["expect"][0]["custom_id"]]


async def test_cancelling(provider: str) -> None:
    plan = golden(provider, "cancel")
    async with playing(provider, plan["exchanges"]) as api:
        status = await api.cancel(plan["batch_id"])
    _check(status, plan["expect"])

    async with playing(provider, plan["too_late"]) as api:
        status = await api.cancel(plan["batch_id"])
    _check(status, {"state": "ended"})

    async with playing(provider, plan["refused"]) as api:
        with pytest.raises(NativeError, match="400: no"):
            await api.cancel(plan["batch_id"])


async def test_files_are_taken_away_whether_they_are_there_or_not(provider: str) -> None:
    plan = golden(provider, "delete")
    async with playing(provider, plan["exchanges"]) as api:
        await api.delete_files(plan["file_ids"])

    async with playing(provider, plan["refused"]) as api:
        if plan["refused"]:
            with pytest.raises(NativeError, match="403: no"):
                await api.delete_files(plan["file_ids"])


async def test_batch_whose_id_was_lost_is_found_or_known_not_to_be_there(provider: str) -> None:
    plan = golden(provider, "find")
    for case in plan["cases"]:
        async with playing(provider, case["exchanges"]) as api:
            found = await api.find(
                "nb_7",
                submitted_at_s=plan["submitted_at_s"],
                num_lines=plan["num_lines"],
                known_ids=plan.get("known_ids", ()),
            )
        batch_id = found.status.batch_id if found.status is not None else None
        assert {"batch_id": batch_id, "is_certain": found.is_certain} == case["expect"], case


async def test_submission_of_a_moment_ago_may_not_be_listed_yet(provider: str) -> None:
    plan = golden(provider, "find")
    asked = {"num_lines": 99, "known_ids": plan.get("known_ids", ())}
    exchanges = plan["cases"][-1]["exchanges"]
    for age_s, is_certain in ((29.0, False), (31.0, True)):
        async with playing(provider, exchanges) as api:
            found = await api.find("nb_7", submitted_at_s=time.time() - age_s, **asked)
        assert (found.status, found.is_certain) == (None, is_certain)


def _last_fails(provider: str, **answer: Any) -> list[dict[str, Any]]:
    [*before, last] = golden(provider, "submit")["exchanges"]
    return [*before, {**last, "answer": answer}]


async def _submit_fails(provider: str, exchanges: list[dict[str, Any]]) -> NativeError:
    async with playing(provider, exchanges) as api:
        with pytest.raises(NativeError) as caught:
            await api.submit("nb_7", lines_of(chat_line(1, "one"), chat_line(2, "two")))
    return caught.value


@pytest.mark.parametrize(
    ("status", "failure", "is_transient"),
    [
        (401, FailureClass.AUTH, False),
        (402, FailureClass.QUOTA, False),
        (404, FailureClass.MISCONFIGURED, False),
        (413, FailureClass.CONTEXT_TOO_LONG, False),
        (429, FailureClass.RATE_LIMITED, True),
        (500, FailureClass.SERVER_ERROR, True),
        (503, FailureClass.OVERLOADED, True),
    ],
)
async def test_refusals_are_classified_as_of_single_requests(
    provider: str, status: int, failure: FailureClass, is_transient: bool
) -> None:
    told = {"error": {"message": "no, because", "type": "x", "code": None}}
    answer = {"status": status, "json": told, "headers": {"retry-after": "7"}}
    error = await _submit_fails(provider, _last_fails(provider, **answer))

    assert (error.failure, error.is_transient, error.status) == (failure, is_transient, status)
    assert error.is_too_large is (status == 413)
    assert error.retry_after_s == 7.0
    assert "no, because" in error.message
    assert error.is_lost is (status >= 500)


async def test_quota_said_in_words_is_no_rate_limit(provider: str) -> None:
    told = {"error": {"message": "x", "type": "insufficient_quota", "code": "insufficient_quota"}}
    error = await _submit_fails(provider, _last_fails(provider, status=429, json=told))

    assert error.failure is FailureClass.QUOTA
    assert not error.is_transient


@pytest.mark.parametrize(
    "answer", [{"drop": True}, {"text": "<html>"}, {"json": {"unexpected": 1}}, {"text": ""}]
)
async def test_answer_to_a_submission_that_is_lost_is_told_as_such(
    provider: str, answer: dict[str, Any]
) -> None:
    error = await _submit_fails(provider, _last_fails(provider, **answer))

    assert error.is_lost
    assert error.is_transient


@pytest.mark.parametrize("provider", [name for name in PROVIDERS if name != "anthropic"])
async def test_failed_upload_loses_nothing(provider: str) -> None:
    first = golden(provider, "submit")["exchanges"][0]
    error = await _submit_fails(provider, [{**first, "answer": {"drop": True}}])

    assert not error.is_lost
    assert error.is_transient


async def test_more_than_the_provider_takes_is_refused_before_anything_is_sent(
    provider: str,
) -> None:
    facts = msgspec.structs.replace(facts_of(provider), lines_max=2)
    async with playing(provider, [], facts) as api:
        with pytest.raises(NativeError, match="the first 2 lines fit") as caught:
            await api.submit("nb_7", lines_of(*(chat_line(n, "x") for n in range(1, 9))))
    assert caught.value.num_lines_fit == 2
    assert caught.value.is_too_large

    facts = msgspec.structs.replace(facts_of(provider), bytes_max=24_000)
    async with playing(provider, [], facts) as api:
        with pytest.raises(NativeError, match="the first 1 lines fit") as caught:
            await api.submit("nb_7", lines_of(*(chat_line(n, "x" * 10_000) for n in (1, 2, 3))))
    assert caught.value.num_lines_fit == 1


async def test_ids_that_are_not_ours_are_a_mistake_of_the_caller(provider: str) -> None:
    async with playing(provider, []) as api:
        for native_id, line_id in (("nb_7", "nb_8"), ("has space", "has space"), ("x" * 53,) * 2):
            with pytest.raises(ValueError, match=r"named|no id"):
                await api.submit(native_id, lines_of(chat_line(1, "x", line_id)))
