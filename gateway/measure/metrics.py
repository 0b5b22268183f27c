"""Every Prometheus metric of the gateway, declared once; labels are of bounded size."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Protocol

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest

from gateway.core import NANOS_PER_DOLLAR, AttemptOutcome
from gateway.errors import FAILURES, FailureClass

_SECONDS = (0.005, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0, 30.0, 60.0, 120.0, 300.0, 600.0)
_OVERHEAD_SECONDS = (0.0002, 0.0005, 0.001, 0.002, 0.005, 0.01, 0.05, 0.2, 1.0)


Calibration = Mapping[str, Mapping[str, Mapping[str, float]]]  # class → figure → what held


class Bill(Protocol):
    """What a metric needs of a settled attempt."""

    @property
    def cost_nanos(self) -> int: ...
    @property
    def overrun_nanos(self) -> int: ...
    @property
    def waste_nanos(self) -> int: ...


class Metrics:
    """One registry a process. Endpoint ids come from the policy, so their number is bounded."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        registry = self.registry
        self.requests = Counter(
            "gateway_requests",
            "Requests answered, by surface and status class.",
            ("surface", "status"),
            registry=registry,
        )
        self.request_seconds = Histogram(
            "gateway_request_duration_seconds",
            "Accepted to last byte.",
            ("surface",),
            buckets=_SECONDS,
            registry=registry,
        )
        self.overhead_seconds = Histogram(
            "gateway_overhead_seconds",
            "Time the gateway itself added before dispatch.",
            buckets=_OVERHEAD_SECONDS,
            registry=registry,
        )
        self.attempts = Counter(
            "gateway_attempts",
            "Attempts sent upstream, by endpoint and failure class ('' = none).",
            ("endpoint", "failure"),
            registry=registry,
        )
        self.ttft_seconds = Histogram(
            "gateway_time_to_first_token_seconds",
            "Dispatch to the first visible token, streams only.",
            ("endpoint",),
            buckets=_SECONDS,
            registry=registry,
        )
        self.tokens = Counter(
            "gateway_tokens", "Tokens as billed.", ("endpoint", "bucket"), registry=registry
        )
        self.cost_dollars = Counter(
            "gateway_cost_dollars", "What providers charge.", ("endpoint",), registry=registry
        )
        self.overrun_dollars = Counter(
            "gateway_overrun_dollars",
            "Cost above the hold, borne by the operator.",
            ("endpoint",),
            registry=registry,
        )
        self.waste_dollars = Counter(
            "gateway_waste_dollars",
            "Cost of attempts that the client does not pay at all, borne by the operator.",
            ("endpoint",),
            registry=registry,
        )
        self.alerts = Counter(
            "gateway_alerts", "Events an operator should see.", ("kind",), registry=registry
        )
        self.in_flight = Gauge(
            "gateway_requests_in_flight", "Requests being served now.", registry=registry
        )
        self.breaker_open = Gauge(
            "gateway_breaker_open", "1 while the breaker is open.", ("endpoint",), registry=registry
        )
        self.protocol_faults = Counter(
            "gateway_protocol_faults",
            "Deviations from the wire format that were repaired.",
            ("endpoint",),
            registry=registry,
        )

        self.calibration = CalibrationGauges(registry)

    def observe_request(
        self, surface: str, status: int, duration_s: float, overhead_s: float
    ) -> None:
        self.requests.labels(surface, f"{status // 100}xx").inc()
        self.request_seconds.labels(surface).observe(duration_s)
        if overhead_s > 0.0:  # else nothing was sent on
            self.overhead_seconds.observe(overhead_s)

    def observe_attempts(self, outcomes: Iterable[AttemptOutcome]) -> None:
        for outcome in outcomes:
            self.attempts.labels(outcome.endpoint_id, outcome.failure).inc()
            if outcome.failure and FAILURES[FailureClass(outcome.failure)].is_alert:
                self.alerts.labels(outcome.failure).inc()
            if outcome.protocol_faults:
                self.protocol_faults.labels(outcome.endpoint_id).inc(outcome.protocol_faults)
            if outcome.stream and outcome.first_visible_at_s is not None:
                self.ttft_seconds.labels(outcome.endpoint_id).observe(
                    outcome.first_visible_at_s - outcome.dispatched_at_s
                )
            if outcome.usage is not None:
                self.tokens.labels(outcome.endpoint_id, "input").inc(outcome.usage.input_total)
                self.tokens.labels(outcome.endpoint_id, "cached").inc(outcome.usage.cached_read)
                self.tokens.labels(outcome.endpoint_id, "output").inc(outcome.usage.output_total)

    def observe_costs(self, bills: Iterable[tuple[str, Bill]]) -> None:
        """What each attempt cost, and what of it the client does not pay."""
        for endpoint_id, bill in bills:
            for counter, nanos in (
                (self.cost_dollars, bill.cost_nanos),
                (self.overrun_dollars, bill.overrun_nanos),
                (self.waste_dollars, bill.waste_nanos),
            ):
                if nanos:
                    counter.labels(endpoint_id).inc(nanos / NANOS_PER_DOLLAR)

    def render(
        self, breakers: Mapping[str, str], calibrations: Mapping[str, Calibration] | None = None
    ) -> bytes:
        """
        The text exposition format. `breakers`: the state of each endpoint's now.

        `calibrations`: endpoint → class → figure → what `fleet.calibration` says of it.
        """
        self.calibration.show(calibrations or {})
        self.breaker_open.clear()  # endpoints leave with their policy
        for endpoint_id, state in breakers.items():
            self.breaker_open.labels(endpoint_id).set(state == "open")
        return generate_latest(self.registry)


class CalibrationGauges:
    """How often predicted intervals held, by endpoint, class and figure."""

    def __init__(self, registry: CollectorRegistry) -> None:
        labels = ("endpoint", "class", "figure")
        self.coverage = Gauge(
            "gateway_calibration_coverage",
            "Share of real times within the interval predicted at that level, decayed (1 h).",
            (*labels, "level"),
            registry=registry,
        )
        self.bias = Gauge(
            "gateway_calibration_bias_ln",
            "Mean of ln(real / predicted time), decayed (1 h).",
            labels,
            registry=registry,
        )
        self.samples = Gauge(
            "gateway_calibration_samples",
            "Decayed number of answers that coverage and bias rest on.",
            labels,
            registry=registry,
        )

    def show(self, calibrations: Mapping[str, Calibration]) -> None:
        """Replace what was shown: endpoints leave with their policy."""
        for gauge in (self.coverage, self.bias, self.samples):
            gauge.clear()
        for endpoint_id, classes in calibrations.items():
            for class_name, figures in classes.items():
                for figure, shown in figures.items():
                    labels = endpoint_id, class_name, figure
                    self.coverage.labels(*labels, "0.5").set(shown["coverage_50"])
                    self.coverage.labels(*labels, "0.9").set(shown["coverage_90"])
                    self.bias.labels(*labels).set(shown["bias_ln"])
                    self.samples.labels(*labels).set(shown["n"])
