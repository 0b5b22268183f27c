"""The worlds that batch jobs are planned in. Every seed draws prices, rates, fates and jobs anew.

Two public models are sold: a small one, which a machine of one's own serves too, and a large one.
Of each, `pine` sells at once, at a flex tier and in batches, `oak` at once and in batches, `elm` at
once, in some worlds at half price for a third of the day. Native batches take a median of 7
minutes, 90 % an hour, as OpenRouter reports of its own, and two in a hundred a whole day; a world
says what is otherwise.
"""

from __future__ import annotations

from math import log

import msgspec
import numpy as np
from numpy.typing import NDArray

from gateway.core import PriceRow
from gateway.policy.placement_terms import LaneKind, PriceWindow
from gateway.simulator.batch.world import LINE_TOKENS, SLOT_S, Fates, Job, Steps, TrueLane, World

Floats = NDArray[np.float64]

PICOS_OF_USD_PER_MTOK = 1_000_000
HOUR_S = 3_600.0
DAY_S = 24.0 * HOUR_S
ARRIVING_S = 10.0 * HOUR_S  # jobs come in this time …
HORIZON_S = ARRIVING_S + DAY_S  # … and the last ends in this
STEP_S = 300.0  # of a rate
SEED_SALT = 0xBA_7C

SMALL, LARGE = "small", "large"
USD_PER_MTOK = {SMALL: (0.25, 1.0), LARGE: (1.25, 5.0)}  # input, output, at `pine` at once
NUM_JOBS = {SMALL: 10, LARGE: 6}
NATIVE_FACTOR, FLEX_FACTOR, CHEAP_HOURS_FACTOR = 0.5, 0.5, 0.5
CHEAP_FROM_S, CHEAP_UNTIL_S = 16.5 * HOUR_S, 24.5 * HOUR_S  # DeepSeek's hours of 2025, in UTC
OWN_FACTOR = (0.12, 0.25)  # marginal price of one's own machine, of the small model's

# A turnaround is this floor and a log-normal: median 7 min, 90 % within an hour …
FLOOR_S, MEDIAN_S, P90_S = 120.0, 300.0, 3_480.0
STUCK_SHARE, STUCK_S = 0.02, DAY_S  # … and some a day
Z_P90 = 1.2815515655446004


TIGHT_S = tuple(minutes * 60.0 for minutes in (10.0, 20.0, 40.0, 60.0))
# A job that would take more than this share of its time at once, on all that is sold, is not
# admitted: it could not be promised.
ADMITTED_SHARE = 0.35
RATES = {"pine": 6.0, "oak": 8.0, "elm": 5.0}  # lines of ordinary size a second, on average


class Recipe(msgspec.Struct, frozen=True, kw_only=True):
    """What is otherwise in a world."""

    deadlines_s: tuple[float, ...] = tuple(h * HOUR_S for h in (1.0, 3.0, 6.0, 12.0, 24.0))
    lines_median: float = 1_500.0
    has_native: bool = True
    has_flex: bool = True
    has_cheap_hours: bool = False
    native_median_s: float = MEDIAN_S
    native_p90_s: float = P90_S
    expiring_share: float = 0.0  # of native batches
    native_outages: bool = False
    endpoint_outages: int = 0
    own_rate: float = 0.30  # lines a second left of one's own machine on average
    own_bursts: bool = False
    starts_s: tuple[float, float] = (0.0, DAY_S)  # the hour of day at which it begins


RECIPES: dict[str, Recipe] = {
    "calm": Recipe(),
    "slow-native": Recipe(native_median_s=5.0 * HOUR_S, native_p90_s=14.0 * HOUR_S),
    "expiring-native": Recipe(expiring_share=0.4),
    "price-windows": Recipe(has_native=False, has_flex=False, has_cheap_hours=True),
    "busy-backend": Recipe(own_rate=0.6, own_bursts=True),
    "native-outage": Recipe(native_outages=True, endpoint_outages=1),
    "tight-deadline": Recipe(
        deadlines_s=TIGHT_S,
        lines_median=600.0,
        native_median_s=3.0 * HOUR_S,
        native_p90_s=8.0 * HOUR_S,
    ),
    "mixed": Recipe(
        has_cheap_hours=True,
        expiring_share=0.15,
        native_outages=True,
        endpoint_outages=2,
        own_rate=0.6,
        own_bursts=True,
    ),
    "coin-flip": Recipe(deadlines_s=TIGHT_S, lines_median=600.0),
}
WORLDS = tuple(RECIPES)
# Native batches are as likely back before these deadlines as not. Only who knows every fate can
# tell, so the cost over the reference's is the price of not knowing, and is held to no bound.
COIN_FLIP = "coin-flip"


