"""Policy text to Policy: read safely, check everything, report every problem at once."""

from __future__ import annotations

from collections.abc import Mapping
from hashlib import sha256

import msgspec

from gateway.catalogue.entries import quantisation_class
from gateway.core import Endpoint
from gateway.errors import PolicyError
from gateway.policy.parse import check
from gateway.policy.policy import (
    Exploration,
    Indexed,
    Limits,
    Policy,
    ProviderSettings,
    Rescue,
    Retry,
    Timeouts,
)
from gateway.policy.problems import Problems
from gateway.policy.resolve import Report, index_endpoint, resolve_endpoint, resolve_provider
from gateway.policy.routes import Route, compile_route, covers
from gateway.policy.schema import PolicySpec, Unpriced
from gateway.policy.secrets import find_secrets
from gateway.policy.self_hosted import check_self_hosted
from gateway.policy.units import nanos_of, parse_duration, picos_of
from gateway.policy.yaml_guard import read_yaml

VERSION_CHARS = 16

__all__ = ["Policy", "load_policy", "version_of"]


def load_policy(text: bytes, *, environ: Mapping[str, str] | None, source: str = "") -> Policy:
    """
    The policy that `text` says, ready for use.

    With an `environ`, endpoints whose `key_env` is not set in it are never chosen (and named in
    `warnings`); None checks no keys. Raises PolicyError with every problem found.
    """
    try:
        raw, marks = read_yaml(text)
        if not isinstance(raw, dict):
            raise PolicyError("the policy must be a mapping that begins with `version: 1`")
    except PolicyError as error:
        # A command may read two policies and a file of cases: say which of them it is.
        prefix = f"{source}: " if source else ""
        raise PolicyError(f"{prefix}{error}", error.problems, error.places) from error
    problems = Problems(marks, source)
    if find_secrets(raw, "", problems.report):
        problems.raise_any()  # before any other message could repeat one
    try:
        spec = msgspec.convert(raw, PolicySpec)
    except msgspec.ValidationError as error:
        # It stops at the first problem; the slow walk finds them all, with better words.
        check(raw, PolicySpec, "", problems.report)
        problems.raise_any()
        raise PolicyError(f"the policy is wrong: {error}") from error
    policy = _compile(spec, text, environ, source, problems)
    problems.raise_any()
    return policy


def version_of(text: bytes) -> str:
    """The name of a policy's text, whether or not it loads."""
    return sha256(text).hexdigest()[:VERSION_CHARS]


def _compile(
    spec: PolicySpec,
    text: bytes,
    environ: Mapping[str, str] | None,
    source: str,
    problems: Problems,
) -> Policy:
    report = problems.report
    _check_durations(spec, report)
    problems.raise_any()
    timeouts = _timeouts(spec)
    providers = {
        name: resolve_provider(name, provider, timeouts, environ, report)
        for name, provider in spec.providers.items()
    }
    endpoints, models = _endpoints(spec, providers, report)
    routes = _routes(spec, models, endpoints, report)
    unpriced = (
        spec.unpriced if isinstance(spec.unpriced, Unpriced) else Unpriced(rule=spec.unpriced)
    )
    if (unpriced.rule == "cap") != (unpriced.usd_per_million_tokens is not None):
        report(
            "unpriced",
            "rule cap and usd_per_million_tokens go together; write "
            "{rule: cap, usd_per_million_tokens: 30} or leave both out",
        )
    indexed = {eid: index_endpoint(e, providers[e.provider]) for eid, e in endpoints.items()}
    pools: dict[str, tuple[Indexed, ...]] = {eid: (one,) for eid, one in indexed.items()}
    pools |= {name: tuple(indexed[eid] for eid in ids) for name, ids in models.items()}
    floor = spec.rescue.decode_floor
    timeout = spec.rescue.first_token_timeout
    return Policy(
        version=version_of(text),
        source=source,
        endpoints=endpoints,
        models=models,
        providers=providers,
        routes=routes,
        rescue=Rescue(
            first_token_timeout_s=None if timeout == "auto" else parse_duration(timeout),
            decode_floor_tokens_per_s=floor.tokens_per_second if floor else None,
            decode_floor_grace_s=parse_duration(floor.grace) if floor else 0.0,
            hedge_share_max=spec.rescue.hedge.share_max,
            continue_by_prefill=spec.rescue.continue_by_prefill,
        ),
        limits=Limits(
            body_bytes_max=spec.limits.body_bytes,
            requests_in_flight_max=spec.limits.requests_in_flight,
            default_max_tokens=spec.limits.default_max_tokens,
        ),
        unpriced=unpriced.rule,
        unpriced_cap_picos=picos_of(unpriced.usd_per_million_tokens or 0.0),
        keep_alive_s=parse_duration(spec.keep_alive.every) if spec.keep_alive.comments else None,
        drain_s=parse_duration(spec.drain),
        exploration=Exploration(
            share=spec.exploration.share,
            credits_max=spec.exploration.credits_max,
            probe_after_s=parse_duration(spec.exploration.probe_after),
            nanos_per_hour=nanos_of(spec.exploration.usd_per_hour),
        ),
        retry=Retry(spec.retry.max, spec.retry.budget, spec.retry.floor),
        timeouts=timeouts,
        warnings=_warnings(spec, providers, models),
        pools=pools,
    )


