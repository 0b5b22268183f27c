"""Settings, asks and outcomes made by hand, for tests of the simulator's baselines."""

from __future__ import annotations

import random

from gateway.core import AttemptOutcome, PriceRow
from gateway.errors import FailureClass
from gateway.simulator.routing.baselines.ruled import RuledRouter
from gateway.simulator.routing.router import Ask, Listing, Setting
from gateway.wire.pieces import Surface
from gateway.wire.usage import Usage

MICROS = 1_000_000  # pico-dollars a token = dollars per million tokens x this


class FakeOracle:
    """Times by endpoint; the mean is the time without `noise`."""

    def __init__(self, times_s: dict[str, float], noise_s: dict[str, float]) -> None:
        self.times_s = times_s
        self.noise_s = noise_s

    def time_s(self, idx: int, endpoint_id: str, now_s: float) -> float:
        return self.times_s[endpoint_id] + self.noise_s.get(endpoint_id, 0.0)

    def mean_time_s(self, idx: int, endpoint_id: str, now_s: float) -> float:
        return self.times_s[endpoint_id]


def make_setting(
    names: str = "abc",
    *,
    seed: int = 1,
    prices: dict[str, tuple[float, float]] | None = None,
    cached: dict[str, float] | None = None,
    speeds: dict[str, float] | None = None,
    limits: dict[str, int] | None = None,
    oracle: FakeOracle | None = None,
) -> Setting:
    """Endpoints called by letters; prices in dollars per million tokens (input, output)."""
    rows = {
        name: PriceRow(
            source="policy",
            input=int((prices or {}).get(name, (1.0, 2.0))[0] * MICROS),
            output=int((prices or {}).get(name, (1.0, 2.0))[1] * MICROS),
            cached_read=int((cached or {}).get(name, 0.0) * MICROS),
        )
        for name in names
    }
    listings = tuple(
        Listing(
            endpoint_id=name,
            tokens_per_s=(speeds or {}).get(name, 50.0),
            ttft_s=0.5,
            requests_per_minute=(limits or {}).get(name),
        )
        for name in names
    )
    return Setting(
        listings=listings,
        prices=lambda endpoint_id, now_s: rows[endpoint_id],
        rng=random.Random(seed),
        oracle=oracle or FakeOracle({}, {}),
    )


def make_ask(idx: int = 0, *, prompt_tokens: int = 1_000, session: str = "") -> Ask:
    return Ask(idx=idx, prompt_tokens=prompt_tokens, session_key=session)


def outcome(
    endpoint_id: str,
    now_s: float,
    *,
    ttft_s: float = 0.5,
    whole_s: float = 2.0,
    tokens: int = 100,
    failure: FailureClass | None = None,
    retry_after_s: float | None = None,
) -> AttemptOutcome:
    """One that ended at `now_s`. A failed one gave no token."""
    began_s = now_s - whole_s
    has_answer = failure is None
    return AttemptOutcome(
        attempt_id="1",
        request_id="1",
        endpoint_id=endpoint_id,
        surface=Surface.CHAT,
        stream=True,
        dispatched_at_s=began_s,
        first_generated_at_s=began_s + ttft_s if has_answer else None,
        last_generated_at_s=now_s if has_answer else None,
        ended_at_s=now_s,
        usage=Usage(input=1_000, output=tokens) if has_answer else None,
        failure=failure.value if failure else "",
        retry_after_s=retry_after_s,
    )


def attempt(router: RuledRouter, ended: AttemptOutcome) -> None:
    """Started and ended, as the world does it."""
    router.started(ended.endpoint_id, ended.dispatched_at_s)
    assert ended.ended_at_s is not None
    router.ended(ended, ended.ended_at_s)


def firsts(router: RuledRouter, num: int, now_s: float = 0.0, step_s: float = 0.0) -> list[str]:
    """The first of the order, so many times."""
    orders = (router.order(make_ask(idx), now_s + idx * step_s) for idx in range(num))
    return [order[0] for order in orders]