def make_world(name: str, seed: int) -> World:
    """Raises ValueError for a name that nobody has."""
    if name not in RECIPES:
        raise ValueError(f"there is no world {name!r}; there are {', '.join(WORLDS)}")
    recipe = RECIPES[name]
    rng = np.random.default_rng((seed, SEED_SALT, WORLDS.index(name)))
    start_s = float(rng.uniform(*recipe.starts_s))
    lanes = [lane for model in USD_PER_MTOK for lane in _lanes(model, recipe, start_s, rng)]
    lanes.append(_own(recipe, rng))
    jobs = [job for model in USD_PER_MTOK for job in _jobs(model, recipe, rng)]
    return World(
        name=name,
        seed=seed,
        lanes=tuple(lanes),
        jobs=tuple(sorted(jobs, key=lambda job: job.arrives_s)),
    )


def _jobs(model: str, recipe: Recipe, rng: np.random.Generator) -> list[Job]:
    jobs = []
    for number in range(NUM_JOBS[model]):
        output = float(LINE_TOKENS * np.exp(rng.normal(0.0, 0.3)))
        arrives_s = float(rng.uniform(0.0, ARRIVING_S))
        lasts_s = float(rng.choice(recipe.deadlines_s))
        most = ADMITTED_SHARE * lasts_s * sum(RATES.values()) * LINE_TOKENS / output
        lines = recipe.lines_median * float(np.exp(rng.normal(0.0, 1.0)))
        jobs.append(
            Job(
                id=f"{model}-{number}",
                model=model,
                arrives_s=arrives_s,
                deadline_s=arrives_s + lasts_s,
                count=int(np.clip(lines, 60, min(20_000.0, most))),
                prompt_tokens=float(round(600.0 * np.exp(rng.normal(0.0, 0.5)))),
                output_tokens=output,
                true_output_tokens=output * float(np.exp(rng.normal(0.0, 0.15))),
            )
        )
    return jobs


def _lanes(model: str, recipe: Recipe, start_s: float, rng: np.random.Generator) -> list[TrueLane]:
    """Everything that is sold of one model."""
    factors = {"pine": 1.0, "oak": float(rng.uniform(1.05, 1.25)), "elm": 1.1}
    down = _outages(recipe.endpoint_outages, list(factors), rng)
    lanes = []
    for name, factor in factors.items():
        endpoint_id = f"{name}/{model}"
        windows = _always(model, "standard", factor)
        if name == "elm" and recipe.has_cheap_hours:
            windows = _cheap_hours(model, factor, start_s)
        rate = RATES[name] * float(rng.uniform(0.7, 1.3))
        lanes.append(_sync(endpoint_id, model, windows, _drifting(rate, down[name], rng)))
        if name == "pine" and recipe.has_flex:
            flex = _drifting(float(rng.uniform(0.3, 0.8)), down[name], rng)
            windows = _always(model, "flex", factor * FLEX_FACTOR)
            lanes.append(_sync(endpoint_id, model, windows, flex, tier="flex"))
        if name != "elm" and recipe.has_native:
            lanes.append(
                TrueLane(
                    id=f"{endpoint_id}#native",
                    endpoint_id=endpoint_id,
                    model=model,
                    kind="native",
                    tier="standard",
                    windows=_always(model, "batch", factor * NATIVE_FACTOR),
                    fates=_fates(recipe, rng),
                )
            )
    return lanes


def _own(recipe: Recipe, rng: np.random.Generator) -> TrueLane:
    """One's own machine: what interactive work leaves of the policy's share of it."""
    times_s = np.arange(0.0, HORIZON_S, STEP_S)
    swing = 1.0 + 0.5 * np.sin(2.0 * np.pi * (times_s / DAY_S + rng.uniform()))
    rates = recipe.own_rate * swing * np.exp(rng.normal(0.0, 0.2, len(times_s)))
    if recipe.own_bursts:
        for start in rng.uniform(0.0, HORIZON_S, 30):  # interactive work takes all of it
            lasts = rng.uniform(600.0, 5_400.0)
            rates[(times_s >= start) & (times_s < start + lasts)] = 0.0
    return _sync(
        "own/small",
        SMALL,
        _always(SMALL, "standard", float(rng.uniform(*OWN_FACTOR))),
        Steps(times_s, rates),
        kind="own",
    )


def _sync(
    endpoint_id: str,
    model: str,
    windows: tuple[PriceWindow, ...],
    rate: Steps,
    *,
    tier: str = "standard",
    kind: LaneKind = "sync",
) -> TrueLane:
    return TrueLane(
        id=f"{endpoint_id}#{tier}",
        endpoint_id=endpoint_id,
        model=model,
        kind=kind,
        tier=tier,
        windows=windows,
        rate=rate,
    )


