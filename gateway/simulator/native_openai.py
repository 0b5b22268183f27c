"""OpenAI's form of a batch API, simulated: `/v1/files` and `/v1/batches`."""

from __future__ import annotations

import io
import re
from dataclasses import dataclass
from typing import Any
from urllib.parse import parse_qsl

import msgspec
from multipart import MultipartError, MultipartParser, parse_options_header

from gateway.simulator.connection import Message
from gateway.simulator.gate import Refusal
from gateway.simulator.native_jobs import ENDED, Entry, Job, JobState, Problem, made
from gateway.simulator.native_profile import BatchFaultMode
from gateway.simulator.native_store import Answer, NativeStore
from gateway.wire.pieces import Surface

PROBLEMS_MAX = 10
URLS: dict[str, Surface] = {
    "/v1/chat/completions": Surface.CHAT,
    "/v1/completions": Surface.COMPLETIONS,
    "/v1/responses": Surface.RESPONSES,
    "/v1/embeddings": Surface.EMBEDDINGS,
}


@dataclass(slots=True)
class StoredFile:
    id: str
    filename: str
    purpose: str
    created_s: float
    data: bytes


class _Line(msgspec.Struct):
    custom_id: str
    method: str
    url: str
    body: msgspec.Raw


class _Model(msgspec.Struct):
    model: str = ""


class _Wanted(msgspec.Struct):
    input_file_id: str
    endpoint: str
    completion_window: str
    metadata: dict[str, str] | None = None


