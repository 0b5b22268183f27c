"""The worlds that routers race in: endpoints, weather and prices, all from one seed.

Every seed draws endpoints of its own, so that no figure hangs on one hand-made set: speeds as far
apart as LLMPerf's providers are, prices as for a model of middle size, fast ones a little dearer.
A world says what happens to them.
"""

from __future__ import annotations

import math
from pathlib import Path

import msgspec
import numpy as np

from gateway.simulator.routing.cold import cold_start
from gateway.simulator.routing.nights import midnight, off_peak
from gateway.simulator.routing.places import PlaceSpec
from gateway.simulator.routing.residuals import with_residuals
from gateway.simulator.routing.weather import (
    ERROR,
    HALF,
    HANG,
    STEP_S,
    Outage,
    Weather,
    draw_kind,
    drift,
    outages,
    regimes,
    steady,
)
from gateway.simulator.routing.workloads.llmperf import embedded_shapes, llmperf
from gateway.simulator.routing.world import SEED_SALT, Maker, World, steady_world

NAMES = ("amber", "birch", "cedar", "delta", "ember", "fjord", "grove", "haven")
TTFT_S, TTFT_SPREAD = 0.5, 0.45  # median over endpoints, and sigma of its logarithm
TOKENS_PER_S, RATE_SPREAD = 90.0, 0.45
INPUT_USD, PRICE_SPREAD = 0.30, 0.40  # per million tokens
OUTPUT_FACTOR, OUTPUT_SPREAD = 3.0, 0.20
PLACES, PLACES_SPREAD = 14.0, 0.5  # requests at once before an endpoint slows down
LIMITED_SHARE = 0.5  # of endpoints, that have a limit of requests a minute …
LIMIT_PER_MINUTE = (150, 400)  # … between these
PRICE_OF_SPEED = 0.3  # correlation of ln price with ln rate
NUM_ENDPOINTS = 6


def _calm(duration_s: float, rng: np.random.Generator, specs: tuple[PlaceSpec, ...]) -> World:
    del rng
    return steady_world("calm", specs, duration_s)


def _drift(duration_s: float, rng: np.random.Generator, specs: tuple[PlaceSpec, ...]) -> World:
    weather = tuple(Weather(drift(duration_s, rng), ()) for _ in specs)
    return World(name="drift", specs=specs, weather=weather)


def _regime(duration_s: float, rng: np.random.Generator, specs: tuple[PlaceSpec, ...]) -> World:
    weather = tuple(Weather(regimes(duration_s, rng), ()) for _ in specs)
    return World(name="regime", specs=specs, weather=weather)


def _outage(duration_s: float, rng: np.random.Generator, specs: tuple[PlaceSpec, ...]) -> World:
    weather = tuple(Weather(steady(duration_s), outages(duration_s, rng)) for _ in specs)
    return World(name="outage", specs=specs, weather=weather)


def _dies(kind: str) -> Maker:
    """The endpoint that `fastest` uses most goes at a third of the run, for a third of it."""

    def make(duration_s: float, rng: np.random.Generator, specs: tuple[PlaceSpec, ...]) -> World:
        del rng
        begin_s, end_s = duration_s / 3.0, duration_s * 2.0 / 3.0
        best = _fastest(specs)
        weather = tuple(
            Weather(
                steady(duration_s),
                (Outage(begin_s, end_s, kind),) if spec.id == best else (),
            )
            for spec in specs
        )
        return World(
            name=f"dies-{kind}",
            specs=specs,
            weather=weather,
            event_s=begin_s,
            event_ids=(best,),
            event_end_s=end_s,
        )

    return make


def _slows(duration_s: float, rng: np.random.Generator, specs: tuple[PlaceSpec, ...]) -> World:
    """The same, but it only becomes five times slower."""
    world = _dies(ERROR)(duration_s, rng, specs)
    begin_s, end_s = duration_s / 3.0, duration_s * 2.0 / 3.0
    weather = []
    for spec in specs:
        table = steady(duration_s)
        if spec.id in world.event_ids:
            table[int(begin_s / STEP_S) : int(end_s / STEP_S)] = -np.log(5.0)
        weather.append(Weather(table, ()))
    return msgspec.structs.replace(world, name="slows", weather=tuple(weather))


