"""Submitting and reading large batches costs memory for a few lines, not for all of them."""

from __future__ import annotations

import json
import tracemalloc
from collections.abc import AsyncIterator
from typing import Any

import pytest

from gateway.batch.native.api import NativeLine, ResultCounts
from gateway.batch.native.registry import native_api
from gateway.batch.native.spool import Spool
from gateway.core import Endpoint
from gateway.providers.transport import Headers, SendProgress, UpstreamRequest
from gateway.wire.pieces import Dialect, Surface
from gateway.wire.requests import parse_request

pytestmark = [pytest.mark.anyio, pytest.mark.slow]

NUM_LINES = 4_000
LINE_BYTES = 10_000
PEAK_BYTES_MAX = 12 * 1024 * 1024  # of 40 MB that pass through


class _Answer:
    status = 200
    headers_at_s = read_at_s = 0.0
    headers: Headers = ((b"content-type", b"application/json"),)

    def __init__(self, parts: AsyncIterator[bytes]) -> None:
        self._parts = parts

    def stream(self) -> AsyncIterator[bytes]:
        return self._parts

    async def aclose(self) -> None:
        pass


class _Transport:
    """Counts what is sent, and makes results as they are read: it holds nothing itself."""

    def __init__(self) -> None:
        self.num_sent = 0

    async def send(self, request: UpstreamRequest, **timeouts: Any) -> _Answer:
        assert isinstance(timeouts.get("progress", SendProgress()), SendProgress)
        if request.content is not None:
            async for part in request.content:
                self.num_sent += len(part)
        if request.url.endswith("/content"):
            return _Answer(self._results())
        batch = {"id": "b", "status": "completed", "output_file_id": "f"}
        return _Answer(self._one(json.dumps(batch).encode()))

    async def _one(self, data: bytes) -> AsyncIterator[bytes]:
        yield data

    async def _results(self) -> AsyncIterator[bytes]:
        for number in range(NUM_LINES):
            body = {"choices": [], "text": "x" * LINE_BYTES}
            response = {"status_code": 200, "body": body}
            line = json.dumps({"custom_id": f"nb:{number}", "response": response}).encode()
            yield line[:5_000]
            yield line[5_000:] + b"\n"

    async def aclose(self) -> None:
        pass


async def _lines() -> AsyncIterator[NativeLine]:
    for number in range(NUM_LINES):
        body = {"model": "m", "messages": [{"role": "user", "content": "x" * LINE_BYTES}]}
        parsed = parse_request(Surface.CHAT, json.dumps(body).encode())
        yield NativeLine(custom_id=f"nb:{number}", parsed=parsed)


async def test_memory_stays_small_both_ways() -> None:
    transport = _Transport()
    endpoint = Endpoint(
        id="p/m",
        provider="openai",
        api=Dialect.OPENAI,
        base_url="https://api.openai.com/v1",
        model="m",
    )
    api = native_api(endpoint, transport, secret="k")
    assert api is not None
    tracemalloc.start()
    try:
        submitted = await api.submit("nb", _lines())
        _, peak_sent = tracemalloc.get_traced_memory()
        tracemalloc.reset_peak()
        counts = ResultCounts()
        num_bytes = 0
        async for result in api.results("b", counts):
            num_bytes += len(result.body)
        _, peak_read = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()

    assert submitted.num_bytes > NUM_LINES * LINE_BYTES
    assert transport.num_sent > submitted.num_bytes
    assert counts.num_results == NUM_LINES
    assert num_bytes > NUM_LINES * LINE_BYTES
    assert peak_sent < PEAK_BYTES_MAX
    assert peak_read < PEAK_BYTES_MAX


async def test_spool_is_read_from_the_start_each_time_and_grows_between() -> None:
    spool = Spool()
    written = b""
    for number in range(40):
        data = b"%d," % number * 20_000
        await spool.write(data)
        written += data
        if number % 13 == 0:
            assert b"".join([part async for part in spool]) == written
    assert spool.num_bytes == len(written)
    assert b"".join([part async for part in spool]) == written
    spool.close()
