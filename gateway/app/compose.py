"""Builds the gateway's long-lived objects in order, and takes them apart in the reverse order."""

from __future__ import annotations

import asyncio
import hashlib
import hmac
import secrets
import time
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path

import structlog

from gateway.app.crash import kill_point
from gateway.app.housekeeping import Housekeeping, exploration_limits
from gateway.app.load_polling import LoadPoller
from gateway.app.policy_home import policy_home
from gateway.app.policy_source import FilePolicySource, PolicySource, StorePolicySource
from gateway.app.replicas import sharing_news
from gateway.app.shadowing import shadowing
from gateway.errors import PolicyError, SetupError
from gateway.fleet.fleet import Fleet
from gateway.keys.authenticate import Authenticator
from gateway.keys.limits import Limits
from gateway.ledger.ledger import Ledger
from gateway.measure.metrics import Metrics
from gateway.measure.recorder import Recorder
from gateway.measure.tracing import Tracing
from gateway.pipeline import Gateway
from gateway.policy.load import Policy, load_policy
from gateway.prices.book import PriceBook
from gateway.prices.machine_meter import MachineMeter
from gateway.providers.httpx_transport import HttpxTransport
from gateway.providers.registry import ADAPTERS
from gateway.relay.admission import Admission
from gateway.relay.dispatch import Relay
from gateway.settings import Settings
from gateway.store.engine import Store, open_store, sqlite_path
from gateway.store.lock import take_serving_lock
from gateway.store.migrate import upgrade
from gateway.store.policies import active_policy
from gateway.store.redis import open_redis

log = structlog.get_logger()

STORE_SOURCE = "store"


@asynccontextmanager
async def running_store(settings: Settings) -> AsyncIterator[Store]:
    """The store with its schema current; on SQLite locked for this one serving process."""
    settings.make_home()
    # The lock comes first: nobody changes the schema under a process that serves.
    path = sqlite_path(settings.database_url, home=settings.home)
    lock = take_serving_lock(path) if path is not None else None
    try:
        await asyncio.to_thread(upgrade, settings.database_url)
        store = await open_store(settings.database_url, home=settings.home)
        try:
            yield store
        finally:
            await store.close()
    finally:
        if lock is not None:
            lock.release()


async def open_policy(settings: Settings, store: Store, policy: str) -> PolicySource:
    """A watched file, or the newest version in the store with `--policy store`."""
    if policy != STORE_SOURCE:
        return FilePolicySource(Path(policy), settings.environ)

    async def read() -> tuple[bytes, str] | None:
        async with store.read() as connection:
            row = await active_policy(connection)
        return (row.text.encode(), row.version) if row is not None else None

    found = await read()
    if found is None:
        raise SetupError(
            "there is no policy in the store yet; import one: looprouter policy import FILE"
        )
    try:
        current = load_policy(found[0], environ=settings.environ, source=STORE_SOURCE)
    except PolicyError as error:
        raise SetupError(f"the policy in the store does not load: {error}") from error
    return StorePolicySource(current, found[0], read, settings.environ)


def tenant_secrets(pepper: bytes) -> Callable[[str], bytes]:
    """One secret a tenant, so that equal prompts of two tenants never share an affinity key."""
    known: dict[str, bytes] = {}

    def secret_of(tenant_id: str) -> bytes:
        secret = known.get(tenant_id)
        if secret is None:
            secret = hmac.new(pepper, b"affinity:" + tenant_id.encode(), hashlib.sha256).digest()
            known[tenant_id] = secret
        return secret

    return secret_of


