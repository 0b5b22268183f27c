"""The life of a request, on one page: read this first.

authenticate → parse → describe → admit → decide → relay (reserve, send, settle) → record
"""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

import msgspec

from gateway.core import Caller, FleetView, Lane, Plan, RequestFacts
from gateway.errors import ApiError, NoEligibleEndpoint, Overloaded, PermissionDenied
from gateway.fleet.fleet import Fleet
from gateway.fleet.holds import Holds, as_if_not_held
from gateway.keys.authenticate import Authenticator
from gateway.keys.limits import Limits
from gateway.keys.ticket import Ticket
from gateway.ledger.ledger import Ledger
from gateway.measure.metrics import Metrics
from gateway.measure.recorder import Recorder, RequestRecord
from gateway.measure.replicas import ReplicaMeter
from gateway.measure.shadow import Shadow
from gateway.measure.tracing import Tracing
from gateway.policy.decide import decide
from gateway.policy.explain import explain, explain_in_header
from gateway.policy.facts import describe
from gateway.policy.filter import CAPACITY_RULES
from gateway.policy.home import PolicyHome
from gateway.policy.load import Policy
from gateway.prices.machine_meter import MachineMeter
from gateway.relay.admission import Admission, Turn
from gateway.relay.dispatch import Relay
from gateway.relay.job import ClientSink, Keep, RelayJob
from gateway.settings import Settings
from gateway.stats.seeded import Seeded
from gateway.store.engine import Store
from gateway.wire.limits_headers import rate_limit_headers
from gateway.wire.pieces import SURFACE_DIALECT, Surface
from gateway.wire.requests import ParsedRequest, parse_request

EXPLAIN_HEADER_BYTES_MAX = 12_288
OVERHEADS_MAX = 4_096
_SEEDS = random.Random()  # noqa: S311 - stored, to repeat the decision; no secret


class Client(ClientSink, Protocol):
    """What the pipeline needs of an edge: the relay's sink, whole answers and late headers."""

    extra_headers: list[tuple[bytes, bytes]]

    async def answer(
        self, status: int, headers: list[tuple[bytes, bytes]], body: bytes
    ) -> None: ...


@dataclass(frozen=True, slots=True)
class Inbound:
    """One authenticated request as it came in, and the edge it answers through."""

    request_id: str
    surface: Surface
    caller: Caller
    headers: Mapping[str, str]
    body: bytes
    client: Client
    received_at_s: float
    body_wait_s: float = 0.0  # of the time since, how long its body took to come
    only_endpoint: str = ""  # a lane was chosen beforehand: this endpoint and no other
    keep: Keep | None = None
    is_probe: bool = False  # an operator asks how an endpoint does: sent though it is held


@dataclass(slots=True)
class Gateway:
    """Every long-lived object, built once in `app` and handed on."""

    settings: Settings
    store: Store
    authenticator: Authenticator
    limits: Limits
    ledger: Ledger
    fleet: Fleet
    relay: Relay
    admission: Admission
    metrics: Metrics
    recorder: Recorder
    policy: Callable[[], Policy]
    policy_error: Callable[[], str]
    tenant_secret: Callable[[str], bytes]
    clock: Callable[[], float]
    wall_clock: Callable[[], float]
    new_request_id: Callable[[], str]
    started_at_s: float
    allowed_hosts: frozenset[str] = frozenset()
    tracing: Tracing | None = None
    shadow: Shadow | None = None
    policy_home: PolicyHome | None = None  # where the policy is read from, and may be changed
    replicas: ReplicaMeter | None = None  # where there is a Redis to hear others over
    is_draining: bool = False
    is_ready: bool = False
    meter: MachineMeter = field(default_factory=lambda: MachineMeter(began_s=0.0))
    overhead_s: dict[str, float] = field(default_factory=dict)
    claims: set[str] = field(default_factory=set)  # of Idempotency-Keys, by request id
    holds: Holds = field(default_factory=Holds)

    async def authenticate(self, headers: Mapping[str, str]) -> Caller:
        return await self.authenticator.authenticate(headers)


