"""What the metrics say about money and breakers."""

from __future__ import annotations

from gateway.core import Caller, RequestFacts
from gateway.ledger.records import Settled
from gateway.measure.metrics import Metrics
from gateway.measure.recorder import RequestRecord
from gateway.wire.pieces import Surface


def sample(text: str, name: str) -> float | None:
    for line in text.splitlines():
        if line.startswith(name + " "):
            return float(line.rsplit(" ", 1)[1])
    return None


def test_cost_goes_to_the_endpoint_of_each_attempt_and_to_who_pays_it() -> None:
    metrics = Metrics()
    failed = Settled(cost_nanos=10**9, billed_nanos=0, overrun_nanos=0, waste_nanos=10**9)
    dear = Settled(cost_nanos=3 * 10**9, billed_nanos=10**9, overrun_nanos=2 * 10**9, waste_nanos=0)
    metrics.observe_costs([("a/m", failed), ("b/m", dear)])
    text = metrics.render({}).decode()

    assert sample(text, 'gateway_cost_dollars_total{endpoint="a/m"}') == 1.0
    assert sample(text, 'gateway_waste_dollars_total{endpoint="a/m"}') == 1.0
    assert sample(text, 'gateway_overrun_dollars_total{endpoint="a/m"}') is None
    assert sample(text, 'gateway_cost_dollars_total{endpoint="b/m"}') == 3.0
    assert sample(text, 'gateway_overrun_dollars_total{endpoint="b/m"}') == 2.0


def test_breakers_are_those_of_the_policy_in_force() -> None:
    metrics = Metrics()
    first = metrics.render({"a/m": "open", "b/m": "half_open"}).decode()
    then = metrics.render({"b/m": "closed"}).decode()

    assert sample(first, 'gateway_breaker_open{endpoint="a/m"}') == 1.0
    assert sample(first, 'gateway_breaker_open{endpoint="b/m"}') == 0.0
    assert sample(then, 'gateway_breaker_open{endpoint="a/m"}') is None


def test_requests_that_were_not_sent_on_have_no_overhead() -> None:
    metrics = Metrics()
    metrics.observe_request("chat", 400, 0.001, 0.0)
    metrics.observe_request("chat", 200, 0.5, 0.002)

    assert sample(metrics.render({}).decode(), "gateway_overhead_seconds_count") == 1.0


def test_failures_inside_a_stream_that_had_begun_are_failures() -> None:
    facts = RequestFacts(request_id="r", surface=Surface.CHAT, models=("m",))
    record = RequestRecord.begin(facts, Caller(tenant_id="t", team_id="m", key_id="k"), 0.0)
    seen = []
    for status, error in ((200, ""), (200, "stream_interrupted"), (502, "x"), (499, "client_gone")):
        record.refuse(status, error)
        seen.append(record.has_failed)

    assert seen == [False, True, True, False]


def test_calibration_is_that_of_the_endpoints_in_force() -> None:
    metrics = Metrics()
    shown = {"coverage_50": 0.52, "coverage_90": 0.91, "bias_ln": -0.03, "n": 120.0}
    first = metrics.render({}, {"a/m": {"chat/stream": {"ttft": shown}}}).decode()
    then = metrics.render({}, {}).decode()
    labels = 'class="chat/stream",endpoint="a/m",figure="ttft"'

    for level, value in (("0.5", 0.52), ("0.9", 0.91)):
        name = f'gateway_calibration_coverage{{{labels},level="{level}"}}'
        assert sample(first, name) == value
    assert sample(first, f"gateway_calibration_bias_ln{{{labels}}}") == -0.03
    assert sample(first, f"gateway_calibration_samples{{{labels}}}") == 120.0
    assert "gateway_calibration_coverage{" not in then
