"""*Probe now*: one small real request to one endpoint, through the pipeline like any other.

It is reserved, sent, billed to the dashboard's own key, recorded and learned from. The fleet books
it as one of the endpoint's probes, so that exploration does not send another one at once.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict

import msgspec

from gateway.api.problems import as_api_error
from gateway.core import dollars
from gateway.dashboard.answer_sink import AnswerSink
from gateway.dashboard.page import Desk
from gateway.dashboard.payer import PROBES, paying_caller
from gateway.errors import ApiError, Draining, NotFound, Overloaded
from gateway.measure.recorder import RequestRecord
from gateway.pipeline import Inbound, serve
from gateway.providers.smallest import smallest_request
from gateway.store.audit import AuditEvent, append_events

PROBE_S_MAX = 30.0
PROBES_AT_ONCE = 8  # of one process; one at a time of one endpoint
RESULTS_MAX = 1_000  # endpoints whose last result is kept
PROBE_HEADERS = {"x-looprouter-tags": "dashboard,probe"}


class ProbeResult(msgspec.Struct, frozen=True, kw_only=True):
    """What one probe came to. An error is told as the endpoint said it."""

    endpoint: str
    at: float  # unix seconds
    request_id: str
    ok: bool
    status: int
    error: str = ""
    ttft_s: float | None = None
    duration_s: float = 0.0
    output_tokens: int = 0
    cost_usd: str = "0.00"


class Prober:
    """Sends probes, and keeps the last result of each endpoint for whoever looks at the page."""

    def __init__(self, desk: Desk) -> None:
        self._desk = desk
        self.running: set[str] = set()
        self.last: OrderedDict[str, ProbeResult] = OrderedDict()

    async def probe(self, endpoint_id: str, *, actor: str) -> ProbeResult:
        """Ask one endpoint now, whether it is held or not. Raises ApiError where none is sent."""
        gateway = self._desk.gateway
        if endpoint_id not in gateway.policy().endpoints:
            raise NotFound(f"the policy has no endpoint {endpoint_id[:80]!r}", param="endpoint")
        if gateway.is_draining:
            raise Draining("the gateway is shutting down", retry_after_s=2)
        if endpoint_id in self.running or len(self.running) >= PROBES_AT_ONCE:
            raise Overloaded(
                f"a probe of {endpoint_id} is under way"
                if endpoint_id in self.running
                else f"{PROBES_AT_ONCE} probes are under way; wait for one of them to end",
                retry_after_s=1.0,
            )
        self.running.add(endpoint_id)
        try:
            result = await self._ask(endpoint_id)
        finally:
            self.running.discard(endpoint_id)
        self.last[endpoint_id] = result
        self.last.move_to_end(endpoint_id)
        if len(self.last) > RESULTS_MAX:
            self.last.popitem(last=False)
        await self._note(result, actor)
        return result

    async def _ask(self, endpoint_id: str) -> ProbeResult:
        gateway = self._desk.gateway
        caller = await paying_caller(self._desk, "", PROBES)
        surface, body = smallest_request(gateway.policy().endpoints[endpoint_id], is_stream=True)
        began_s, sink = gateway.clock(), AnswerSink(gateway.clock, asyncio.Event())
        inbound = Inbound(
            request_id=gateway.new_request_id(),
            surface=surface,
            caller=caller,
            headers=PROBE_HEADERS,
            body=body,
            client=sink,
            received_at_s=began_s,
            only_endpoint=endpoint_id,
            is_probe=True,
        )
        record: RequestRecord | None = None
        error: ApiError | None = None
        late = asyncio.get_running_loop().call_later(PROBE_S_MAX, sink.leave)
        try:
            record = await serve(gateway, inbound)
        except Exception as raised:
            error = as_api_error(raised)
        finally:
            late.cancel()
        return self._result(inbound, sink, record, error)

    def _result(
        self,
        inbound: Inbound,
        sink: AnswerSink,
        record: RequestRecord | None,
        error: ApiError | None,
    ) -> ProbeResult:
        gateway, endpoint_id = self._desk.gateway, inbound.only_endpoint
        said = ""
        if error is not None:
            said = error.message
        elif sink.error is not None:
            said = sink.error.message
        elif sink.gone.is_set():
            said = f"no whole answer within {PROBE_S_MAX:.0f} s"
        result = record.result if record is not None else None
        if result is not None:
            gateway.fleet.spend_probe(endpoint_id, result.cost_nanos)
        usage = result.usage if result is not None else None
        first_s = sink.first_at_s
        return ProbeResult(
            endpoint=endpoint_id,
            at=gateway.wall_clock(),
            request_id=inbound.request_id,
            ok=not said and 200 <= sink.status < 300,
            status=error.status if error is not None else sink.status,
            error=said,
            ttft_s=None if first_s is None else first_s - inbound.received_at_s,
            duration_s=gateway.clock() - inbound.received_at_s,
            output_tokens=usage.output_total if usage is not None else 0,
            cost_usd=dollars(result.cost_nanos if result is not None else 0),
        )

    async def _note(self, result: ProbeResult, actor: str) -> None:
        event = AuditEvent(
            tenant_id="",
            at=result.at,
            actor=actor,
            action="endpoint.probe",
            subject=result.endpoint,
            detail={
                "request": result.request_id,
                "ok": result.ok,
                "status": result.status,
                "cost_usd": result.cost_usd,
            },
        )
        async with self._desk.gateway.store.begin() as connection:
            await append_events(connection, [event])