@asynccontextmanager
async def running_gateway(
    settings: Settings, store: Store, source: PolicySource, *, hosts: frozenset[str] = frozenset()
) -> AsyncIterator[tuple[Gateway, Housekeeping]]:
    """Everything built and its background tasks running; closed in order on the way out."""
    clock, wall_clock, pepper = time.monotonic, time.time, settings.pepper()
    metrics = Metrics()
    async with AsyncExitStack() as stack:
        redis = open_redis(settings.redis_url) if settings.redis_url else None
        if redis is not None:
            stack.push_async_callback(redis.aclose)
        meter = MachineMeter(began_s=wall_clock())
        book = PriceBook(unpriced_cap_picos=source.current.unpriced_cap_picos, live_rows=meter.rows)
        fleet = _fleet(source.current, book, clock=clock, wall_clock=wall_clock)
        ledger = Ledger(
            store,
            home=settings.home,
            clock=clock,
            alert=lambda alert: note_alert(metrics, alert.kind, alert.message),
            at_point=kill_point(settings.environ),
        )
        await ledger.start()
        stack.push_async_callback(ledger.close)
        recorder = Recorder(store)
        stack.push_async_callback(recorder.flush)
        limits = Limits(clock=clock, wall_clock=wall_clock, redis=redis, replicas=settings.replicas)
        transport = HttpxTransport(clock=clock)
        stack.push_async_callback(transport.aclose)
        relay = Relay(
            transport=transport,
            adapters=ADAPTERS,
            ledger=ledger,
            fleet=fleet,
            clock=clock,
            wall_clock=wall_clock,
            secrets=settings.secret,
            new_id=lambda: new_id("att"),
        )
        stack.push_async_callback(relay.aclose)
        gateway = Gateway(
            settings=settings,
            store=store,
            authenticator=Authenticator(store, pepper, clock=clock, wall_clock=wall_clock),
            limits=limits,
            ledger=ledger,
            fleet=fleet,
            meter=meter,
            relay=relay,
            admission=Admission(source.current.limits.requests_in_flight_max),
            metrics=metrics,
            tracing=_tracing(settings, stack, clock=clock, wall_clock=wall_clock),
            recorder=recorder,
            policy=lambda: source.current,
            policy_error=lambda: source.last_error,
            tenant_secret=tenant_secrets(pepper),
            clock=clock,
            wall_clock=wall_clock,
            started_at_s=clock(),
            new_request_id=lambda: new_id("req"),
            allowed_hosts=hosts or frozenset(settings.allowed_hosts),
        )
        housekeeping = Housekeeping(gateway, source, book, LoadPoller(gateway, transport))
        gateway.policy_home = policy_home(source, store, wall_clock, housekeeping.reload)
        await housekeeping.restore()
        await housekeeping.keep_policy(source.current)
        stack.push_async_callback(housekeeping.stop)
        housekeeping.start()
        await stack.enter_async_context(shadowing(gateway, settings.shadow_policy))
        await stack.enter_async_context(sharing_news(gateway, redis, pepper))
        gateway.is_ready = True
        yield gateway, housekeeping


def new_id(kind: str) -> str:
    """Random, so that no id tells of another; safe in a header."""
    return f"{kind}_{secrets.token_hex(12)}"


def _tracing(
    settings: Settings,
    stack: AsyncExitStack,
    *,
    clock: Callable[[], float],
    wall_clock: Callable[[], float],
) -> Tracing | None:
    if not settings.otlp_endpoint:
        return None
    tracing = Tracing(settings.otlp_endpoint, clock=clock, wall_clock=wall_clock)
    stack.push_async_callback(asyncio.to_thread, tracing.close)
    return tracing


def _fleet(
    policy: Policy,
    book: PriceBook,
    *,
    clock: Callable[[], float],
    wall_clock: Callable[[], float],
) -> Fleet:
    fleet = Fleet(
        policy.endpoints.values(),
        clock=clock,
        wall_clock=wall_clock,
        price_rows=book.rows,
        new_id=lambda: secrets.token_hex(8),
    )
    fleet.limit_exploration(exploration_limits(policy))
    return fleet


def note_alert(metrics: Metrics, kind: str, message: str) -> None:
    """What an operator should see: a counter to alarm on and a log line that says why."""
    metrics.alerts.labels(kind).inc()
    log.warning("alert", kind=kind, detail=message)
