"""Anthropic's form of a batch API, simulated: `/v1/messages/batches`."""

from __future__ import annotations

import re
from datetime import UTC, datetime
from typing import Any
from urllib.parse import parse_qsl

import msgspec

from gateway.simulator.connection import Message
from gateway.simulator.gate import Refusal
from gateway.simulator.native_jobs import ENDED, Entry, Job, JobState, made
from gateway.simulator.native_profile import BatchFaultMode
from gateway.simulator.native_store import Answer, NativeStore
from gateway.wire.pieces import Surface

_CUSTOM_ID = re.compile(r"[a-zA-Z0-9_-]{1,64}")


class _Request(msgspec.Struct):
    custom_id: str
    params: msgspec.Raw


class _Wanted(msgspec.Struct):
    requests: list[_Request]


class MessageBatches:
    def __init__(self, store: NativeStore) -> None:
        self._store = store

    def answer(
        self, scope: Message, headers: dict[bytes, bytes], body: bytes, match: re.Match[str]
    ) -> Answer:
        item, verb = (match[2] or "")[1:], (match[3] or "")[1:]
        query = dict(parse_qsl(scope.get("query_string", b"").decode("latin-1")))
        match (scope["method"], bool(item), verb):
            case ("POST", False, ""):
                return self._create(body, headers)
            case ("GET", False, ""):
                return Answer(self._list(query, headers))
            case ("GET", True, ""):
                return Answer(self._object(self._store.find(item, is_messages=True), headers))
            case ("GET", True, "results"):
                return Answer(raw=self._results(self._store.find(item, is_messages=True)))
            case ("POST", True, "cancel"):
                job = self._store.find(item, is_messages=True)
                self._store.cancel(job)
                return Answer(self._object(job, headers))
            case ("DELETE", True, ""):
                job = self._store.find(item, is_messages=True)
                if job.state(self._store.now_s) not in ENDED:
                    raise Refusal(400, "cancel a batch before it is deleted")
                del self._store.jobs[job.id]
                return Answer({"id": job.id, "type": "message_batch_deleted"})
        raise Refusal(404, f"Unknown request URL: {scope['method']} {scope['path']}")

    def _create(self, body: bytes, headers: dict[bytes, bytes]) -> Answer:
        profile = self._store.profile()
        self._store.admit(len(body))
        try:
            wanted = msgspec.json.decode(body, type=_Wanted)
        except (msgspec.MsgspecError, UnicodeDecodeError) as error:
            raise Refusal(400, f"requests: {error}") from error
        if not profile.lines_min <= len(wanted.requests) <= profile.lines_max:
            limits = f"{profile.lines_min} to {profile.lines_max}"
            raise Refusal(400, f"requests: a batch has {limits} of them")
        names = [each.custom_id for each in wanted.requests]
        for index, name in enumerate(names):
            if not _CUSTOM_ID.fullmatch(name):
                raise Refusal(400, f"requests.{index}.custom_id: must match {_CUSTOM_ID.pattern}")
        if len(set(names)) < len(names):
            raise Refusal(400, "requests: custom_id must be unique within a batch")
        entries = [
            Entry(number, each.custom_id, bytes(each.params))
            for number, each in enumerate(wanted.requests, 1)
        ]
        job = made(
            profile,
            entries,
            id=f"msgbatch_{self._store.host.new_id()}",
            surface=Surface.MESSAGES,
            now_s=self._store.host.now_s,
            rng=self._store.rng,
        )
        if job.problems:  # this API has no state for it: what is wrong is told at once
            raise Refusal(400, job.problems[0].message)
        self._store.jobs[job.id] = job
        self._store.num_bytes += len(body)
        is_lost = BatchFaultMode.LOST_SUBMIT in job.faults
        return Answer(self._object(job, headers), is_lost=is_lost)

    def _list(self, query: dict[str, str], headers: dict[bytes, bytes]) -> dict[str, Any]:
        jobs = [job for job in self._store.jobs.values() if job.surface is Surface.MESSAGES]
        page, has_more = self._store.page(jobs, query, "after_id")
        listed = [self._object(job, headers) for job in page]
        return {
            "data": listed,
            "has_more": has_more,
            "first_id": listed[0]["id"] if listed else None,
            "last_id": listed[-1]["id"] if listed else None,
        }

    def _results(self, job: Job) -> bytes:
        if job.state(self._store.now_s) not in ENDED:
            raise Refusal(404, "the batch has no results before it has ended", code="not_found")
        return b"".join(line + b"\n" for line in (*job.outputs, *job.errors))

    def _object(self, job: Job, headers: dict[bytes, bytes]) -> dict[str, Any]:
        state = job.state(self._store.now_s)
        has_ended = state in ENDED
        # As there, all lines count as being processed until the batch has ended.
        counts = dict.fromkeys(("processing", "succeeded", "errored", "canceled", "expired"), 0)
        if has_ended:
            counts["succeeded"], counts["errored"] = job.num_succeeded, job.num_failed
            counts["expired" if state is JobState.EXPIRED else "canceled"] = job.num_undone
        else:
            counts["processing"] = job.num_lines
        word = "canceling" if state is JobState.CANCELLING else "in_progress"
        place = headers.get(b"host", b"localhost").decode("latin-1")
        return {
            "id": job.id,
            "type": "message_batch",
            "processing_status": "ended" if has_ended else word,
            "request_counts": counts,
            "created_at": self._time(job.created_s),
            "expires_at": self._time(job.expires_s),
            "ended_at": self._time(job.ends_s) if has_ended else None,
            "archived_at": None,
            "cancel_initiated_at": self._time(job.cancelled_s),
            "results_url": f"http://{place}/v1/messages/batches/{job.id}/results"
            if has_ended
            else None,
        }

    def _time(self, at_s: float | None) -> str | None:
        if at_s is None:
            return None
        return datetime.fromtimestamp(self._store.host.unix_s(at_s), UTC).isoformat()