def _correlated(duration_s: float, rng: np.random.Generator, specs: tuple[PlaceSpec, ...]) -> World:
    """All but the slowest fail together, for a tenth of the run."""
    begin_s, end_s = duration_s * 0.4, duration_s * 0.5
    spared = min(specs, key=lambda spec: spec.tokens_per_s).id
    weather = tuple(
        Weather(
            steady(duration_s),
            () if spec.id == spared else (Outage(begin_s, end_s, draw_kind(rng)),),
        )
        for spec in specs
    )
    gone = tuple(spec.id for spec in specs if spec.id != spared)
    return World(
        name="correlated",
        specs=specs,
        weather=weather,
        event_s=begin_s,
        event_ids=gone,
        event_end_s=end_s,
    )


def _limits(duration_s: float, rng: np.random.Generator, specs: tuple[PlaceSpec, ...]) -> World:
    """Each endpoint takes 60–150 requests a minute."""
    limited = tuple(
        msgspec.structs.replace(spec, requests_per_minute=int(rng.integers(60, 151)))
        for spec in specs
    )
    return msgspec.structs.replace(steady_world("limits", limited, duration_s), specs=limited)


def _prices(duration_s: float, rng: np.random.Generator, specs: tuple[PlaceSpec, ...]) -> World:
    """At "midnight", halfway, one doubles its price; two have off-peak windows at half price."""
    del rng
    half_s, quarter_s = duration_s / 2.0, duration_s / 4.0
    cheap = sorted(specs, key=lambda spec: spec.output_usd)
    changes = [(half_s, cheap[0].id, 2.0)]
    for spec in cheap[-2:]:
        changes += [(quarter_s, spec.id, 0.5), (duration_s * 0.75, spec.id, 1.0)]
    return msgspec.structs.replace(
        steady_world("prices", specs, duration_s),
        price_changes=tuple(sorted(changes)),
        event_s=half_s,
        event_ids=(cheap[0].id,),
    )


def _newcomer(duration_s: float, rng: np.random.Generator, specs: tuple[PlaceSpec, ...]) -> World:
    """Halfway (30 min of an hour) an endpoint appears that is faster than all others."""
    del rng
    at_s = duration_s / 2.0
    new = PlaceSpec(
        id="noble/m",
        ttft_s=min(spec.ttft_s for spec in specs),
        tokens_per_s=1.5 * max(spec.tokens_per_s for spec in specs),
        input_usd=INPUT_USD,
        output_usd=INPUT_USD * OUTPUT_FACTOR,
        appears_at_s=at_s,
    )
    world = steady_world("newcomer", (*specs, new), duration_s)
    return msgspec.structs.replace(world, event_s=at_s, event_ids=(new.id,))


def _improves(duration_s: float, rng: np.random.Generator, specs: tuple[PlaceSpec, ...]) -> World:
    """One that nobody uses becomes half as fast again as the best, halfway, without telling."""
    del rng
    at_s = duration_s / 2.0
    slow = max(specs, key=_typical_s)
    best_s = min(map(_typical_s, specs))
    slowest = slow.id
    weather = []
    for spec in specs:
        table = steady(duration_s)
        if spec.id == slowest:
            table[int(at_s / STEP_S) :] = np.log(1.5 * _typical_s(slow) / best_s)
        weather.append(Weather(table, ()))
    return World(
        name="improves", specs=specs, weather=tuple(weather), event_s=at_s, event_ids=(slowest,)
    )


def _liar(name: str, *, is_burst: bool) -> Maker:
    """A quick first token and a slow decode under a grand listing; or all of it in one burst."""

    def make(duration_s: float, rng: np.random.Generator, specs: tuple[PlaceSpec, ...]) -> World:
        del rng
        liar = specs[-1].id
        lying = tuple(
            msgspec.structs.replace(
                spec,
                ttft_s=0.15 if not is_burst else spec.ttft_s,
                tokens_per_s=25.0 if not is_burst else 40.0,
                is_burst=is_burst,
            )
            if spec.id == liar
            else spec
            for spec in specs
        )
        return msgspec.structs.replace(steady_world(name, lying, duration_s), event_ids=(liar,))

    return make


def _tokenizer(duration_s: float, rng: np.random.Generator, specs: tuple[PlaceSpec, ...]) -> World:
    """The fastest by tokens a second counts 1.4 tokens for everyone else's one."""
    del rng
    best = _fastest(specs)
    counted = tuple(
        msgspec.structs.replace(spec, tokens_factor=1.4) if spec.id == best else spec
        for spec in specs
    )
    return msgspec.structs.replace(
        steady_world("tokenizer", counted, duration_s), event_ids=(best,)
    )


