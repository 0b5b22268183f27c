"""What a simulated provider checks before it works: key, request rate, concurrency."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import msgspec

from gateway.simulator.profile import Fault, ProviderProfile


class Refusal(Exception):
    """Answered without billable work."""

    def __init__(
        self,
        status: int,
        message: str,
        *,
        code: str | None = None,
        retry_after_s: int | None = None,
    ) -> None:
        super().__init__(message)
        self.status = status
        self.code = code
        self.retry_after_s = retry_after_s


def is_authorised(profile: ProviderProfile, headers: dict[bytes, bytes]) -> bool:
    if not profile.api_key:
        return True
    bearer = headers.get(b"authorization", b"").removeprefix(b"Bearer ")
    wanted = profile.api_key.encode()
    return wanted in (bearer, headers.get(b"x-api-key"), headers.get(b"api-key"))


def directed_faults(directives: dict[str, str]) -> tuple[Fault, ...]:
    """The fault that `[[sim fault=…]]` in the prompt asks for, if any."""
    numbers = {
        field: int(directives[key])
        for key, field in (("status", "status"), ("after", "after_tokens"))
        if directives.get(key, "").isdigit()
    }
    try:
        return (msgspec.convert({"mode": directives.get("fault"), **numbers}, Fault),)
    except msgspec.ValidationError:
        return ()  # no fault of that name: the text is only text


class Gate:
    """The request-rate limit (GCRA) and the number of requests at work."""

    def __init__(self) -> None:
        self._due_s = 0.0  # when the next request would come at exactly the permitted rate
        self.in_flight = 0

    def reset(self) -> None:
        self._due_s = 0.0

    def check_rate(self, profile: ProviderProfile, now_s: float) -> None:
        if profile.requests_per_minute is None:
            return
        gap_s = 60.0 / profile.requests_per_minute
        due_s = max(self._due_s, now_s)
        wait_s = due_s - now_s - gap_s * (profile.requests_burst - 1)
        if wait_s > 1e-9:
            raise Refusal(
                429,
                f"Rate limit reached: {profile.requests_per_minute} requests per minute.",
                code="rate_limit_exceeded",
                retry_after_s=max(1, -int(-wait_s // 1)),
            )
        self._due_s = due_s + gap_s

    @contextmanager
    def admitted(self, profile: ProviderProfile) -> Iterator[None]:
        most = profile.concurrency_max
        if most is not None and self.in_flight >= most:
            raise Refusal(503, "The server is overloaded.", code="overloaded", retry_after_s=1)
        self.in_flight += 1
        try:
            yield
        finally:
            self.in_flight -= 1