@dataclass(frozen=True, slots=True)
class Decided:
    plan: Plan
    view: FleetView
    let_go: Callable[[], None]  # of the place that the plan's first endpoint keeps for it


async def serve(gateway: Gateway, inbound: Inbound) -> RequestRecord:
    """Answer one request through `inbound.client`. Raises ApiError while nothing was sent."""
    policy = gateway.policy()
    parsed = parse_request(inbound.surface, inbound.body)
    facts = describe(
        parsed,
        inbound.caller,
        inbound.headers,
        request_id=inbound.request_id,
        tenant_secret=gateway.tenant_secret(inbound.caller.tenant_id),
        policy=policy,
    )
    if inbound.only_endpoint:
        facts = bound_to(facts, inbound.only_endpoint)
    refuse_out_of_scope(inbound.caller, facts)
    record = RequestRecord.begin(facts, inbound.caller, gateway.wall_clock())
    gateway.admission.enter(facts.lane)
    try:
        await _serve_admitted(gateway, inbound, policy, parsed, facts, record)
    except ApiError as error:
        record.refuse(error.status, error.code or error.type)
        raise
    finally:
        gateway.admission.leave(record.result.endpoint_id if record.result is not None else "")
        record.duration_s = gateway.clock() - inbound.received_at_s
        gateway.recorder.record(record)
        if gateway.tracing is not None:
            gateway.tracing.record(record)
    return record


async def _serve_admitted(
    gateway: Gateway,
    inbound: Inbound,
    policy: Policy,
    parsed: ParsedRequest,
    facts: RequestFacts,
    record: RequestRecord,
) -> None:
    client = inbound.client
    ticket = await gateway.limits.admit(inbound.caller, facts.prompt_tokens)
    try:
        if ticket.state is not None:
            dialect = SURFACE_DIALECT[facts.surface]
            client.extra_headers.extend(rate_limit_headers(dialect, ticket.state))
        decided = await decide_waiting(gateway, policy, facts, is_probe=inbound.is_probe)
        try:
            record.decided(decided.plan, decided.view)
            if gateway.shadow is not None:
                gateway.shadow.offer(facts, decided.plan, decided.view, policy)
            if await _explained(gateway, inbound, decided, policy, record):
                return
            job = RelayJob(
                request_id=inbound.request_id,
                surface=inbound.surface,
                caller=inbound.caller,
                facts=facts,
                plan=decided.plan,
                snapshot=decided.view.snapshot,
                output_tokens_expected=decided.view.output_tokens_expected,
                parsed=parsed,
                policy=policy,
                headers=inbound.headers,
                let_go=decided.let_go,
                keep=inbound.keep,
                is_probe=inbound.is_probe,
            )
            await _relay(gateway, inbound, job, record, ticket)
        finally:
            decided.let_go()
    finally:
        ticket.close()


async def _explained(
    gateway: Gateway, inbound: Inbound, decided: Decided, policy: Policy, record: RequestRecord
) -> bool:
    """Give the reasons if they are asked for; True when that is all that was asked for."""
    wish = inbound.headers.get("x-looprouter-explain", "").strip().lower()
    if wish in ("", "0", "false", "no", "off"):
        return False
    client = inbound.client
    known = gateway.fleet.calibrated(record.facts)
    shown = explain(decided.plan, record.facts, decided.view, policy, calibrated=known)
    if wish in ("only", "dry-run"):
        reasons = msgspec.json.encode(shown)
        await client.answer(200, [(b"content-type", b"application/json")], reasons)
        record.status = 200
        return True
    line = explain_in_header(shown, EXPLAIN_HEADER_BYTES_MAX)
    client.extra_headers.append((b"x-looprouter-explain", line))
    return False