def _drifting(mean: float, down: list[tuple[float, float]], rng: np.random.Generator) -> Steps:
    """A rate that wanders by a fifth, and is 0 while its endpoint is down."""
    times_s = np.arange(0.0, HORIZON_S, STEP_S)
    noise = rng.normal(0.0, 1.0, len(times_s))
    level, logs = 0.0, np.empty(len(times_s))
    for idx, step in enumerate(noise):
        level = 0.9 * level + 0.2 * (1.0 - 0.9**2) ** 0.5 * float(step)
        logs[idx] = level
    rates = mean * np.exp(logs)
    for from_s, until_s in down:
        rates[(times_s >= from_s) & (times_s < until_s)] = 0.0
    return Steps(times_s, rates)


def _outages(
    num: int, names: list[str], rng: np.random.Generator
) -> dict[str, list[tuple[float, float]]]:
    """When each endpoint is down; never two at a time, for they come one after another."""
    down: dict[str, list[tuple[float, float]]] = {name: [] for name in names}
    for idx in range(num):
        part_s = (ARRIVING_S + 6.0 * HOUR_S) / num
        start_s = idx * part_s + float(rng.uniform(0.0, 0.5)) * part_s
        lasts_s = float(rng.uniform(0.25, 2.0)) * HOUR_S
        down[str(rng.choice(names))].append((start_s, start_s + lasts_s))
    return down


def _fates(recipe: Recipe, rng: np.random.Generator) -> Fates:
    num = int(HORIZON_S // SLOT_S) + 1
    sigma = log(recipe.native_p90_s / recipe.native_median_s) / Z_P90
    takes_s = FLOOR_S + recipe.native_median_s * np.exp(sigma * rng.normal(0.0, 1.0, num))
    takes_s[rng.uniform(size=num) < STUCK_SHARE] = STUCK_S
    shares = np.ones(num)
    expires = rng.uniform(size=num) < recipe.expiring_share
    shares[expires] = rng.uniform(0.1, 0.9, num)[expires]
    takes_s[expires] = rng.uniform(0.5 * HOUR_S, 3.0 * HOUR_S, num)[expires]
    if recipe.native_outages:
        _break(takes_s, shares, rng)
    return Fates(
        tuple(float(each) for each in np.minimum(takes_s, STUCK_S)),
        tuple(float(each) for each in shares),
    )


def _break(takes_s: Floats, shares: Floats, rng: np.random.Generator) -> None:
    """For some hours the batch API fails what it takes, and what it had comes that much later."""
    first = int(rng.uniform(1.0 * HOUR_S, ARRIVING_S) // SLOT_S)
    last = first + int(rng.uniform(2.0 * HOUR_S, 6.0 * HOUR_S) // SLOT_S)
    lasts_s = (last - first) * SLOT_S
    before = np.arange(first)
    is_caught = before * SLOT_S + takes_s[:first] > first * SLOT_S
    takes_s[:first][is_caught] += lasts_s
    takes_s[first:last] = rng.uniform(60.0, 900.0, len(takes_s[first:last]))
    shares[first:last] = 0.0


def _always(model: str, tier: str, factor: float) -> tuple[PriceWindow, ...]:
    return (PriceWindow(rows=(_row(model, tier, factor),)),)


def _cheap_hours(model: str, factor: float, start_s: float) -> tuple[PriceWindow, ...]:
    """Every day's two windows. `start_s`: the second of the day at which the world begins."""
    dear = (_row(model, "standard", factor),)
    cheap = (_row(model, "standard", factor * CHEAP_HOURS_FACTOR),)
    windows = []
    for day in range(-1, 4):
        begins_s = _to_minute(day * DAY_S + CHEAP_FROM_S - start_s)
        ends_s = _to_minute(day * DAY_S + CHEAP_UNTIL_S - start_s)
        windows.append(PriceWindow(rows=cheap, from_s=begins_s, until_s=ends_s))
        next_s = _to_minute((day + 1) * DAY_S + CHEAP_FROM_S - start_s)
        windows.append(PriceWindow(rows=dear, from_s=ends_s, until_s=next_s))
    return tuple(windows)


def _to_minute(at_s: float) -> float:
    return at_s // 60.0 * 60.0


def _row(model: str, tier: str, factor: float) -> PriceRow:
    usd_in, usd_out = USD_PER_MTOK[model]
    return PriceRow(
        source="policy",
        tier=tier,
        input=round(usd_in * factor * PICOS_OF_USD_PER_MTOK),
        output=round(usd_out * factor * PICOS_OF_USD_PER_MTOK),
    )
