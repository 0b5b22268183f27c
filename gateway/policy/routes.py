"""Compiled routes: which request each takes, what it prefers, and which can never be reached."""

from __future__ import annotations

from dataclasses import dataclass

from gateway.core import Lane, RequestFacts
from gateway.policy.schema import Prefer
from gateway.policy.schema import Route as RouteSpec
from gateway.policy.units import parse_duration, picos_of

USD_PER_SECOND_DEFAULT = 0.0005  # reliability B.3: `balanced`, one second is worth $0.0005
NANOS_PER_USD = 1e9


@dataclass(frozen=True, slots=True)
class Preference:
    """What a route optimises, in the units of the score."""

    by: str
    seconds_per_nano: float = 0.0  # λ; 0 where money does not count against time
    deadline_s: float | None = None
    input_picos_max: int | None = None
    output_picos_max: int | None = None


@dataclass(frozen=True, slots=True)
class Route:
    """A route ready to be matched. Empty sets and None = no condition."""

    name: str
    preference: Preference
    lane: Lane | None = None
    stream: bool | None = None
    models: frozenset[str] = frozenset()
    model_prefixes: tuple[str, ...] = ()
    surfaces: frozenset[str] = frozenset()
    keys: frozenset[str] = frozenset()
    teams: frozenset[str] = frozenset()
    tags: frozenset[str] = frozenset()
    prompt_tokens_min: int | None = None
    prompt_tokens_max: int | None = None


def matches(route: Route, facts: RequestFacts) -> bool:
    if route.lane is not None and facts.lane != route.lane:
        return False
    if route.stream is not None and facts.stream is not route.stream:
        return False
    if (route.models or route.model_prefixes) and not _names_model(route, facts.models[0]):
        return False
    if route.surfaces and facts.surface not in route.surfaces:
        return False
    if route.keys and facts.key_id not in route.keys and facts.key_name not in route.keys:
        return False
    if route.teams and facts.team_id not in route.teams:
        return False
    if route.tags and not route.tags <= facts.tags:
        return False
    tokens = facts.prompt_tokens
    if route.prompt_tokens_min is not None and tokens < route.prompt_tokens_min:
        return False
    return route.prompt_tokens_max is None or tokens <= route.prompt_tokens_max


def find_route(routes: tuple[Route, ...], facts: RequestFacts) -> Route:
    """The first that matches; the built-in defaults stand behind the policy's own."""
    for route in routes:
        if matches(route, facts):
            return route
    return next(route for route in DEFAULT_ROUTES if matches(route, facts))


def covers(earlier: Route, later: Route) -> bool:
    """True when every request that `later` takes is taken by `earlier` first."""
    if earlier.lane is not None and earlier.lane != later.lane:
        return False
    if earlier.stream is not None and earlier.stream is not later.stream:
        return False
    if not _covers_models(earlier, later):
        return False
    for ours, theirs in (
        (earlier.surfaces, later.surfaces),
        (earlier.keys, later.keys),
        (earlier.teams, later.teams),
    ):
        if ours and not (theirs and theirs <= ours):
            return False
    if not earlier.tags <= later.tags:
        return False
    return (earlier.prompt_tokens_min or 0) <= (later.prompt_tokens_min or 0) and (
        earlier.prompt_tokens_max is None
        or (
            later.prompt_tokens_max is not None
            and later.prompt_tokens_max <= earlier.prompt_tokens_max
        )
    )


def compile_route(spec: RouteSpec) -> Route:
    match = spec.match
    models = _names(match.model)
    return Route(
        name=spec.name,
        preference=compile_preference(spec.prefer),
        lane=Lane(match.lane) if match.lane is not None else None,
        stream=match.stream,
        models=frozenset(m for m in models if not m.endswith("*")),
        model_prefixes=tuple(m[:-1] for m in models if m.endswith("*")),
        surfaces=frozenset(_names(match.surface)),
        keys=frozenset(_names(match.key)),
        teams=frozenset(_names(match.team)),
        tags=frozenset(_names(match.tags)),
        prompt_tokens_min=match.min_prompt_tokens,
        prompt_tokens_max=match.max_prompt_tokens,
    )


def compile_preference(prefer: Prefer) -> Preference:
    limit = prefer.price_max
    usd_per_second = prefer.usd_per_second or USD_PER_SECOND_DEFAULT
    is_balanced = prefer.by == "balanced"
    return Preference(
        by=prefer.by,
        seconds_per_nano=1.0 / (usd_per_second * NANOS_PER_USD) if is_balanced else 0.0,
        deadline_s=parse_duration(prefer.deadline) if prefer.deadline else None,
        input_picos_max=None if limit is None or limit.input is None else picos_of(limit.input),
        output_picos_max=None if limit is None or limit.output is None else picos_of(limit.output),
    )


def _names(one_or_more: str | tuple[str, ...]) -> tuple[str, ...]:
    return (one_or_more,) if isinstance(one_or_more, str) else one_or_more


def _names_model(route: Route, model: str) -> bool:
    return model in route.models or model.startswith(route.model_prefixes or ("\0",))


def _covers_models(earlier: Route, later: Route) -> bool:
    if not earlier.models and not earlier.model_prefixes:
        return True
    wanted = (*later.models, *later.model_prefixes)
    if not wanted:
        return False
    by_prefix = all(prefix.startswith(earlier.model_prefixes or ("\0",)) for prefix in wanted)
    return by_prefix or (
        not later.model_prefixes and all(_names_model(earlier, name) for name in later.models)
    )


# What a request gets that no route of the policy takes: the product's promise in three lines.
DEFAULT_ROUTES: tuple[Route, ...] = (
    Route("default-batch", Preference("cheapest", deadline_s=86_400.0), lane=Lane.BATCH),
    Route("default-stream", Preference("fastest"), stream=True),
    Route(
        "default-rest",
        Preference("balanced", seconds_per_nano=1.0 / (USD_PER_SECOND_DEFAULT * NANOS_PER_USD)),
    ),
)