class FilesAndBatches:
    def __init__(self, store: NativeStore) -> None:
        self._store = store
        self._files: dict[str, StoredFile] = {}

    def answer(
        self, scope: Message, headers: dict[bytes, bytes], body: bytes, match: re.Match[str]
    ) -> Answer:
        kind, item, verb = match[1], (match[2] or "")[1:], (match[3] or "")[1:]
        query = dict(parse_qsl(scope.get("query_string", b"").decode("latin-1")))
        match (scope["method"], kind, bool(item), verb):
            case ("POST", "files", False, ""):
                return Answer(self._upload(headers, body))
            case ("GET", "files", False, ""):
                files = [self._file_object(each) for each in self._files.values()]
                return Answer({"object": "list", "data": files[::-1], "has_more": False})
            case ("GET", "files", True, ""):
                return Answer(self._file_object(self._file(item)))
            case ("GET", "files", True, "content"):
                return Answer(raw=self._content(item))
            case ("DELETE", "files", True, ""):
                return Answer(self._delete(item))
            case ("POST", "batches", False, ""):
                return self._create(body)
            case ("GET", "batches", False, ""):
                return Answer(self._list(query))
            case ("GET", "batches", True, ""):
                return Answer(self._batch_object(self._store.find(item, is_messages=False)))
            case ("POST", "batches", True, "cancel"):
                job = self._store.find(item, is_messages=False)
                self._store.cancel(job)
                return Answer(self._batch_object(job))
        raise Refusal(404, f"Unknown request URL: {scope['method']} {scope['path']}")

    def _upload(self, headers: dict[bytes, bytes], body: bytes) -> dict[str, Any]:
        kind, options = parse_options_header(headers.get(b"content-type", b"").decode("latin-1"))
        if kind != "multipart/form-data" or not options.get("boundary"):
            raise Refusal(400, "send the file as multipart/form-data")
        fields: dict[str, str] = {}
        filename, data = "", None
        try:
            parser = MultipartParser(
                io.BytesIO(body),
                options["boundary"],
                content_length=len(body),
                memory_limit=len(body) + 1,
                disk_limit=len(body) + 1,
                strict=True,
            )
            for part in parser:
                if part.name == "file":
                    filename, data = part.filename or "upload", part.raw
                else:
                    fields[part.name] = part.value
        except MultipartError as error:
            raise Refusal(400, f"the form is broken: {error}") from error
        if data is None or fields.get("purpose") != "batch":
            raise Refusal(400, "a batch needs the fields file and purpose=batch")
        self._store.admit(len(data))
        stored = StoredFile(
            f"file-{self._store.host.new_id()}", filename, "batch", self._store.host.now_s, data
        )
        self._files[stored.id] = stored
        self._store.num_bytes += len(data)
        return self._file_object(stored)

    def _file(self, file_id: str) -> StoredFile:
        found = self._files.get(file_id)
        if found is None:
            raise Refusal(404, f"No such File object: {file_id}", code="not_found")
        return found

    def _file_object(self, stored: StoredFile) -> dict[str, Any]:
        return {
            "id": stored.id,
            "object": "file",
            "bytes": len(stored.data),
            "created_at": self._unix(stored.created_s),
            "filename": stored.filename,
            "purpose": stored.purpose,
            "status": "processed",
        }

    def _content(self, file_id: str) -> bytes:
        for job in self._store.jobs.values():
            for suffix, lines in (("out", job.outputs), ("err", job.errors)):
                if file_id == f"file-{job.id}-{suffix}" and self._is_told(job):
                    return b"".join(line + b"\n" for line in lines)
        return self._file(file_id).data

    def _delete(self, file_id: str) -> dict[str, Any]:
        self._store.num_bytes -= len(self._file(file_id).data)
        del self._files[file_id]
        return {"id": file_id, "object": "file", "deleted": True}

    def _create(self, body: bytes) -> Answer:
        try:
            wanted = msgspec.json.decode(body, type=_Wanted)
        except (msgspec.MsgspecError, UnicodeDecodeError) as error:
            raise Refusal(400, f"we could not parse the request: {error}") from error
        surface = URLS.get(wanted.endpoint)
        if surface is None:
            raise Refusal(400, f"'{wanted.endpoint}' is no endpoint of batches")
        if wanted.completion_window != "24h":
            raise Refusal(400, "completion_window must be '24h'")
        stored = self._file(wanted.input_file_id)
        self._store.admit(0)
        entries, problems = self._read(stored.data, wanted.endpoint)
        job = made(
            self._store.profile(),
            entries,
            id=f"batch_{self._store.host.new_id()}",
            surface=surface,
            now_s=self._store.host.now_s,
            rng=self._store.rng,
            problems=tuple(problems),
        )
        job.metadata, job.input_file_id = wanted.metadata, stored.id
        self._store.jobs[job.id] = job
        return Answer(self._batch_object(job), is_lost=BatchFaultMode.LOST_SUBMIT in job.faults)

    def _read(self, data: bytes, url: str) -> tuple[list[Entry], list[Problem]]:
        """The lines of a file, and all that is wrong with it (the first so many)."""
        profile = self._store.profile()
        entries: list[Entry] = []
        problems: list[Problem] = []
        seen: set[str] = set()
        for number, raw in enumerate(data.split(b"\n"), 1):
            if not raw.strip():
                continue
            problem = self._problem_of(raw, number, url, seen, entries)
            if problem is not None:
                problems.append(problem)
            if len(problems) >= PROBLEMS_MAX:
                break
        if not problems and not profile.lines_min <= len(entries) <= profile.lines_max:
            limits = f"{profile.lines_min} to {profile.lines_max}"
            problems.append(
                Problem("invalid_size", f"a batch has {limits} lines, not {len(entries)}")
            )
        return entries, problems

    def _problem_of(
        self, raw: bytes, number: int, url: str, seen: set[str], entries: list[Entry]
    ) -> Problem | None:
        try:
            line = msgspec.json.decode(raw, type=_Line)
            model = msgspec.json.decode(line.body, type=_Model).model
        except (msgspec.MsgspecError, UnicodeDecodeError) as error:
            return Problem("invalid_json_line", f"This line is not parseable: {error}", number)
        if line.custom_id in seen:
            message = f"The custom_id '{line.custom_id}' is used twice."
            return Problem("duplicate_custom_id", message, number, "custom_id")
        if line.method != "POST" or line.url != url:
            return Problem("mismatched_endpoint", f"Every line must POST to {url}.", number, "url")
        if model != self._store.host.profile.model:
            message = f"The model '{model}' does not exist."
            return Problem("model_not_found", message, number, "body.model")
        seen.add(line.custom_id)
        entries.append(Entry(len(entries) + 1, line.custom_id, bytes(line.body)))
        return None

    def _list(self, query: dict[str, str]) -> dict[str, Any]:
        jobs = [job for job in self._store.jobs.values() if job.surface is not Surface.MESSAGES]
        page, has_more = self._store.page(jobs, query, "after")
        listed = [self._batch_object(job) for job in page]
        return {
            "object": "list",
            "data": listed,
            "first_id": listed[0]["id"] if listed else None,
            "last_id": listed[-1]["id"] if listed else None,
            "has_more": has_more,
        }

    def _is_told(self, job: Job) -> bool:
        return job.state(self._store.now_s) in ENDED

    def _unix(self, at_s: float) -> int:
        return int(self._store.host.unix_s(at_s))

    def _batch_object(self, job: Job) -> dict[str, Any]:
        state = job.state(self._store.now_s)
        is_told = state in ENDED
        ended = self._unix(job.ends_s) if is_told else None
        begun = state not in (JobState.VALIDATING, JobState.FAILED)
        problems = [
            {"code": p.code, "message": p.message, "line": p.line, "param": p.param}
            for p in job.problems
        ]
        asked = job.cancelled_s
        return {
            "id": job.id,
            "object": "batch",
            "endpoint": next(url for url, surface in URLS.items() if surface is job.surface),
            "errors": {"object": "list", "data": problems} if state is JobState.FAILED else None,
            "input_file_id": job.input_file_id,
            "completion_window": "24h",
            "status": str(state),
            "output_file_id": f"file-{job.id}-out" if is_told and job.outputs else None,
            "error_file_id": f"file-{job.id}-err" if is_told and job.errors else None,
            "created_at": self._unix(job.created_s),
            "in_progress_at": self._unix(job.starts_s) if begun else None,
            "expires_at": self._unix(job.expires_s),
            "finalizing_at": ended if state is JobState.COMPLETED else None,
            "completed_at": ended if state is JobState.COMPLETED else None,
            "failed_at": ended if state is JobState.FAILED else None,
            "expired_at": ended if state is JobState.EXPIRED else None,
            "cancelling_at": self._unix(asked) if asked is not None else None,
            "cancelled_at": ended if state is JobState.CANCELLED else None,
            "request_counts": {
                "total": 0 if job.problems else job.num_lines,
                "completed": job.num_succeeded,
                "failed": job.num_failed + job.num_undone,
            },
            "usage": {
                "input_tokens": job.prompt_tokens,
                "input_tokens_details": {"cached_tokens": 0},
                "output_tokens": job.output_tokens,
                "output_tokens_details": {"reasoning_tokens": 0},
                "total_tokens": job.prompt_tokens + job.output_tokens,
            },
            "metadata": job.metadata,
        }
