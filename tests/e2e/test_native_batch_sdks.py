"""The official SDKs run their batch flows, unmodified, against simulated providers' batch APIs."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from typing import Any

import anthropic
import openai
import pytest

from gateway.simulator.native_profile import BatchFault, BatchFaultMode, BatchProfile
from gateway.simulator.profile import ProviderProfile
from gateway.simulator.serve import RunningProvider, start_simulated

pytestmark = [pytest.mark.anyio, pytest.mark.e2e]

NUM_LINES = 30
QUICK = BatchProfile(
    turnaround_median_s=0.5,
    turnaround_sigma=0.0,
    validation_s=0.05,
    faults=(BatchFault(mode=BatchFaultMode.LINE_ERRORS, every=10, status=500),),
)


@pytest.fixture
async def running(anyio_backend: str) -> AsyncIterator[RunningProvider]:
    [started] = await start_simulated(
        [ProviderProfile(name="q", model="m", api_key="k", batch=QUICK)]
    )
    yield started
    await started.aclose()


def _ask(number: int) -> dict[str, Any]:
    content = f"[[sim tokens={number}]]"
    return {"model": "m", "max_tokens": 64, "messages": [{"role": "user", "content": content}]}


async def test_openai_sdk_runs_files_and_batches(running: RunningProvider) -> None:
    lines = [
        {"custom_id": f"c{n}", "method": "POST", "url": "/v1/chat/completions", "body": _ask(n)}
        for n in range(1, NUM_LINES + 1)
    ]
    text = "".join(json.dumps(line) + "\n" for line in lines).encode()
    async with openai.AsyncOpenAI(base_url=running.base_url, api_key="k", max_retries=0) as client:
        file = await client.files.create(file=("in.jsonl", text), purpose="batch")
        batch = await client.batches.create(
            input_file_id=file.id,
            endpoint="/v1/chat/completions",
            completion_window="24h",
            metadata={"name": "mine"},
        )
        seen = {batch.status}
        while batch.status != "completed":
            await asyncio.sleep(0.05)
            batch = await client.batches.retrieve(batch.id)
            seen.add(batch.status)
        output = await client.files.content(batch.output_file_id or "")
        errors = await client.files.content(batch.error_file_id or "")
        listed = [each async for each in client.batches.list(limit=1)]
        kept = (await client.files.content(file.id)).content
        with pytest.raises(openai.ConflictError):
            await client.batches.cancel(batch.id)
        assert (await client.files.retrieve(file.id)).filename == "in.jsonl"
        assert (await client.files.delete(file.id)).deleted
        with pytest.raises(openai.NotFoundError):
            await client.files.content(file.id)

    answered = {each["custom_id"]: each for each in map(json.loads, output.text.splitlines())}
    failed = {each["custom_id"]: each for each in map(json.loads, errors.text.splitlines())}
    assert kept == text
    assert seen >= {"validating", "in_progress", "completed"}
    assert listed[0].metadata == {"name": "mine"}
    assert failed.keys() == {"c10", "c20", "c30"}
    assert answered.keys() | failed.keys() == {line["custom_id"] for line in lines}
    for number in (1, 7, 29):
        body = answered[f"c{number}"]["response"]["body"]
        completion = openai.types.chat.ChatCompletion.model_validate(body)
        assert completion.usage is not None
        assert completion.usage.completion_tokens == number
    counts = batch.request_counts
    assert counts is not None
    assert (counts.total, counts.completed, counts.failed) == (NUM_LINES, 27, 3)
    books = running.provider.books
    assert {bill.client_request_id for bill in books.lines} == answered.keys()
    assert batch.usage is not None
    assert batch.usage.output_tokens == sum(bill.output for bill in books.lines)


async def test_openai_sdk_cancels_and_reads_why_a_batch_failed(running: RunningProvider) -> None:
    running.provider.control({"batch": {"turnaround_median_s": 5.0}})
    line = {"custom_id": "c", "method": "POST", "url": "/v1/chat/completions", "body": _ask(1)}
    async with openai.AsyncOpenAI(base_url=running.base_url, api_key="k", max_retries=0) as client:

        async def created(lines: list[dict[str, Any]]) -> openai.types.Batch:
            text = "".join(json.dumps(line) + "\n" for line in lines).encode()
            file = await client.files.create(file=("in.jsonl", text), purpose="batch")
            return await client.batches.create(
                input_file_id=file.id,
                endpoint="/v1/chat/completions",
                completion_window="24h",
            )

        batch = await created([line])
        leaving = await client.batches.cancel(batch.id)
        while leaving.status != "cancelled":
            await asyncio.sleep(0.05)
            leaving = await client.batches.retrieve(batch.id)
        broken = await created([line, line])
        while broken.status == "validating":
            await asyncio.sleep(0.05)
            broken = await client.batches.retrieve(broken.id)

    assert leaving.cancelled_at is not None
    assert broken.status == "failed"
    assert broken.errors is not None
    assert broken.errors.data is not None
    assert (broken.errors.data[0].code, broken.errors.data[0].line) == ("duplicate_custom_id", 2)
    assert running.provider.books.lines == []


async def test_anthropic_sdk_runs_message_batches(running: RunningProvider) -> None:
    base_url = running.base_url.removesuffix("/v1")
    requests: Any = [{"custom_id": f"c{n}", "params": _ask(n)} for n in range(1, NUM_LINES + 1)]
    async with anthropic.AsyncAnthropic(base_url=base_url, api_key="k", max_retries=0) as client:
        batch = await client.messages.batches.create(requests=requests)
        began = batch.request_counts.processing
        with pytest.raises(anthropic.AnthropicError, match="results_url"):
            await client.messages.batches.results(batch.id)
        while batch.processing_status != "ended":
            await asyncio.sleep(0.05)
            batch = await client.messages.batches.retrieve(batch.id)
        results = {
            each.custom_id: each.result
            async for each in await client.messages.batches.results(batch.id)
        }
        listed = [each.id async for each in client.messages.batches.list(limit=1)]
        with pytest.raises(anthropic.ConflictError):
            await client.messages.batches.cancel(batch.id)
        await client.messages.batches.delete(batch.id)
        with pytest.raises(anthropic.NotFoundError):
            await client.messages.batches.retrieve(batch.id)

    assert began == NUM_LINES
    assert batch.ended_at is not None
    assert batch.request_counts.succeeded == 27
    assert batch.request_counts.errored == 3
    assert listed == [batch.id]
    failed = {name for name, result in results.items() if result.type == "errored"}
    assert failed == {"c10", "c20", "c30"}
    assert len(results) == NUM_LINES
    first = results["c7"]
    assert first.type == "succeeded"
    assert first.message.usage.output_tokens == 7
    assert first.message.usage.service_tier == "batch"


async def test_anthropic_sdk_cancels(running: RunningProvider) -> None:
    running.provider.control({"batch": {"turnaround_median_s": 60.0}})
    base_url = running.base_url.removesuffix("/v1")
    requests: Any = [{"custom_id": f"c{n}", "params": _ask(1)} for n in range(3)]
    async with anthropic.AsyncAnthropic(base_url=base_url, api_key="k", max_retries=0) as client:
        batch = await client.messages.batches.create(requests=requests)
        batch = await client.messages.batches.cancel(batch.id)
        assert batch.processing_status == "canceling"
        while batch.processing_status != "ended":
            await asyncio.sleep(0.05)
            batch = await client.messages.batches.retrieve(batch.id)
        kinds = [each.result.type async for each in await client.messages.batches.results(batch.id)]

    assert kinds == ["canceled"] * 3
    assert batch.request_counts.canceled == 3
    assert running.provider.books.lines == []
