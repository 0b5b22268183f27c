"""Traces go to a real OTLP/HTTP receiver and carry the GenAI names."""

from __future__ import annotations

import gzip
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer

import pytest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

from gateway.core import AttemptOutcome, Caller, RequestFacts
from gateway.measure.recorder import RequestRecord
from gateway.measure.tracing import Tracing
from gateway.relay.job import RelayResult
from gateway.wire.pieces import Surface
from gateway.wire.usage import Usage


class Receiver(BaseHTTPRequestHandler):
    bodies: list[bytes]

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["content-length"]))
        if self.headers.get("content-encoding") == "gzip":
            body = gzip.decompress(body)
        type(self).bodies.append(body)
        self.send_response(200)
        self.end_headers()

    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture
def collector() -> Iterator[tuple[str, list[bytes]]]:
    Receiver.bodies = []
    server = HTTPServer(("127.0.0.1", 0), Receiver)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    yield f"http://127.0.0.1:{server.server_port}", Receiver.bodies
    server.shutdown()
    server.server_close()
    thread.join()


def finished_record() -> RequestRecord:
    facts = RequestFacts(
        request_id="req_1", surface=Surface.CHAT, models=("chat",), stream=True, tenant_id="t"
    )
    record = RequestRecord.begin(facts, Caller(tenant_id="t", team_id="m", key_id="k"), 1_000.0)
    failed = AttemptOutcome(
        attempt_id="a1",
        request_id="req_1",
        endpoint_id="slow/llama",
        surface=Surface.CHAT,
        stream=True,
        dispatched_at_s=50.0,
        ended_at_s=50.5,
        failure="server_error",
        status=500,
    )
    answered = AttemptOutcome(
        attempt_id="a2",
        request_id="req_1",
        endpoint_id="fast/llama",
        surface=Surface.CHAT,
        stream=True,
        dispatched_at_s=50.5,
        first_visible_at_s=50.75,
        ended_at_s=52.0,
        finish="stop",
        status=200,
    )
    record.finished(
        RelayResult(
            outcomes=[failed, answered],
            status=200,
            endpoint_id="fast/llama",
            cost_nanos=1_200,
            billed_nanos=1_200,
            usage=Usage(input=10, output=20),
        )
    )
    record.duration_s = 2.0
    return record


def test_a_request_becomes_one_span_with_a_child_for_each_attempt(
    collector: tuple[str, list[bytes]],
) -> None:
    endpoint, bodies = collector
    tracing = Tracing(endpoint, clock=lambda: 52.0, wall_clock=lambda: 1_002.0)

    tracing.record(finished_record())
    tracing.close()

    request = ExportTraceServiceRequest()
    request.ParseFromString(bodies[0])
    spans = {
        span.name: span
        for resource in request.resource_spans
        for scope in resource.scope_spans
        for span in scope.spans
    }
    root, slow, fast = (
        spans["chat chat"],
        spans["attempt slow/llama"],
        spans["attempt fast/llama"],
    )
    attributes = {each.key: each.value for each in root.attributes}

    assert attributes["gen_ai.usage.output_tokens"].int_value == 20
    assert root.span_id == slow.parent_span_id == fast.parent_span_id
    assert (root.start_time_unix_nano, root.end_time_unix_nano) == (1_000 * 10**9, 1_002 * 10**9)
    assert fast.start_time_unix_nano == 1_000 * 10**9 + 5 * 10**8
    assert slow.status.code == 2  # STATUS_CODE_ERROR
    assert [event.name for event in fast.events] == ["gen_ai.first_token"]
