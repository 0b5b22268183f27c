"""Runs one test of a policy: facts and fleet are made up, `decide` is the product's own. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from math import log
from typing import Any

import msgspec

from gateway.core import (
    Caller,
    EndpointLive,
    EndpointStats,
    FleetSnapshot,
    FleetView,
    Plan,
    PriceRow,
    RequestFacts,
)
from gateway.errors import ApiError
from gateway.policy.backtest import PriceRows, refusal_of
from gateway.policy.cases import Case, CasesFile, EndpointCase, Expect, RequestCase
from gateway.policy.decide import decide
from gateway.policy.explain import explain
from gateway.policy.facts import BYTES_PER_TOKEN, describe
from gateway.policy.policy import Policy
from gateway.policy.resolve import price_row
from gateway.policy.score import NOT_MEASURED
from gateway.policy.units import parse_duration
from gateway.stats.seeded import Seeded
from gateway.wire.pieces import Surface

PREFILL_AT_ONCE = 1e12  # tokens a second: the prompt's length does not count
SIGMA = 0.3  # of single requests; decisions read it only for deadlines and draws


class CaseResult(msgspec.Struct, frozen=True, kw_only=True):
    """What came of a test."""

    name: str
    problems: tuple[str, ...]  # expectation by expectation; none = passed
    chosen: str  # "" = refused
    refusal: str = ""
    message: str = ""  # of a refusal
    shown: dict[str, Any] | None = None  # what `looprouter policy explain` shows

    @property
    def has_passed(self) -> bool:
        return not self.problems


class _Asked(msgspec.Struct, frozen=True, kw_only=True):
    """A request case in the shape of a parsed request."""

    surface: Surface
    model: str
    models: tuple[str, ...]
    stream: bool
    max_tokens: int | None
    text_bytes: int
    num_images: int
    needs: frozenset[str]
    parameters: frozenset[str]
    provider: bytes | None
    service_tier: str
    num_choices: int
    session_id: str
    prompt_prefix: bytes = b""


def run_case(
    case: Case, spec: CasesFile, policy: Policy, price_rows: PriceRows, *, at_unix_s: float
) -> CaseResult:
    """Decide the case once, with its seed, and hold the outcome against what it expects."""
    seed = case.seed if case.seed is not None else spec.seed
    expect = case.expect
    view = _view(case, spec, policy, price_rows, at_unix_s)
    try:
        facts = _facts(case.request, policy)
        plan = decide(facts, view, policy, Seeded(seed), seed=seed)
    except ApiError as error:
        rules = refusal_of(error)
        return CaseResult(
            name=case.name,
            problems=tuple(_of_refusal(expect, error, rules)),
            chosen="",
            refusal=rules,
            message=error.message,
        )
    shown = explain(plan, facts, view, policy)
    return CaseResult(
        name=case.name,
        problems=tuple(_of_plan(expect, plan, shown)),
        chosen=plan.order[0],
        shown=shown,
    )


def _facts(asked: RequestCase, policy: Policy) -> RequestFacts:
    headers = {
        "x-looprouter-lane": asked.lane or "",
        "x-looprouter-tags": ",".join(asked.tags),
        "x-looprouter-deadline": asked.deadline or "",
    }
    return describe(
        _Asked(
            surface=Surface(asked.surface),
            model=asked.model,
            models=asked.fallbacks,
            stream=asked.stream,
            max_tokens=asked.max_tokens,
            text_bytes=asked.prompt_tokens * BYTES_PER_TOKEN,
            num_images=asked.images,
            needs=frozenset(asked.needs),
            parameters=frozenset(asked.parameters),
            provider=msgspec.json.encode(asked.provider) if asked.provider else None,
            service_tier=asked.service_tier,
            num_choices=asked.n,
            session_id=asked.session,
        ),
        Caller(
            tenant_id="case",
            team_id=asked.team,
            key_id=asked.key,
            key_name=asked.key,
            models=asked.key_models,
            no_explore=asked.no_explore,
            budget_ids=("case",) if asked.budget else (),
        ),
        {name: value for name, value in headers.items() if value},
        request_id="case",
        tenant_secret=b"case",
        policy=policy,
    )


def _view(
    case: Case, spec: CasesFile, policy: Policy, price_rows: PriceRows, at_unix_s: float
) -> FleetView:
    fleet: Mapping[str, EndpointCase] = {**spec.fleet, **case.fleet}
    stats: dict[str, EndpointStats] = {}
    live: dict[str, EndpointLive] = {}
    prices: dict[str, tuple[PriceRow, ...]] = {}
    for endpoint_id, endpoint in policy.endpoints.items():
        state = fleet.get(endpoint_id)
        if state is None:
            live[endpoint_id] = EndpointLive(endpoint_id=endpoint_id)
            prices[endpoint_id] = price_rows(endpoint, at_unix_s)
            continue
        stats[endpoint_id] = _stats(endpoint_id, state)
        live[endpoint_id] = _live(endpoint_id, state)
        prices[endpoint_id] = (
            price_rows(endpoint, at_unix_s)
            if state.price is None
            else (price_row(state.price, f"case:{endpoint_id}", ((1, 1), (1, 1))),)
        )
    expected = case.output_tokens if case.output_tokens is not None else spec.output_tokens
    return FleetView(
        snapshot=FleetSnapshot(id="case", at_unix_s=at_unix_s, stats=stats, prices=prices),
        live=live,
        output_tokens_expected=expected,
        exploration_credits=case.exploration_credits,
    )


def _stats(endpoint_id: str, state: EndpointCase) -> EndpointStats:
    ttft_s = max(parse_duration(state.ttft), 1e-6)
    return EndpointStats(
        endpoint_id=endpoint_id,
        ttft_base_s=ttft_s,
        prefill_tokens_per_s=state.prefill_tokens_per_second or PREFILL_AT_ONCE,
        ttft_mu=log(ttft_s),
        ttft_sigma=SIGMA,
        ttft_n=state.samples,
        rate_mu=log(state.tokens_per_second),
        rate_sigma=SIGMA,
        rate_n=state.samples,
        success_p=state.success,
        success_n=state.samples,
        failure_lost_s=parse_duration(state.failure_lost),
        # So that thresholds (`preferred_min_throughput`) are judged by the same figures.
        ttft_p50_p75_p90_p99_s=(ttft_s,) * 4,
        rate_p50_p75_p90_p99=(state.tokens_per_second,) * 4,
        characters_per_token=NOT_MEASURED.characters_per_token,
        num_samples=int(state.samples),
        sample_age_s=None if state.age is None else parse_duration(state.age),
    )


def _live(endpoint_id: str, state: EndpointCase) -> EndpointLive:
    wait_s = parse_duration(state.reopens_in) if state.breaker == "open" else 0.0
    if state.pause is not None:
        wait_s = parse_duration(state.pause)
    return EndpointLive(
        endpoint_id=endpoint_id,
        in_flight=state.in_flight,
        capacity=state.capacity,
        breaker=state.breaker,
        reopens_in_s=wait_s,
        cached_tokens=state.cached_tokens,
        is_last_used=state.last_used,
        is_cooling=state.pause is not None,
        is_full=state.full,
    )


def _of_refusal(expect: Expect, error: ApiError, rules: str) -> list[str]:
    if expect.refused is None and not expect.excluded:
        return [f"expected {_wanted(expect)}, but the request is refused: {rules}"]
    found = []
    if expect.refused is None and expect != Expect(excluded=expect.excluded):
        found.append(f"expected {_wanted(expect)}, but the request is refused: {rules}")
    if isinstance(expect.refused, str) and expect.refused not in rules.split(", "):
        found.append(f"expected refused by {expect.refused}, but it is by {rules}")
    detail = error.detail if isinstance(error.detail, list) else []
    by_endpoint = {each["endpoint"]: each["rule"] for each in detail}
    found += _excluded(expect, by_endpoint)
    return found


def _of_plan(expect: Expect, plan: Plan, shown: dict[str, Any]) -> list[str]:
    first = plan.order[0]
    found = []
    if expect.refused:
        by = f" by {expect.refused}" if isinstance(expect.refused, str) else ""
        found.append(f"expected refused{by}, but {first} is chosen")
    if expect.endpoint is not None and first != expect.endpoint:
        found.append(f"expected endpoint {expect.endpoint}, but {first} is chosen")
    if expect.one_of and first not in expect.one_of:
        found.append(f"expected one of {', '.join(expect.one_of)}, but {first} is chosen")
    if expect.order and plan.order[: len(expect.order)] != expect.order:
        found.append(f"expected order {', '.join(expect.order)}, but it is {', '.join(plan.order)}")
    if expect.route is not None and plan.route != expect.route:
        found.append(f"expected route {expect.route}, but it is {plan.route}")
    if expect.prefer is not None and plan.preference != expect.prefer:
        found.append(f"expected prefer {expect.prefer}, but it is {plan.preference}")
    by_endpoint = {
        each["endpoint"]: each["reason"].split(":", 1)[0]
        for each in shown["candidates"]
        if each["outcome"] == "excluded"
    }
    return found + _excluded(expect, by_endpoint)


def _excluded(expect: Expect, by_endpoint: Mapping[str, str]) -> list[str]:
    return [
        f"expected {endpoint_id} excluded by {rule}, but it is "
        + (f"excluded by {by_endpoint[endpoint_id]}" if endpoint_id in by_endpoint else "not")
        for endpoint_id, rule in expect.excluded.items()
        if by_endpoint.get(endpoint_id) != rule
    ]


def _wanted(expect: Expect) -> str:
    if expect.endpoint is not None:
        return f"endpoint {expect.endpoint}"
    if expect.one_of:
        return f"one of {', '.join(expect.one_of)}"
    if expect.order:
        return f"order {', '.join(expect.order)}"
    return f"route {expect.route}" if expect.route is not None else f"prefer {expect.prefer}"