def _timeouts(spec: PolicySpec) -> Timeouts:
    return Timeouts(
        connect_s=parse_duration(spec.timeouts.connect),
        idle_s=parse_duration(spec.timeouts.idle),
        idle_reasoning_s=parse_duration(spec.timeouts.idle_reasoning),
        total_s=parse_duration(spec.timeouts.total),
        status_line_s=parse_duration(spec.timeouts.status_line),
        content_s=parse_duration(spec.timeouts.content),
        client_s=parse_duration(spec.timeouts.client),
    )


def _endpoints(
    spec: PolicySpec, providers: dict[str, ProviderSettings], report: Report
) -> tuple[dict[str, Endpoint], dict[str, tuple[str, ...]]]:
    endpoints: dict[str, Endpoint] = {}
    first_seen: dict[str, str] = {}
    models: dict[str, tuple[str, ...]] = {}
    for model, specs in spec.models.items():
        at = f"models.{model}"
        if not specs:
            report(at, "has no endpoints; add one or remove the model")
        ids: list[str] = []
        for index, endpoint_spec in enumerate(specs):
            here = f"{at}[{index}]"
            settings = providers.get(endpoint_spec.provider)
            if settings is None:
                known = ", ".join(providers) or "none is defined"
                report(
                    f"{here}.provider",
                    f"{endpoint_spec.provider!r} is not under providers ({known}); add it there",
                )
                continue
            provider = spec.providers[endpoint_spec.provider]
            if endpoint_spec.self_hosted is not None:
                check_self_hosted(endpoint_spec.self_hosted, f"{here}.self_hosted", report)
            endpoint = resolve_endpoint(endpoint_spec, provider, settings)
            if endpoint.id in ids:
                report(here, f"{endpoint.id} stands in this model twice; remove one")
            elif endpoints.setdefault(endpoint.id, endpoint) != endpoint:
                report(
                    here,
                    f"{endpoint.id} is described differently at {first_seen[endpoint.id]}; "
                    "make the two the same",
                )
            else:
                ids.append(endpoint.id)
                first_seen.setdefault(endpoint.id, here)
        _check_agreement(at, [endpoints[eid] for eid in ids], report)
        models[model] = tuple(ids)
    for name in models.keys() & endpoints.keys():
        report(f"models.{name}", "is also an endpoint's id; give the model another name")
    return endpoints, models


