"""LiteLLM `latency-based-routing` before April 2026. Source: gateways 2, LL#25548 and LL#40202.

Two faults, both mended since: once ten samples were held, a new one replaced only the newest, so
the nine oldest were frozen for good; and the time to first token was divided by the number of
completion tokens, so long answers made a slow deployment look fast.
"""

from __future__ import annotations

from gateway.simulator.routing.baselines.litellm_cooldown import LiteLlmCooldown
from gateway.simulator.routing.baselines.litellm_lowest_latency import (
    SAMPLES_MAX,
    LowestLatency,
    Release,
)
from gateway.simulator.routing.baselines.ruled import Roster, RuledRouter
from gateway.simulator.routing.router import Setting


def nine_oldest_and_newest(samples: list[float], newest: float) -> list[float]:
    return [*samples[: SAMPLES_MAX - 1], newest]


OLD = Release(keep=nine_oldest_and_newest, ttft_sample=lambda ttft, tokens: ttft / tokens)


def litellm_lowest_latency_old(setting: Setting) -> RuledRouter:
    roster = Roster(setting.listings)
    rule = LowestLatency(roster, setting.rng, OLD)
    return RuledRouter("litellm_lowest_latency_old", roster, rule, LiteLlmCooldown(roster))