async def _relay(
    gateway: Gateway, inbound: Inbound, job: RelayJob, record: RequestRecord, ticket: Ticket
) -> None:
    client, began_at_s = inbound.client, gateway.clock()
    overhead_s = began_at_s - inbound.received_at_s - inbound.body_wait_s
    remember_overhead(gateway, inbound.request_id, overhead_s)
    record.overhead_s = overhead_s
    client.extra_headers.append((b"x-looprouter-overhead-ms", f"{overhead_s * 1000:.2f}".encode()))
    result = await gateway.relay.run(job, client)
    record.finished(result)
    ticket.settle(result.tokens_total)
    gateway.metrics.observe_attempts(result.outcomes)
    gateway.metrics.observe_costs(result.bills)
    gateway.meter.observe(job.policy.endpoints, result.outcomes, gateway.wall_clock())
    if result.error is not None:
        if not client.is_started:
            raise result.error
    elif result.status < 300:  # neither left by its client nor refused by the endpoint
        gateway.admission.served(result.endpoint_id, gateway.clock() - began_at_s)


async def decide_waiting(
    gateway: Gateway, policy: Policy, facts: RequestFacts, *, is_probe: bool = False
) -> Decided:
    """Decide now; if only capacity stands in the way, wait briefly for a slot and decide again."""
    admission = gateway.admission
    with Turn(admission, facts.lane, gateway.clock) as turn:
        while True:
            view = gateway.fleet.view(facts, candidate_ids(policy, facts))
            if is_probe:
                view = as_if_not_held(view)
            seed = _SEEDS.getrandbits(53)
            try:
                plan = decide(facts, view, policy, Seeded(seed), seed=seed)
            except NoEligibleEndpoint as error:
                if not error.is_capacity:
                    raise
                try:
                    await turn.wait(*_waited_for(error, view), free_in_s=error.free_in_s)
                except Overloaded as overloaded:
                    overloaded.detail = error.detail
                    raise overloaded from error
                continue
            if admission.is_awaited(plan.order[0], turn):
                # Whoever stands before us in the line goes first, and need not wait for it.
                admission.wake(plan.order[0])
                await turn.wait(plan.order, view.live[plan.order[0]].capacity)
                continue
            gateway.fleet.accrue_credit(facts)
            if plan.explored:
                gateway.fleet.spend_credit()
                if facts.lane is Lane.BATCH:
                    gateway.fleet.spend_probe(plan.order[0], plan.cost_nanos)
            let_go = gateway.fleet.promise(plan.order[0])
            return Decided(plan=plan, view=view, let_go=let_go)


def _waited_for(error: NoEligibleEndpoint, view: FleetView) -> tuple[list[str], float]:
    """The endpoints that only lack a free place, and what they carry together."""
    assert isinstance(error.detail, list)

    ids = [each["endpoint"] for each in error.detail if each["rule"] in CAPACITY_RULES]
    return ids, sum(view.live[each].capacity for each in ids if each in view.live)


def candidate_ids(policy: Policy, facts: RequestFacts) -> Sequence[str]:
    """Endpoints that could serve any of the models wanted, each once."""
    if len(facts.models) == 1:
        return tuple([each.id for each in policy.pools.get(facts.models[0], ())])
    pools = (policy.pools.get(model, ()) for model in facts.models)
    return list(dict.fromkeys(each.id for pool in pools for each in pool))


def bound_to(facts: RequestFacts, endpoint_id: str) -> RequestFacts:
    """The same request, for one endpoint only, whatever its caller prefers among several."""
    preferences = msgspec.structs.replace(
        facts.preferences, only=(endpoint_id,), order=(), ignore=(), allow_fallbacks=False
    )
    return msgspec.structs.replace(facts, preferences=preferences)


def refuse_out_of_scope(caller: Caller, facts: RequestFacts) -> None:
    """Raise PermissionDenied where the key may not use this API; `describe` saw to the models."""
    if caller.routes and facts.surface.value not in caller.routes:
        raise PermissionDenied(
            f"this key may not use the {facts.surface.value} API; "
            f"it may use {', '.join(caller.routes)}"
        )


def remember_overhead(gateway: Gateway, request_id: str, overhead_s: float) -> None:
    """Hand the figure to the edge, which knows when the request ended; bounded."""
    if len(gateway.overhead_s) < OVERHEADS_MAX:
        gateway.overhead_s[request_id] = overhead_s
