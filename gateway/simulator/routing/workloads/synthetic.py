"""Traffic for a machine without traces: seeded, with the statistics of the public ones.

*Conversation*: Azure's conversation hour, as a doubly stochastic Poisson process
whose rate wanders (5.4/s; counts a minute vary by a quarter) and a table of prompt bands, each with
its own answer lengths: in the trace the two depend on each other, but not by a correlation
(short prompts are answered in 100 tokens, those of 1,100 in 400, those of 4,080 in 50). *Code*: the
same with Azure's code table, in bursts. Growing conversations with prefixes: `multiturn`.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from gateway.simulator.routing.arrivals import Arrival
from gateway.simulator.routing.workloads.azure_tables import (
    CODE_BANDS,
    CONVERSATION_BANDS,
    QUANTILES,
    Band,
)
from gateway.simulator.routing.workloads.traces import (
    Floats,
    Ints,
    check_scale,
    copies_of,
    merged,
)

STEP_S = 1.0  # of the wandering rate


@dataclass(frozen=True, slots=True)
class Traffic:
    """A kind of traffic: how often, how unevenly, how long."""

    requests_per_s: float
    rate_sigma: float  # of ln(rate), which wanders …
    rate_tau_s: float  # … and forgets over this time
    bands: tuple[Band, ...]


CONVERSATION = Traffic(5.4, 0.25, 600.0, CONVERSATION_BANDS)
CODE = Traffic(2.57, 1.4, 25.0, CODE_BANDS)


def synthetic(
    traffic: Traffic, *, seed: int, duration_s: float, load: float
) -> tuple[Arrival, ...]:
    """`duration_s` of that traffic; load xK is K processes with rates of their own."""
    check_scale(duration_s, load)
    shares = copies_of(load)
    rngs = [np.random.default_rng([seed, copy]) for copy in range(len(shares))]
    parts = [
        _one_process(traffic, share, duration_s, rng)
        for share, rng in zip(shares, rngs, strict=True)
    ]
    return merged(parts, duration_s)


def _one_process(
    traffic: Traffic, share: float, duration_s: float, rng: np.random.Generator
) -> tuple[Floats, Ints, Ints]:
    at_s = wandering_arrivals(traffic, share, duration_s, rng)
    prompts, outputs = draw_lengths(traffic.bands, len(at_s), rng)
    return at_s, prompts, outputs


def wandering_arrivals(
    traffic: Traffic, share: float, duration_s: float, rng: np.random.Generator
) -> Floats:
    """Poisson arrivals whose ln(rate) is a stationary Ornstein-Uhlenbeck path, mean rate kept."""
    num_steps = math.ceil(duration_s / STEP_S)
    keep = math.exp(-STEP_S / traffic.rate_tau_s)
    noise = rng.standard_normal(num_steps) * math.sqrt(1.0 - keep * keep)
    level = float(rng.standard_normal())
    levels = np.empty(num_steps)
    for idx, step in enumerate(noise.tolist()):
        levels[idx] = level
        level = keep * level + step
    sigma = traffic.rate_sigma
    rates = traffic.requests_per_s * share * np.exp(sigma * levels - sigma * sigma / 2.0)
    counts = rng.poisson(rates * STEP_S)
    at_s = (np.repeat(np.arange(num_steps), counts) + rng.random(int(counts.sum()))) * STEP_S
    at_s.sort()
    arrivals: Floats = at_s[at_s < duration_s]
    return arrivals


def draw_lengths(bands: tuple[Band, ...], num: int, rng: np.random.Generator) -> tuple[Ints, Ints]:
    """Prompt and answer lengths of `num` requests: a band each, then both from its quantiles."""
    shares = np.array([band.share for band in bands])
    edges = np.cumsum(shares) / shares.sum()
    which = np.searchsorted(edges, rng.random(num), side="right")
    at_prompt, at_output = rng.random(num), rng.random(num)
    prompts, outputs = np.ones(num, dtype=np.int64), np.ones(num, dtype=np.int64)
    for idx, band in enumerate(bands):
        here = np.flatnonzero(which == idx)
        prompts[here] = _between(band.prompt_tokens, at_prompt[here])
        outputs[here] = _between(band.output_tokens, at_output[here])
    return prompts, outputs


def _between(tokens: tuple[int, ...], at: Floats) -> Ints:
    # Between two quantiles geometrically: lengths thin out upwards, and a straight line has too
    # many in the upper half.
    lengths = np.exp(np.interp(at, QUANTILES, np.log(tokens)))
    return np.maximum(np.rint(lengths), 1).astype(np.int64)