def _check_agreement(at: str, endpoints: list[Endpoint], report: Report) -> None:
    """One public model = one canonical model and one quantisation class, as far as stated."""
    known = [e for e in endpoints if e.canonical_model]
    for other in known[1:]:
        if other.canonical_model != known[0].canonical_model:
            report(
                at,
                f"{known[0].id} is {known[0].canonical_model} but {other.id} is "
                f"{other.canonical_model}; give each its own public model, or state the same "
                "`canonical` on both if they are the same",
            )
            return
    stated = [(e, quantisation_class(e.quantisation)) for e in endpoints]
    stated = [(e, bits) for e, bits in stated if bits != "unknown"]
    for other, bits in stated[1:]:
        if bits != stated[0][1]:
            report(
                at,
                f"{stated[0][0].id} is {stated[0][1]} ({stated[0][0].quantisation}) but "
                f"{other.id} is {bits} ({other.quantisation}); give each its own public model, or "
                "correct `quantisation`",
            )
            return


def _routes(
    spec: PolicySpec,
    models: dict[str, tuple[str, ...]],
    endpoints: dict[str, Endpoint],
    report: Report,
) -> tuple[Route, ...]:
    routes: list[Route] = []
    for index, route_spec in enumerate(spec.routes):
        at = f"routes[{index}]"
        prefer, match = route_spec.prefer, route_spec.match
        if prefer.deadline is not None and prefer.by != "cheapest":
            report(f"{at}.prefer.deadline", f"does nothing with by: {prefer.by}; use by: cheapest")
        if prefer.usd_per_second is not None and prefer.by != "balanced":
            report(
                f"{at}.prefer.usd_per_second",
                f"does nothing with by: {prefer.by}; use by: balanced",
            )
        low, high = match.min_prompt_tokens, match.max_prompt_tokens
        if low is not None and high is not None and low > high:
            report(f"{at}.match", f"min_prompt_tokens {low} is above max_prompt_tokens {high}")
        route = compile_route(route_spec)
        for name in sorted(route.models):
            if name not in models and name not in endpoints:
                report(f"{at}.match.model", f"{name!r} is no model; add it under models")
        for position, earlier in enumerate(routes):
            if earlier.name == route.name:
                report(f"{at}.name", f"{route.name!r} is also routes[{position}]; rename one")
            if covers(earlier, route):
                report(
                    at,
                    f"is never reached: routes[{position}] ({earlier.name}) takes all it matches; "
                    "move it up or remove it",
                )
                break
        routes.append(route)
    return tuple(routes)


def _check_durations(spec: PolicySpec, report: Report) -> None:
    """The pattern was checked already; the longest one was not."""
    raw = msgspec.to_builtins(spec)

    def walk(value: object, path: str) -> None:
        if isinstance(value, dict):
            for key, inner in value.items():
                walk(inner, f"{path}.{key}" if path else str(key))
        elif isinstance(value, list | tuple):
            for index, inner in enumerate(value):
                walk(inner, f"{path}[{index}]")
        elif isinstance(value, str) and path.rsplit(".", 1)[-1] in _DURATION_FIELDS:
            try:
                parse_duration(value)
            except ValueError as error:
                if value != "auto":
                    report(path, f"{error}; use a shorter one")

    for section in ("providers", "routes", "rescue", "keep_alive", "drain", "exploration"):
        walk(raw[section], section)
    walk(raw["timeouts"], "timeouts")


_DURATION_FIELDS = frozenset({
    "connect", "idle", "idle_reasoning", "content", "total", "client", "status_line", "deadline",
    "grace", "first_token_timeout", "every", "drain", "probe_after",
})  # fmt: skip


def _warnings(
    spec: PolicySpec, providers: dict[str, ProviderSettings], models: dict[str, tuple[str, ...]]
) -> tuple[str, ...]:
    found = [
        f"providers.{p.name}.key_env: {p.key_env} is not set; its endpoints are not used until "
        "it is"
        for p in providers.values()
        if not p.has_key
    ]
    if not models:
        found.append("models: none is defined; every request will be refused")
    if spec.rescue.continue_by_prefill and not any(
        endpoint.assistant_prefill for specs in spec.models.values() for endpoint in specs
    ):
        found.append("rescue.continue_by_prefill: does nothing; no endpoint says assistant_prefill")
    return tuple(found)