def _caching(duration_s: float, rng: np.random.Generator, specs: tuple[PlaceSpec, ...]) -> World:
    """Equal endpoints with prompt caches at a tenth of the price: only placement differs."""
    del rng
    like = PlaceSpec(
        id="",
        ttft_s=TTFT_S,
        tokens_per_s=TOKENS_PER_S,
        input_usd=INPUT_USD,
        output_usd=INPUT_USD * OUTPUT_FACTOR,
        cached_usd=INPUT_USD / 10.0,
        places=48.0,
    )
    equal = tuple(msgspec.structs.replace(like, id=spec.id) for spec in specs)
    return steady_world("caching", equal, duration_s)


def _llmperf(duration_s: float, rng: np.random.Generator, specs: tuple[PlaceSpec, ...]) -> World:
    """`drift`, but each request's luck is as LLMPerf measured it (without files: alike)."""
    return with_residuals(_drift(duration_s, rng, specs), embedded_shapes(), rng)


def _fastest(specs: tuple[PlaceSpec, ...]) -> str:
    return min(specs, key=_typical_s).id


def _typical_s(spec: PlaceSpec) -> float:
    """Seconds of an answer of 200 tokens on an ordinary day."""
    return spec.ttft_s + 200.0 / spec.tokens_per_s


WORLDS: dict[str, Maker] = {
    "calm": _calm,
    "drift": _drift,
    "regime": _regime,
    "outage": _outage,
    "dies-error": _dies(ERROR),
    "dies-hang": _dies(HANG),
    "dies-half": _dies(HALF),
    "slows": _slows,
    "correlated": _correlated,
    "limits": _limits,
    "prices": _prices,
    "newcomer": _newcomer,
    "improves": _improves,
    "liar": _liar("liar", is_burst=False),
    "burst": _liar("burst", is_burst=True),
    "tokenizer": _tokenizer,
    "caching": _caching,
    "llmperf": _llmperf,
    "midnight": midnight,
    "off-peak": off_peak,
    "cold-start": cold_start,
}


def make_world(
    name: str,
    *,
    seed: int,
    duration_s: float,
    num_endpoints: int = NUM_ENDPOINTS,
    traces_dir: Path | None = None,
) -> World:
    """
    The world of that name. Load is the workload's matter.

    `traces_dir`: where `llmperf` finds its measurements; without, embedded ones with the same
    quantiles. Raises ValueError for an unknown name or a number of endpoints it cannot have, and
    TraceError for a broken trace.
    """
    if name not in WORLDS:
        raise ValueError(f"there is no world {name!r}; there are {', '.join(WORLDS)}")
    if not 2 <= num_endpoints <= len(NAMES):
        raise ValueError(f"a world has 2 to {len(NAMES)} endpoints, not {num_endpoints}")
    rng = np.random.default_rng((seed, SEED_SALT, 0))
    specs = draw_endpoints(num_endpoints, rng)
    if name == "llmperf" and traces_dir is not None:
        return with_residuals(_drift(duration_s, rng, specs), llmperf(traces_dir), rng)
    return WORLDS[name](duration_s, rng, specs)


def draw_endpoints(num: int, rng: np.random.Generator) -> tuple[PlaceSpec, ...]:
    """So many endpoints of one seed."""
    specs = []
    for name in NAMES[:num]:
        speed = float(rng.standard_normal())
        other = float(rng.standard_normal())
        price = PRICE_OF_SPEED * speed + (1.0 - PRICE_OF_SPEED**2) ** 0.5 * other
        input_usd = INPUT_USD * math.exp(PRICE_SPREAD * price)
        places = PLACES * math.exp(PLACES_SPREAD * float(rng.standard_normal()))
        limit = int(rng.integers(*LIMIT_PER_MINUTE))
        is_limited = float(rng.random()) < LIMITED_SHARE
        specs.append(
            PlaceSpec(
                id=f"{name}/m",
                ttft_s=TTFT_S * math.exp(TTFT_SPREAD * float(rng.standard_normal())),
                tokens_per_s=TOKENS_PER_S * math.exp(RATE_SPREAD * speed),
                places=min(64.0, max(4.0, places)),
                requests_per_minute=limit if is_limited else None,
                input_usd=input_usd,
                output_usd=input_usd
                * OUTPUT_FACTOR
                * math.exp(OUTPUT_SPREAD * float(rng.standard_normal())),
            )
        )
    return tuple(specs)
