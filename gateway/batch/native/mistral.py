"""Mistral's batch jobs: one model a job, named by us in its metadata.

Source: docs.mistral.ai/studio-api/batch-processing and the reference of `/v1/batch/jobs`.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Any
from urllib.parse import quote, urlencode

import msgspec

from gateway.batch.line_check import URL_OF
from gateway.batch.native.api import Found, NativeState, NativeStatus
from gateway.batch.native.openai_form import (
    CLOCK_SLACK_S,
    ERRORS_MAX,
    NAME,
    PAGE,
    PAGES_MAX,
    OpenAIForm,
    surface_of,
)
from gateway.wire.pieces import Surface, WireError

_STATES = {
    "QUEUED": NativeState.RUNNING,
    "RUNNING": NativeState.RUNNING,
    "CANCELLATION_REQUESTED": NativeState.CANCELLING,
    "SUCCESS": NativeState.ENDED,
    "TIMEOUT_EXCEEDED": NativeState.ENDED,
    "CANCELLED": NativeState.ENDED,
    "FAILED": NativeState.FAILED,
}


class _Problem(msgspec.Struct):
    message: str = ""
    count: int = 1


class _Job(msgspec.Struct):
    id: str
    status: str
    endpoint: str | None = None
    output_file: str | None = None
    error_file: str | None = None
    created_at: float | None = None
    started_at: float | None = None
    completed_at: float | None = None
    total_requests: int | None = None
    completed_requests: int | None = None
    failed_requests: int | None = None
    errors: list[_Problem] | None = None
    metadata: dict[str, Any] | None = None

    def to_status(self) -> NativeStatus:
        state = _STATES.get(self.status, NativeState.RUNNING)
        if state is NativeState.FAILED and (self.output_file or self.error_file):
            state = NativeState.ENDED
        return NativeStatus(
            batch_id=self.id,
            state=state,
            outcome=self.status.lower(),
            surface=surface_of(self.endpoint),
            num_lines=self.total_requests,
            num_done=self.completed_requests,
            num_failed=self.failed_requests,
            created_at_s=self.created_at,
            started_at_s=self.started_at,
            ended_at_s=self.completed_at,
            output_file_id=self.output_file or "",
            error_file_id=self.error_file or "",
            errors=tuple(WireError(message=e.message) for e in (self.errors or [])[:ERRORS_MAX]),
        )


class _Page(msgspec.Struct):
    data: list[_Job] | None = None
    total: int = 0


class MistralForm(OpenAIForm):
    def encode(self, custom_id: str, surface: Surface, body: bytes) -> bytes:
        return b'{"custom_id":"%s","body":' % custom_id.encode() + body + b"}\n"

    async def _create(self, native_id: str, file_id: str, surface: Surface, window_s: int) -> str:
        wanted = {
            "input_files": [file_id],
            "model": self._client.endpoint.model,
            "endpoint": URL_OF[surface],
            "timeout_hours": max(1, -(-window_s // 3_600)),
            "metadata": {NAME: native_id},
        }
        answer = await self._client.post(self._client.url("/batch/jobs"), wanted)
        job = self._client.read(answer, _Job, is_lost=True)
        return job.id

    async def poll(self, batch_id: str) -> NativeStatus:
        job = self._client.read(await self._client.get(self._job_url(batch_id)), _Job)
        return job.to_status()

    async def _ask_to_cancel(self, batch_id: str) -> None:
        await self._client.post(f"{self._job_url(batch_id)}/cancel")

    def _job_url(self, batch_id: str) -> str:
        return self._client.url(f"/batch/jobs/{quote(batch_id, safe='')}")

    async def find(
        self,
        native_id: str,
        *,
        submitted_at_s: float,
        num_lines: int,
        known_ids: Collection[str] = (),
    ) -> Found:
        for number in range(PAGES_MAX):
            query = {"page": number, "page_size": PAGE, "order_by": "-created"}
            answer = await self._client.get(self._client.url(f"/batch/jobs?{urlencode(query)}"))
            page = self._client.read(answer, _Page)
            jobs = page.data or []
            for job in jobs:
                if (job.metadata or {}).get(NAME) == native_id:
                    return Found(status=job.to_status(), is_certain=True)
            oldest = jobs[-1].created_at if jobs else None
            is_past = oldest is not None and oldest < submitted_at_s - CLOCK_SLACK_S
            if len(jobs) < PAGE or is_past:
                return Found(status=None, is_certain=self._client.is_absent(submitted_at_s))
        return Found(status=None, is_certain=False)
