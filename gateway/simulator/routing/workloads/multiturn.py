"""Conversations that grow turn by turn, in shared prefix blocks, for a machine without traces.

Statistics of Mooncake's conversation hour: 3.4 requests/s, prompts p50/p95 6,900/39,600 tokens,
answers p50/p95 350/698, every prompt begins with one common block, and with an endless cache 36.6 %
of all blocks have been seen before. A next turn repeats the last prompt and answer and adds text;
half of them come within two minutes.
"""

from __future__ import annotations

import math

import numpy as np

from gateway.simulator.routing.arrivals import BLOCK_TOKENS, Arrival
from gateway.simulator.routing.workloads.traces import check_scale, copies_of

REQUESTS_PER_S = 3.4
CONTINUES = 0.38  # chance that a turn has a next one
PAUSE_MEDIAN_S = 120.0  # from a turn's arrival to the next one's; an answer takes most of the rest
PAUSE_SIGMA = 0.9
PAUSE_MIN_S = 20.0
FIRST_MEDIAN_TOKENS = 5_700.0
FIRST_SIGMA = 1.15
FIRST_TOKENS_MIN = 900
ADDED_MEDIAN_TOKENS = 700.0
ADDED_SIGMA = 1.2
PROMPT_TOKENS_MAX = 126_000
OUTPUT_QUANTILES = (0.0, 0.05, 0.25, 0.5, 0.75, 0.95, 0.99, 1.0)
OUTPUT_TOKENS = (1, 10, 160, 350, 480, 698, 950, 2_000)
EARLIER_S = 1_800.0  # sessions that had begun before the run are in it, as in any recorded hour
COMMON_BLOCK = 0


def multi_turn(*, seed: int, duration_s: float, load: float) -> tuple[Arrival, ...]:
    """`duration_s` of growing conversations; load xK has K times the sessions, none twice."""
    check_scale(duration_s, load)
    found: list[Arrival] = []
    next_block = COMMON_BLOCK + 1
    for copy, share in enumerate(copies_of(load)):
        rng = np.random.default_rng([seed, copy])
        sessions_per_s = REQUESTS_PER_S * share * (1.0 - CONTINUES)
        num_sessions = int(rng.poisson(sessions_per_s * (duration_s + EARLIER_S)))
        starts_s = np.sort(rng.random(num_sessions)) * (duration_s + EARLIER_S) - EARLIER_S
        for idx, start_s in enumerate(starts_s.tolist()):
            turns = _session(f"{copy}-{idx}", start_s, next_block, rng)
            next_block += sum(len(turn.blocks) for turn in turns)
            found += [turn for turn in turns if 0.0 <= turn.at_s < duration_s]
    found.sort(key=lambda arrival: arrival.at_s)
    return tuple(found)


def _session(
    session: str, start_s: float, next_block: int, rng: np.random.Generator
) -> list[Arrival]:
    """
    One conversation. A turn's blocks are those of the last turn that were full, then new ones.

    The part block at a prompt's end is no prefix of the next prompt's block, so it is new again.
    """
    first = rng.lognormal(math.log(FIRST_MEDIAN_TOKENS), FIRST_SIGMA)
    prompt_tokens = min(max(int(first), FIRST_TOKENS_MIN), PROMPT_TOKENS_MAX)
    full: tuple[int, ...] = (COMMON_BLOCK,)
    at_s = start_s
    turns: list[Arrival] = []
    while True:
        num_new = -(-prompt_tokens // BLOCK_TOKENS) - len(full)
        blocks = (*full, *range(next_block, next_block + num_new))
        next_block += num_new
        output_tokens = int(np.interp(rng.random(), OUTPUT_QUANTILES, OUTPUT_TOKENS))
        turns.append(
            Arrival(
                at_s=at_s,
                prompt_tokens=prompt_tokens,
                output_tokens=output_tokens,
                blocks=blocks,
                session=session,
            )
        )
        if rng.random() >= CONTINUES:
            return turns
        full = blocks[: prompt_tokens // BLOCK_TOKENS]
        added = int(rng.lognormal(math.log(ADDED_MEDIAN_TOKENS), ADDED_SIGMA))
        prompt_tokens += output_tokens + added
        if prompt_tokens > PROMPT_TOKENS_MAX:
            return turns
        at_s += max(PAUSE_MIN_S, rng.lognormal(math.log(PAUSE_MEDIAN_S), PAUSE_SIGMA))
