"""A fleet on a virtual clock, and honest outcomes of attempts for it."""

from __future__ import annotations

import itertools
from collections.abc import Callable

from gateway.core import AttemptOutcome, Endpoint, PriceRow, RequestFacts
from gateway.fleet.fleet import Fleet
from gateway.wire.pieces import Dialect, Surface
from gateway.wire.usage import Usage

IDS = ("a/m", "b/m", "c/m")
PRICE = PriceRow(source="policy", input=100_000, output=400_000)


class Clock:
    """Virtual seconds; `wall` lies a fixed way off."""

    def __init__(self, now_s: float = 1_000.0) -> None:
        self.now_s = now_s

    def __call__(self) -> float:
        return self.now_s

    def wall(self) -> float:
        return self.now_s + 1_700_000_000.0

    def advance(self, seconds: float) -> None:
        self.now_s += seconds


class FixedRng:
    """Jitter of exactly zero."""

    def random(self) -> float:
        return 0.5

    def gauss(self, mu: float, sigma: float) -> float:
        return mu


def endpoint(endpoint_id: str = "fast/m", **changes: object) -> Endpoint:
    provider, _, model = endpoint_id.partition("/")
    fields: dict[str, object] = {
        "id": endpoint_id,
        "provider": provider,
        "api": Dialect.OPENAI,
        "base_url": f"https://{provider}.example/v1",
        "model": model,
    }
    fields.update(changes)
    return Endpoint(**fields)  # type: ignore[arg-type]


def make_fleet(
    *endpoint_ids: str,
    clock: Clock,
    price_rows: Callable[[Endpoint, float], tuple[PriceRow, ...]] | None = None,
) -> Fleet:
    ids = itertools.count(1)
    return Fleet(
        [endpoint(endpoint_id) for endpoint_id in endpoint_ids or ("fast/m",)],
        clock=clock,
        wall_clock=clock.wall,
        price_rows=price_rows or (lambda _endpoint, _at: (PRICE,)),
        new_id=lambda: f"id-{next(ids)}",
        rng=FixedRng(),
    )


def facts(**changes: object) -> RequestFacts:
    fields: dict[str, object] = {
        "request_id": "r",
        "surface": Surface.CHAT,
        "models": ("chat",),
        "stream": True,
        "key_id": "k",
        "prompt_tokens": 1_000,
    }
    fields.update(changes)
    return RequestFacts(**fields)  # type: ignore[arg-type]


def streamed(
    now_s: float,
    *,
    endpoint_id: str = "fast/m",
    ttft_s: float = 0.4,
    tokens: int = 200,
    rate: float = 100.0,
    prompt: int = 1_000,
    **changes: object,
) -> AttemptOutcome:
    """A stream that ended at `now_s`: one token an event, evenly spaced, usage reported."""
    span_s = (tokens - 1) / rate
    dispatched_s = now_s - span_s - ttft_s
    first_s = dispatched_s + ttft_s
    stamps = [first_s + idx / rate for idx in range(min(tokens, 512))]
    fields: dict[str, object] = {
        "attempt_id": "a",
        "request_id": "r",
        "endpoint_id": endpoint_id,
        "surface": Surface.CHAT,
        "stream": True,
        "dispatched_at_s": dispatched_s,
        "headers_at_s": dispatched_s + ttft_s / 2,
        "first_byte_at_s": dispatched_s + ttft_s / 2,
        "first_generated_at_s": first_s,
        "first_visible_at_s": first_s,
        "last_generated_at_s": now_s,
        "ended_at_s": now_s,
        "num_frames": tokens,
        "frame_stamps_s": stamps,
        "visible_chars": 4 * tokens,
        "usage": Usage(input=prompt, output=tokens),
        "prompt_tokens_expected": prompt,
        "text_bytes": 4 * prompt,
        "key_id": "k",
        "model": "chat",
        "status": 200,
        "finish": "stop",
        "is_committed": True,
    }
    fields.update(changes)
    return AttemptOutcome(**fields)  # type: ignore[arg-type]


def whole(
    now_s: float, *, seconds: float, tokens: int, endpoint_id: str = "fast/m", **changes: object
) -> AttemptOutcome:
    """An answer that came in one piece."""
    fields: dict[str, object] = {
        "attempt_id": "a",
        "request_id": "r",
        "endpoint_id": endpoint_id,
        "surface": Surface.CHAT,
        "stream": False,
        "dispatched_at_s": now_s - seconds,
        "first_byte_at_s": now_s,
        "first_generated_at_s": now_s,
        "last_generated_at_s": now_s,
        "ended_at_s": now_s,
        "visible_chars": 4 * tokens,
        "usage": Usage(input=1_000, output=tokens),
        "key_id": "k",
        "model": "chat",
        "status": 200,
        "finish": "stop",
    }
    fields.update(changes)
    return AttemptOutcome(**fields)  # type: ignore[arg-type]


def failed(
    now_s: float, failure: str, *, endpoint_id: str = "fast/m", lasted_s: float = 0.1,
    **changes: object,
) -> AttemptOutcome:  # fmt: skip
    """An attempt that ended without a generated token."""
    fields: dict[str, object] = {
        "attempt_id": "a",
        "request_id": "r",
        "endpoint_id": endpoint_id,
        "surface": Surface.CHAT,
        "stream": True,
        "dispatched_at_s": now_s - lasted_s,
        "ended_at_s": now_s,
        "key_id": "k",
        "model": "chat",
        "failure": failure,
    }
    fields.update(changes)
    return AttemptOutcome(**fields)  # type: ignore[arg-type]


def world(*ids: str) -> tuple[Clock, Fleet]:
    clock = Clock()
    return clock, make_fleet(*(ids or IDS), clock=clock)


def serve(fleet: Fleet, clock: Clock, endpoint_id: str, num: int = 1, **changes: object) -> None:
    for _ in range(num):
        clock.advance(1.0)
        fleet.started(endpoint_id)
        fleet.observe(streamed(clock(), endpoint_id=endpoint_id, **changes))  # type: ignore[arg-type]


def fail(fleet: Fleet, clock: Clock, endpoint_id: str, failure: str, **changes: object) -> None:
    clock.advance(0.2)
    fleet.started(endpoint_id)
    fleet.observe(failed(clock(), failure, endpoint_id=endpoint_id, **changes))  # type: ignore[arg-type]
