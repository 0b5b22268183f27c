"""Numbers about one endpoint for people: every estimate with its n and interval."""

from __future__ import annotations

from gateway.fleet.live import LiveEndpoint
from gateway.stats.intervals import Measured

SHARE_MINUTES = 5


def summarise(live: LiveEndpoint, num_started: int, now_s: float) -> dict[str, object]:
    """
    The status page's row of one endpoint; `num_started` counts the whole fleet's last minutes.

    An estimate is {value, low, high, n, level}, or null before the first sample; an end that the
    samples cannot bound is absent.
    """
    estimator = live.estimator
    estimator.success.decay(now_s)
    state, reopens_in_s = live.shut(now_s)
    rate = estimator.shown_rate(now_s)
    sampled_at_s = estimator.sampled_at_s
    return {
        "endpoint_id": live.endpoint.id,
        "n": estimator.num_samples,
        "sample_age_s": now_s - sampled_at_s if sampled_at_s is not None else None,
        "ttft_p50_s": _shown(estimator.shown_ttft("ttft_any")),
        "ttft_visible_p50_s": _shown(estimator.shown_ttft("ttft_visible")),
        "ttft_visible_p95_s": _shown(estimator.shown_ttft("ttft_visible", 0.95)),
        "decode_tokens_per_s": _shown(rate),
        "characters_per_s": _shown(_scaled(rate, estimator.tokens.characters_per_token)),
        "success": _shown(estimator.success.measured()),
        "in_flight": live.in_flight,
        "capacity": live.capacity.now(now_s),
        "breaker": state,
        "reopens_in_s": reopens_in_s,
        "held": live.held,
        "in_flight_elsewhere": live.elsewhere.total,
        "is_cooling": live.capacity.cooling_s(now_s) > 0.0,
        "share": {
            "minutes": SHARE_MINUTES,
            "started": live.started.last(SHARE_MINUTES, now_s),
            "of": num_started,
        },
        "num_pushed_back": live.num_rate_limited.last(SHARE_MINUTES, now_s),
        "hides_reasoning": estimator.hides_reasoning,
        "refused_rates": {why.value: num for why, num in estimator.num_refused_rates.items()},
        "machine": _machine(live, now_s),
        "calibration": live.calibration.summary(now_s),
    }


def _machine(live: LiveEndpoint, now_s: float) -> dict[str, object] | None:
    """A self-hosted server's own account; None where it gave none in the last minute."""
    told = live.capacity.told(now_s)
    if told is None:
        return None
    return {
        "age_s": live.capacity.told_s_ago(now_s),
        "is_full": live.capacity.is_full(live.in_flight, now_s),
        "num_running": told.num_running,
        "num_waiting": told.num_waiting,
        "cache_use": told.cache_use,
        "tokens_per_s": told.tokens_per_s,
        "prompt_tokens_per_s": told.prompt_tokens_per_s,
        "decode_step_s": {str(size): seconds for size, seconds in told.decode_step_s},
        "prefill_token_s": told.prefill_token_s,
    }


def _shown(measured: Measured | None) -> dict[str, float] | None:
    return measured.as_dict() if measured is not None else None


def _scaled(measured: Measured | None, factor: float) -> Measured | None:
    if measured is None:
        return None
    return Measured(
        measured.value * factor,
        measured.low * factor,
        measured.high * factor,
        measured.n,
        measured.level,
    )
