"""Gemini's batch API in its OpenAI-compatible form: chat lines as they are, files its own way.

Files go through Gemini's Files API (resumable upload, `:download`), the batch is created at
`/openai/batches`, and looked at, listed and cancelled as the `batches` resource it is.

Source: ai.google.dev/gemini-api/docs/openai, …/docs/batch-api, ai.google.dev/api/batch-api and
ai.google.dev/api/files. A batch is known again by the name of its input file, which is ours.
"""

from __future__ import annotations

from collections.abc import Collection
from hashlib import blake2b
from typing import Any
from urllib.parse import quote, urlencode

import msgspec

from gateway.batch.line_check import URL_OF
from gateway.batch.native.api import Found, NativeError, NativeState, NativeStatus
from gateway.batch.native.client import NativeClient
from gateway.batch.native.openai_form import (
    CLOCK_SLACK_S,
    PAGE,
    PAGES_MAX,
    OpenAIForm,
    instant,
)
from gateway.batch.native.spool import Spool
from gateway.catalogue.native_batch import NativeBatchFacts
from gateway.errors import FailureClass
from gateway.wire.errors import error_of
from gateway.wire.pieces import Surface

_STATES = {
    "PENDING": NativeState.RUNNING,
    "RUNNING": NativeState.RUNNING,
    "SUCCEEDED": NativeState.ENDED,
    "CANCELLED": NativeState.ENDED,
    "EXPIRED": NativeState.ENDED,
    "FAILED": NativeState.FAILED,
}


class _Stats(msgspec.Struct, rename="camel"):
    # 64-bit numbers come as text in Google's JSON.
    request_count: int | None = None
    successful_request_count: int = 0
    failed_request_count: int = 0


class _Output(msgspec.Struct, rename="camel"):
    responses_file: str | None = None


class _Input(msgspec.Struct, rename="camel"):
    file_name: str | None = None


class _Batch(msgspec.Struct, rename="camel"):
    state: str = ""
    create_time: str | None = None
    end_time: str | None = None
    batch_stats: _Stats | None = None
    input_config: _Input | None = None
    output: _Output | None = None


class _Operation(msgspec.Struct):
    name: str
    metadata: _Batch = msgspec.field(default_factory=_Batch)
    response: _Output | None = None
    error: dict[str, Any] | None = None

    def to_status(self) -> NativeStatus:
        batch = self.metadata
        word = batch.state.removeprefix("BATCH_STATE_").removeprefix("JOB_STATE_")
        stats = batch.batch_stats or _Stats()
        output = (batch.output or self.response or _Output()).responses_file or ""
        state = _STATES.get(word, NativeState.RUNNING)
        error = error_of({"error": self.error}) if self.error else None
        return NativeStatus(
            batch_id=self.name,
            state=NativeState.ENDED if state is NativeState.FAILED and output else state,
            outcome=word.lower(),
            surface=Surface.CHAT,
            num_lines=stats.request_count,
            num_done=stats.successful_request_count + stats.failed_request_count,
            num_failed=stats.failed_request_count,
            created_at_s=instant(batch.create_time),
            ended_at_s=instant(batch.end_time),
            output_file_id=output,
            errors=(error,) if error is not None else (),
        )


class _Page(msgspec.Struct, rename="camel"):
    operations: list[_Operation] | None = None
    next_page_token: str = ""


class _Named(msgspec.Struct):
    name: str


class _Uploaded(msgspec.Struct):
    file: _Named


class _HasId(msgspec.Struct):
    id: str


class GeminiForm(OpenAIForm):
    def __init__(self, facts: NativeBatchFacts, client: NativeClient) -> None:
        super().__init__(facts, client)
        client.other_key_header = b"x-goog-api-key"
        # https://generativelanguage.googleapis.com/v1beta(/openai): version and host apart.
        native = client.base_url.partition("?")[0].rstrip("/").removesuffix("/openai")
        self._native = native
        self._host, _, self._version = native.rpartition("/")

    async def _upload(self, native_id: str, spool: Spool) -> str:
        start = {
            b"x-goog-upload-protocol": b"resumable",
            b"x-goog-upload-command": b"start",
            b"x-goog-upload-header-content-length": b"%d" % spool.num_bytes,
            b"x-goog-upload-header-content-type": b"application/jsonl",
        }
        described = {"file": {"name": file_name(native_id), "display_name": f"{native_id}.jsonl"}}
        rest = {b"x-goog-upload-offset": b"0", b"x-goog-upload-command": b"upload, finalize"}
        try:
            _, headers = await self._client.send(
                f"{self._host}/upload/{self._version}/files", msgspec.json.encode(described), start
            )
            place = dict(headers).get(b"x-goog-upload-url", b"").decode("latin-1")
            if not place:
                raise NativeError(
                    FailureClass.SERVER_ERROR,
                    "Gemini's answer to an upload does not say where to send the file",
                )
            answer, _ = await self._client.send(self._client.same_origin(place), spool, rest)
        except NativeError as error:
            error.is_lost = False  # a file alone costs nothing and starts nothing
            raise
        uploaded = self._client.read(answer, _Uploaded)
        return uploaded.file.name

    async def _create(self, native_id: str, file_id: str, surface: Surface, window_s: int) -> str:
        wanted = {
            "input_file_id": file_id,
            "endpoint": URL_OF[surface],
            "completion_window": self.window(window_s),
        }
        answer = await self._client.post(self._client.url("/batches"), wanted)
        created = self._client.read(answer, _HasId, is_lost=True)
        return created.id

    async def poll(self, batch_id: str) -> NativeStatus:
        answer = await self._client.get(f"{self._native}/{_resource(batch_id)}")
        operation = self._client.read(answer, _Operation)
        return operation.to_status()

    async def _ask_to_cancel(self, batch_id: str) -> None:
        await self._client.post(f"{self._native}/{_resource(batch_id)}:cancel")

    def file_url(self, file_id: str) -> str:
        path = quote(file_id, safe="/")
        return f"{self._host}/download/{self._version}/{path}:download?alt=media"

    def _delete_url(self, file_id: str) -> str:
        return f"{self._native}/{quote(file_id, safe='/')}"

    async def find(
        self,
        native_id: str,
        *,
        submitted_at_s: float,
        num_lines: int,
        known_ids: Collection[str] = (),
    ) -> Found:
        wanted, token = file_name(native_id), ""
        for _ in range(PAGES_MAX):
            query = {"pageSize": str(PAGE)} | ({"pageToken": token} if token else {})
            answer = await self._client.get(f"{self._native}/batches?{urlencode(query)}")
            page = self._client.read(answer or {}, _Page)
            operations = page.operations or []
            for operation in operations:
                source = operation.metadata.input_config
                if source is not None and source.file_name == wanted:
                    return Found(status=operation.to_status(), is_certain=True)
            oldest = instant(operations[-1].metadata.create_time) if operations else None
            is_past = oldest is not None and oldest < submitted_at_s - CLOCK_SLACK_S
            if not page.next_page_token or is_past:
                return Found(status=None, is_certain=self._client.is_absent(submitted_at_s))
            token = page.next_page_token
        return Found(status=None, is_certain=False)


def file_name(native_id: str) -> str:
    """Our name for the input file: `files/`, then at most 40 small letters, digits and dashes."""
    return f"files/lr-{blake2b(native_id.encode(), digest_size=16).hexdigest()}"


def _resource(batch_id: str) -> str:
    name = batch_id if batch_id.startswith("batches/") else f"batches/{batch_id}"
    return quote(name, safe="/")
