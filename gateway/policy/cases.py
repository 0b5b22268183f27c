"""Unit tests of a policy as YAML: a request and the state of a fleet → who must be chosen.

Read as strictly as a policy is: an unknown field, a wrong type or an endpoint that does not exist
is an error that names its path.
"""

from __future__ import annotations

import difflib
from datetime import UTC, datetime
from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta

from gateway.errors import PolicyError
from gateway.policy.parse import Report, check
from gateway.policy.policy import Policy
from gateway.policy.problems import Problems
from gateway.policy.schema import By, Capability, Duration, Positive, Price, Share, SurfaceName
from gateway.policy.units import parse_duration
from gateway.policy.yaml_guard import read_yaml

_Text = Annotated[str, Meta(min_length=1, max_length=256)]
_Count = Annotated[int, Meta(ge=0, le=1_000_000_000)]
_Amount = Annotated[float, Meta(gt=0, le=1e9)]


class RequestCase(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What is asked, as the gateway would read it."""

    model: _Text  # a suffix such as `:nitro` counts, as it does on the wire
    fallbacks: tuple[_Text, ...] = ()  # `models` of the request
    surface: SurfaceName = "chat"
    stream: bool = False
    lane: Literal["interactive", "batch"] | None = None
    prompt_tokens: Positive = 100
    images: _Count = 0
    max_tokens: Positive | None = None
    n: Positive = 1
    needs: tuple[Capability, ...] = ()
    parameters: tuple[_Text, ...] = ()  # top-level fields sent, for require_parameters
    service_tier: str = ""
    tags: tuple[_Text, ...] = ()
    deadline: Duration | None = None
    session: str = ""
    provider: dict[str, Any] = {}  # OpenRouter's `provider` object
    key: str = ""  # name of the key
    team: str = ""
    key_models: tuple[_Text, ...] = ()  # models the key may use; none: all
    budget: bool = False  # its key, team or tenant has one
    no_explore: bool = False


class EndpointCase(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What is believed of an endpoint and how it is now; left out: never measured, idle."""

    ttft: Duration = "500ms"
    prefill_tokens_per_second: _Amount | None = None  # None: `ttft` holds for any prompt
    tokens_per_second: _Amount = 60.0
    success: Share = 1.0
    failure_lost: Duration = "2s"  # by a failure, on average
    samples: Annotated[float, Meta(ge=3, le=1e9)] = 10_000.0  # few: draws wander
    age: Duration | None = "1s"  # of the last sample; null: never measured
    in_flight: _Count = 0
    capacity: _Amount = 64.0
    breaker: Literal["closed", "open", "half_open"] = "closed"
    reopens_in: Duration = "30s"
    pause: Duration | None = None  # it asked not to be called for so long
    full: bool = False  # by its own account: no batch goes there
    cached_tokens: _Count = 0  # of this prompt, expected there
    last_used: bool = False  # served this session last
    price: Price | None = None  # instead of the policy's or the listed one


class Expect(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What must come of it; at least one field."""

    endpoint: str | None = None  # tried first
    one_of: tuple[_Text, ...] = ()
    order: tuple[_Text, ...] = ()  # the plan begins with these
    refused: bool | str | None = None  # true, or the rule: capacity, price_max, model_not_found, …
    excluded: dict[str, str] = {}  # endpoint → rule
    route: str | None = None
    prefer: By | None = None


class Case(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One test."""

    name: _Text
    request: RequestCase
    expect: Expect
    policy: str | None = None  # a file, relative to this one
    fleet: dict[str, EndpointCase] = {}  # over the file's own, endpoint by endpoint
    seed: _Count | None = None  # of the draw among near equals
    output_tokens: _Amount | None = None  # expected of the answer
    exploration_credits: Annotated[float, Meta(ge=0, le=1e6)] = 0.0


class CasesFile(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A file of tests."""

    version: Literal[1]
    policy: str | None = None
    at: datetime | None = None  # when list prices are looked up: 2026-01-31T12:00:00Z
    fleet: dict[str, EndpointCase] = {}
    seed: _Count = 1
    output_tokens: _Amount = 200.0
    cases: tuple[Case, ...] = ()


def load_cases(text: bytes, *, source: str = "") -> CasesFile:
    """The tests that `text` holds. Raises PolicyError with the path of every problem."""
    try:
        raw, marks = read_yaml(text)
    except PolicyError as error:
        message = str(error).replace("the policy", "the file")
        raise PolicyError(f"{source}: {message}" if source else message) from error
    problems = Problems(marks, source)

    def report(path: str, message: str) -> None:
        problems.report("the file" if path == "the policy" else path, message)

    if not isinstance(raw, dict):
        report("the file", "must be a mapping that begins with `version: 1`")
        problems.raise_any()
    try:
        spec = msgspec.convert(raw, CasesFile)
    except msgspec.ValidationError as error:
        # It stops at the first problem; the slow walk finds them all, with better words.
        check(raw, CasesFile, "", report)
        problems.raise_any()
        said = f"{source}: {error}" if source else str(error)
        raise PolicyError(said, (str(error),)) from error
    if not spec.cases:
        report("cases", "there is none; add one")
    for path, duration in _durations(spec):
        try:
            parse_duration(duration)
        except ValueError as error:
            report(path, f"{error}; use a shorter one")
    _check_expectations(spec, report)
    problems.raise_any()
    return spec


def check_names(spec: CasesFile, policies: dict[int, Policy], *, source: str = "") -> None:
    """
    Every endpoint and route named must be there: a misspelt one would never fail a test.

    `policies`: by index of the case. Raises PolicyError.
    """
    problems = Problems({}, source)
    everywhere = {eid for policy in policies.values() for eid in policy.endpoints}
    for endpoint_id in spec.fleet:
        _check_name(f"fleet.{endpoint_id}", endpoint_id, everywhere, problems.report)
    for idx, case in enumerate(spec.cases):
        policy, at, expect = policies[idx], f"cases[{idx}]", case.expect
        known = set(policy.endpoints)
        named = [(f"{at}.fleet.{each}", each) for each in case.fleet]
        named += [(f"{at}.expect.excluded.{each}", each) for each in expect.excluded]
        named += [(f"{at}.expect.one_of[{n}]", each) for n, each in enumerate(expect.one_of)]
        named += [(f"{at}.expect.order[{n}]", each) for n, each in enumerate(expect.order)]
        if expect.endpoint is not None:
            named.append((f"{at}.expect.endpoint", expect.endpoint))
        for path, endpoint_id in named:
            _check_name(path, endpoint_id, known, problems.report)
        if expect.route is not None:
            routes = {route.name for route in policy.routes}
            _check_name(f"{at}.expect.route", expect.route, routes, problems.report, what="route")
    problems.raise_any()


def instant_of(spec: CasesFile) -> float | None:
    """Unix seconds of the file's `at`, UTC where it does not say."""
    if spec.at is None:
        return None
    return (spec.at if spec.at.tzinfo else spec.at.replace(tzinfo=UTC)).timestamp()


def _check_expectations(spec: CasesFile, report: Report) -> None:
    seen: dict[str, int] = {}
    for idx, case in enumerate(spec.cases):
        at, expect = f"cases[{idx}].expect", case.expect
        if case.name in seen:
            report(f"cases[{idx}].name", f"is also cases[{seen[case.name]}]; rename one")
        seen.setdefault(case.name, idx)
        if expect == Expect():
            report(at, "says nothing; add endpoint, one_of, order, refused, excluded or route")
        if expect.refused is False or expect.refused == "":
            report(f"{at}.refused", "must be true or a rule; say who is chosen instead")
        is_refused = bool(expect.refused)
        if is_refused and (expect.endpoint is not None or expect.one_of or expect.order):
            report(at, "a refused request goes to no endpoint; leave one of the two out")
        if is_refused and (expect.route is not None or expect.prefer is not None):
            report(at, "a refused request has no plan; leave route and prefer out")


def _check_name(
    path: str, name: str, known: set[str], report: Report, *, what: str = "endpoint"
) -> None:
    if name in known:
        return
    close = difflib.get_close_matches(name, sorted(known), n=1)
    hint = f"did you mean `{close[0]}`?" if close else f"use {', '.join(sorted(known)[:8])}"
    report(path, f"{name[:64]!r} is no {what} of the policy; {hint}")


def _durations(spec: CasesFile) -> list[tuple[str, str]]:
    places = [("fleet", spec.fleet)]
    places += [(f"cases[{idx}].fleet", case.fleet) for idx, case in enumerate(spec.cases)]
    found = [
        (f"{at}.{endpoint_id}.{name}", value)
        for at, fleet in places
        for endpoint_id, state in fleet.items()
        for name in ("ttft", "failure_lost", "age", "reopens_in", "pause")
        if (value := getattr(state, name)) is not None
    ]
    for idx, case in enumerate(spec.cases):
        if case.request.deadline is not None:
            found.append((f"cases[{idx}].request.deadline", case.request.deadline))
    return found
