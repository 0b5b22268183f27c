"""What a restart keeps of the fleet's beliefs, as JSON with a version."""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from gateway.fleet.calibration import CalibrationState
from gateway.fleet.estimator import EstimatorState
from gateway.fleet.live import LiveEndpoint
from gateway.stats.quantiles import HistogramState

STATE_VERSION = 1
AWAY_MAX_S = 7 * 86_400.0  # older beliefs are not worth having


class FleetState(msgspec.Struct, frozen=True):
    """Beliefs by `state_key`. Breakers, in-flight counts and cached prefixes start afresh."""

    version: int
    at_unix_s: float
    credits: float
    endpoints: dict[str, EstimatorState]
    capacities: dict[str, float]
    lengths: dict[str, HistogramState]
    calibrations: dict[str, CalibrationState] = {}


def read_state(exported: Mapping[str, object], wall_s: float) -> tuple[FleetState, float] | None:
    """
    (state, seconds since it was written), or None if it cannot be used.

    Routing quality fails open: a state of another version, a damaged or an old one is dropped and
    the fleet learns anew.
    """
    if exported.get("version") != STATE_VERSION:
        return None
    try:
        # By way of JSON, in which a NaN or an infinity becomes null, and null is no number.
        state = msgspec.json.decode(msgspec.json.encode(exported), type=FleetState)
    except (msgspec.MsgspecError, TypeError):
        return None
    away_s = max(0.0, wall_s - state.at_unix_s)
    return (state, away_s) if away_s <= AWAY_MAX_S else None


def load_endpoints(
    state: FleetState, by_key: Mapping[str, LiveEndpoint], now_s: float, away_s: float
) -> None:
    """Give each endpoint that is still there its beliefs and its learned limit back."""
    for key, live in by_key.items():
        if key in state.endpoints:
            live.estimator.load(state.endpoints[key], now_s, away_s)
            live.capacity.load(state.capacities.get(key, live.capacity.limit))
            live.calibration.load(state.calibrations.get(key, {}), now_s, away_s)
            live.adopt(live.endpoint)
