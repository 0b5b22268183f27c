"""OpenTelemetry spans of finished requests: one a request, one an attempt; names live here alone.

Follows the GenAI semantic conventions (still in development upstream). Spans are made afterwards
from the stamps that were taken anyway, so tracing adds nothing while a request runs.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from gateway import __version__
from gateway.core import AttemptOutcome
from gateway.errors import SetupError
from gateway.measure.recorder import RequestRecord

QUEUE_SPANS_MAX = 4_096
EXPORT_TIMEOUT_S = 5


class Tracing:
    """Exports to an OTLP/HTTP collector. `clock` is the monotonic one that stamps are taken by."""

    def __init__(
        self, endpoint: str, *, clock: Callable[[], float], wall_clock: Callable[[], float]
    ) -> None:
        try:
            from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
            from opentelemetry.sdk.resources import Resource
            from opentelemetry.sdk.trace import TracerProvider
            from opentelemetry.sdk.trace.export import BatchSpanProcessor
        except ImportError as error:
            raise SetupError(
                "OTEL_EXPORTER_OTLP_ENDPOINT is set; run: pip install 'looprouter[otel]'"
            ) from error
        exporter = OTLPSpanExporter(
            endpoint=endpoint.rstrip("/") + "/v1/traces", timeout=EXPORT_TIMEOUT_S
        )
        resource = Resource.create({"service.name": "looprouter", "service.version": __version__})
        self._provider = TracerProvider(resource=resource, shutdown_on_exit=False)
        self._provider.add_span_processor(
            BatchSpanProcessor(exporter, max_queue_size=QUEUE_SPANS_MAX)
        )
        self._tracer = self._provider.get_tracer("looprouter")
        self._clock = clock
        self._wall_clock = wall_clock

    def record(self, record: RequestRecord) -> None:
        """Queue the spans of one finished request; a full queue drops them."""
        from opentelemetry import trace

        offset_s = self._wall_clock() - self._clock()
        began_ns = round(record.created_unix_s * 1e9)
        ended_ns = began_ns + round(record.duration_s * 1e9)
        facts = record.facts
        span = self._tracer.start_span(
            f"{facts.surface.value} {facts.models[0]}",
            kind=trace.SpanKind.SERVER,
            start_time=began_ns,
            attributes=_request_attributes(record),
        )
        parent = trace.set_span_in_context(span)
        outcomes = record.result.outcomes if record.result is not None else ()
        for outcome in outcomes:
            self._attempt(outcome, parent, offset_s, trace)
        if record.has_failed:
            span.set_status(trace.Status(trace.StatusCode.ERROR, record.error))
        span.end(end_time=ended_ns)

    def _attempt(self, outcome: AttemptOutcome, parent: Any, offset_s: float, trace: Any) -> None:
        def unix_ns(at_s: float) -> int:
            return round((at_s + offset_s) * 1e9)

        ended_at_s = outcome.ended_at_s
        span = self._tracer.start_span(
            f"attempt {outcome.endpoint_id}",
            context=parent,
            kind=trace.SpanKind.CLIENT,
            start_time=unix_ns(outcome.dispatched_at_s),
            attributes=_attempt_attributes(outcome),
        )
        if outcome.first_visible_at_s is not None:
            span.add_event("gen_ai.first_token", timestamp=unix_ns(outcome.first_visible_at_s))
        if outcome.failure:
            span.set_status(trace.Status(trace.StatusCode.ERROR, outcome.failure))
        span.end(end_time=unix_ns(ended_at_s if ended_at_s is not None else self._clock()))

    def close(self) -> None:
        """Send what is queued, within the export's time limit."""
        self._provider.shutdown()


def _request_attributes(record: RequestRecord) -> dict[str, Any]:
    facts, result = record.facts, record.result
    attributes: dict[str, Any] = {
        "gen_ai.operation.name": facts.surface.value,
        "gen_ai.request.model": facts.models[0],
        "gen_ai.request.stream": facts.stream,
        "looprouter.request.id": facts.request_id,
        "looprouter.lane": facts.lane.value,
        "http.response.status_code": record.status,
    }
    if result is not None:
        attributes["looprouter.endpoint"] = result.endpoint_id
        attributes["looprouter.cost_nanos"] = result.cost_nanos
        if result.usage is not None:
            attributes["gen_ai.usage.input_tokens"] = result.usage.input_total
            attributes["gen_ai.usage.output_tokens"] = result.usage.output_total
    if record.plan is not None:
        attributes["looprouter.policy.version"] = record.plan.policy_version
        attributes["looprouter.route"] = record.plan.route
    return attributes


def _attempt_attributes(outcome: AttemptOutcome) -> dict[str, Any]:
    provider, _, model = outcome.endpoint_id.partition("/")
    attributes: dict[str, Any] = {
        "gen_ai.provider.name": provider,
        "gen_ai.request.model": model,
        "looprouter.attempt.id": outcome.attempt_id,
        "http.response.status_code": outcome.status,
    }
    if outcome.failure:
        attributes["error.type"] = outcome.failure
    if outcome.finish:
        attributes["gen_ai.response.finish_reasons"] = [outcome.finish]
    if outcome.first_visible_at_s is not None:
        ttft_s = outcome.first_visible_at_s - outcome.dispatched_at_s
        attributes["gen_ai.server.time_to_first_token"] = ttft_s
    return attributes
