"""Together's batch API: OpenAI's in outline, with an own upload, status words and no metadata.

Source: docs.together.ai/docs/inference/batch and its API reference. A batch is known again by the
name of its input file.
"""

from __future__ import annotations

from collections.abc import Collection
from urllib.parse import quote

import msgspec

from gateway.batch.line_check import URL_OF
from gateway.batch.native.api import Found, NativeState, NativeStatus
from gateway.batch.native.openai_form import OpenAIForm, instant, surface_of
from gateway.batch.native.packing import multipart
from gateway.batch.native.spool import Spool
from gateway.wire.pieces import Surface, WireError

_STATES = {
    "VALIDATING": NativeState.RUNNING,
    "IN_PROGRESS": NativeState.RUNNING,
    "CANCELING": NativeState.CANCELLING,
    "CANCELLING": NativeState.CANCELLING,
    "COMPLETED": NativeState.ENDED,
    "EXPIRED": NativeState.ENDED,
    "CANCELLED": NativeState.ENDED,
    "FAILED": NativeState.FAILED,
}


class _Job(msgspec.Struct):
    id: str
    status: str
    endpoint: str | None = None
    input_file_id: str | None = None
    output_file_id: str | None = None
    error_file_id: str | None = None
    created_at: str | None = None
    completed_at: str | None = None
    job_deadline: str | None = None
    error: str | None = None

    def to_status(self) -> NativeStatus:
        state = _STATES.get(self.status, NativeState.RUNNING)
        if state is NativeState.FAILED and self.output_file_id:
            state = NativeState.ENDED
        return NativeStatus(
            batch_id=self.id,
            state=state,
            outcome=self.status.lower(),
            surface=surface_of(self.endpoint),
            created_at_s=instant(self.created_at),
            ended_at_s=instant(self.completed_at),
            expires_at_s=instant(self.job_deadline),
            output_file_id=self.output_file_id or "",
            error_file_id=self.error_file_id or "",
            errors=(WireError(message=self.error),) if self.error else (),
        )


class _Created(msgspec.Struct):
    job: _Job


class _File(msgspec.Struct):
    id: str
    filename: str = ""


class _Files(msgspec.Struct):
    data: list[_File]


class TogetherForm(OpenAIForm):
    def encode(self, custom_id: str, surface: Surface, body: bytes) -> bytes:
        return b'{"custom_id":"%s","body":' % custom_id.encode() + body + b"}\n"

    async def _upload(self, native_id: str, spool: Spool) -> str:
        name = f"{native_id}.jsonl"
        form, headers = multipart(name, spool, {"purpose": "batch-api", "file_name": name})
        return await self._uploaded("/files/upload", form, headers)

    async def _create(self, native_id: str, file_id: str, surface: Surface, window_s: int) -> str:
        wanted = {
            "input_file_id": file_id,
            "endpoint": URL_OF[surface],
            "completion_window": self.window(window_s),
        }
        answer = await self._client.post(self._client.url("/batches"), wanted)
        created = self._client.read(answer, _Created, is_lost=True)
        return created.job.id

    async def poll(self, batch_id: str) -> NativeStatus:
        answer = await self._client.get(self._client.url(f"/batches/{quote(batch_id, safe='')}"))
        job = self._client.read(answer, _Job)
        return job.to_status()

    async def find(
        self,
        native_id: str,
        *,
        submitted_at_s: float,
        num_lines: int,
        known_ids: Collection[str] = (),
    ) -> Found:
        files = self._client.read(await self._client.get(self._client.url("/files")), _Files)
        ours = {file.id for file in files.data if file.filename == f"{native_id}.jsonl"}
        if ours:
            answer = await self._client.get(self._client.url("/batches"))
            jobs = self._client.read(answer or [], list[_Job])
            for job in jobs:
                if job.input_file_id in ours:
                    return Found(status=job.to_status(), is_certain=True)
        return Found(status=None, is_certain=self._client.is_absent(submitted_at_s))
