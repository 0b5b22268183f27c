"""Limits a minute as one number each: GCRA, the virtual-scheduling form of a token bucket.

A window of `limit` a minute holds `limit` at once and refills evenly. Its state is the instant at
which it is full again; taking `cost` moves that by cost · 60 s / limit, to at most 60 s ahead. So
the average never exceeds the limit, and no minute sees more than twice of it.
(ITU-T I.371; the same arithmetic as store/scripts/limits_admit.lua.)
"""

from __future__ import annotations

import math

WINDOW_S = 60.0
_EPSILON_S = 1e-6


def taken(full_at_s: float, now_s: float, *, limit: float, cost: float) -> float:
    """When the window is full again after taking `cost`; a negative cost gives back."""
    return max(full_at_s, now_s) + cost * WINDOW_S / limit


def wait_s(full_at_s: float, now_s: float, *, limit: float, cost: float) -> float:
    """Seconds until `cost` fits; 0 = now. Never ends for a cost above `limit`."""
    wait = taken(full_at_s, now_s, limit=limit, cost=cost) - now_s - WINDOW_S
    return wait if wait > _EPSILON_S else 0.0


def left(full_at_s: float, now_s: float, *, limit: float) -> int:
    """How much may be taken at once now."""
    room_s = now_s + WINDOW_S - max(full_at_s, now_s)
    return max(0, math.floor(room_s * limit / WINDOW_S + 1e-6))
