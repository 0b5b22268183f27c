"""What a simulated provider keeps of its batches, and the steps that both forms share."""

from __future__ import annotations

import random
from typing import Any, Protocol

from gateway.simulator.framing import encode
from gateway.simulator.gate import Refusal
from gateway.simulator.meter import Books
from gateway.simulator.native_jobs import ENDED, Job
from gateway.simulator.native_profile import BatchProfile
from gateway.simulator.profile import ProviderProfile
from gateway.wire.pieces import Surface

PAGE_MAX = 100
_JSON = (b"content-type", b"application/json")
_JSONL = (b"content-type", b"application/jsonl")


class Host(Protocol):
    """What the provider around it lends: its profile, books, clocks and ids, as they are now."""

    @property
    def profile(self) -> ProviderProfile: ...
    @property
    def books(self) -> Books: ...
    @property
    def now_s(self) -> float: ...
    def unix_s(self, at_s: float) -> float: ...
    def new_id(self) -> str: ...


class Answer:
    """What goes back: an object as JSON, or bytes of JSON Lines. `is_lost`: the line goes dead."""

    def __init__(
        self, value: Any = None, *, raw: bytes | None = None, is_lost: bool = False
    ) -> None:
        self.body = encode(value) if raw is None else raw
        self.content_type = _JSON if raw is None else _JSONL
        self.is_lost = is_lost


class NativeStore:
    """All batches of one provider. State is in memory only."""

    def __init__(self, host: Host, *, seed: int) -> None:
        self.host = host
        self.rng = random.Random(seed ^ 0xBA7C4)
        self.jobs: dict[str, Job] = {}
        self.now_s = host.now_s  # up to here everything due is done: what is told, is told of then
        self.num_bytes = 0  # of files, and of batches with their lines in them

    def profile(self) -> BatchProfile:
        batch = self.host.profile.batch
        assert batch is not None
        return batch

    def admit(self, num_bytes: int) -> None:
        """Raises Refusal where there is no room for so many bytes more."""
        if self.host.books.is_full:
            raise Refusal(503, 'the simulated invoice is full; POST {"reset": true} to it')
        if num_bytes > self.profile().bytes_max:
            raise Refusal(413, f"at most {self.profile().bytes_max} bytes are accepted")
        if self.num_bytes + num_bytes > self.profile().stored_bytes_max:
            raise Refusal(429, "the simulated storage is full", code="insufficient_quota")

    def find(self, job_id: str, *, is_messages: bool) -> Job:
        job = self.jobs.get(job_id)
        if job is None or (job.surface is Surface.MESSAGES) is not is_messages:
            raise Refusal(404, f"No batch found with id '{job_id}'.", code="not_found")
        return job

    def cancel(self, job: Job) -> None:
        state = job.state(self.now_s)
        if state in ENDED:
            raise Refusal(409, f"Cannot cancel a batch with status '{state}'.")
        if job.cancelled_s is None:
            job.cancelled_s = self.host.now_s

    def page(
        self, jobs: list[Job], query: dict[str, str], after_name: str
    ) -> tuple[list[Job], bool]:
        """The newest first, from behind `after` on; and whether there are more."""
        newest = sorted(jobs, key=lambda job: (job.created_s, job.id), reverse=True)
        after = query.get(after_name, "")
        ids = [job.id for job in newest]
        begin = ids.index(after) + 1 if after in ids else 0
        asked = query.get("limit", "20")
        limit = min(max(int(asked) if asked.isdigit() else 20, 1), PAGE_MAX)
        return newest[begin : begin + limit], len(newest) > begin + limit
