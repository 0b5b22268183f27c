"""One tiny request to an endpoint, to see that address, key and model name are right."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import msgspec

from gateway.app.policy_source import read_policy_file
from gateway.core import Endpoint
from gateway.errors import NotFound
from gateway.policy.load import Policy, load_policy
from gateway.providers.adapter import Call
from gateway.providers.httpx_transport import HttpxTransport
from gateway.providers.registry import ADAPTERS
from gateway.providers.smallest import smallest_request
from gateway.providers.transport import Transport, TransportError
from gateway.settings import Settings
from gateway.wire.requests import parse_request
from gateway.wire.translate import CannotTranslate

PROBE_TIMEOUT_S = 30.0
ANSWER_BYTES_MAX = 1024 * 1024
PROBES_AT_ONCE = 8


class ProbeResult(msgspec.Struct, frozen=True, kw_only=True):
    endpoint: str
    ok: bool
    status: int = 0
    duration_ms: float = 0.0
    failure: str = ""
    message: str = ""

    @property
    def summary(self) -> str:
        if self.ok:
            return f"answers in {self.duration_ms:.0f} ms"
        return f"{self.failure} {self.status or ''} {self.message}".strip()[:200]


def probed_endpoints(
    settings: Settings, policy_file: Path, wanted: Sequence[str]
) -> tuple[Policy, list[Endpoint]]:
    """The policy and which of its endpoints to probe. Raises NotFound for an unknown id."""
    policy = load_policy(
        read_policy_file(policy_file), environ=settings.environ, source=str(policy_file)
    )
    for name in wanted:
        if name not in policy.endpoints:
            raise NotFound(
                f"{policy_file} has no endpoint {name!r}; it has {', '.join(policy.endpoints)}"
            )
    return policy, [each for each in policy.endpoints.values() if not wanted or each.id in wanted]


async def probe_endpoints(
    settings: Settings,
    policy: Policy,
    endpoints: Sequence[Endpoint],
    progress: Callable[[ProbeResult], None],
) -> list[ProbeResult]:
    """Probe some at once; `progress` is called as each ends."""
    transport = HttpxTransport()
    turn = asyncio.Semaphore(PROBES_AT_ONCE)

    async def one(endpoint: Endpoint) -> ProbeResult:
        async with turn:
            result = await probe_endpoint(settings, policy, endpoint, transport)
        progress(result)
        return result

    try:
        return await asyncio.gather(*(one(endpoint) for endpoint in endpoints))
    finally:
        await transport.aclose()


async def probe_endpoint(
    settings: Settings, policy: Policy, endpoint: Endpoint, transport: Transport
) -> ProbeResult:
    secret = settings.secret(endpoint.key_env) if endpoint.key_env else None
    if endpoint.key_env and secret is None:
        return ProbeResult(
            endpoint=endpoint.id, ok=False, failure="no key", message=f"set {endpoint.key_env}"
        )
    began_s = time.monotonic()
    try:
        async with asyncio.timeout(PROBE_TIMEOUT_S):
            status, fault = await _ask(policy, endpoint, secret, transport)
    except TransportError as error:
        return ProbeResult(
            endpoint=endpoint.id, ok=False, failure=error.failure.value, message=error.message
        )
    except CannotTranslate as error:
        return ProbeResult(endpoint=endpoint.id, ok=False, failure="not probed", message=str(error))
    except TimeoutError:
        return ProbeResult(
            endpoint=endpoint.id,
            ok=False,
            failure="timeout",
            message=f"no answer within {PROBE_TIMEOUT_S:.0f} s",
        )
    duration_ms = (time.monotonic() - began_s) * 1000
    if fault:
        return ProbeResult(
            endpoint=endpoint.id,
            ok=False,
            status=status,
            duration_ms=duration_ms,
            failure=fault[0],
            message=fault[1],
        )
    return ProbeResult(endpoint=endpoint.id, ok=True, status=status, duration_ms=duration_ms)


async def _ask(
    policy: Policy, endpoint: Endpoint, secret: str | None, transport: Transport
) -> tuple[int, tuple[str, str] | None]:
    """Status, and (failure class, message) where it is an error."""
    surface, body = smallest_request(endpoint)
    adapter = ADAPTERS[endpoint.api]
    built = adapter.build(
        Call(endpoint=endpoint, parsed=parse_request(surface, body), secret=secret)
    )
    timeouts = policy.timeouts
    response = await transport.send(built.request, connect_timeout_s=timeouts.connect_s)
    try:
        answer = bytearray()
        async for part in response.stream():
            answer += part
            if len(answer) > ANSWER_BYTES_MAX:
                break
    finally:
        await response.aclose()
    if 200 <= response.status < 300:
        return response.status, None
    fault = adapter.classify(
        response.status, response.headers, bytes(answer), now_unix_s=time.time()
    )
    return response.status, (fault.failure.value, fault.error.message)
