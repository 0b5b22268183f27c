"""What the client is told: headers of a good answer, and the error when there is none."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from gateway.core import dollars
from gateway.errors import (
    FAILURES,
    ApiError,
    Draining,
    FailureClass,
    Overloaded,
    UpstreamFailed,
    UpstreamTimeout,
)
from gateway.ledger.records import Settlement
from gateway.relay.exchange import Exchange
from gateway.relay.job import Headers, RelayResult
from gateway.wire.errors import error_body, is_error_of
from gateway.wire.pieces import SURFACE_DIALECT, Dialect, Surface, WireError
from gateway.wire.usage import Usage

WARNING_BYTES_MAX = 1_024

STREAM_HEADERS: Headers = [
    (b"content-type", b"text/event-stream"),
    (b"cache-control", b"no-cache"),
    (b"x-accel-buffering", b"no"),
]
# Upstream headers that reach the client, and under which name. All others stop here.
_PASSED: dict[bytes, bytes] = {
    b"openai-processing-ms": b"openai-processing-ms",
    b"x-request-id": b"x-upstream-request-id",
    b"request-id": b"x-upstream-request-id",
}
_TIMEOUTS = frozenset({FailureClass.TIMEOUT_FIRST_TOKEN, FailureClass.TIMEOUT_IDLE})
_SATURATED = frozenset({FailureClass.OVERLOADED, FailureClass.RATE_LIMITED})
# Their words are about our account with the provider, not about the caller's request.
_PRIVATE = frozenset({FailureClass.AUTH, FailureClass.QUOTA, FailureClass.MISCONFIGURED})
# Of attempts that we ended ourselves.
_REASONS: dict[FailureClass, str] = {
    FailureClass.TIMEOUT_FIRST_TOKEN: "no token came in time",
    FailureClass.TIMEOUT_IDLE: "the stream fell silent",
    FailureClass.SERVER_ERROR: "the stream ended without content, or with too much before it",
}


class Unwritable(Exception):
    """The client's dialect cannot hold what comes; its writer has ended the stream in band."""

    def __init__(self, said: WireError) -> None:
        super().__init__(said.message)
        self.said = said


def answer_headers(
    exchange: Exchange | None, num_attempts: int, warnings: Sequence[str]
) -> Headers:
    """Who answered, after how many attempts, and what the caller should know."""
    headers: Headers = []
    if exchange is not None:
        headers.append((b"x-looprouter-endpoint", _ascii(exchange.endpoint.id)))
        seen: set[bytes] = set()
        for name, value in exchange.headers:
            passed = _PASSED.get(name)
            if passed is not None and passed not in seen:
                seen.add(passed)
                clean = exchange.reading.echoes.header(value)
                if clean is not None:
                    headers.append((passed, clean))
    headers.append((b"x-looprouter-attempts", b"%d" % num_attempts))
    if warnings:
        headers.append((b"x-looprouter-warning", _ascii("; ".join(warnings))[:WARNING_BYTES_MAX]))
    return headers


def plain_headers(exchange: Exchange, body: bytes, *, is_translated: bool) -> Headers:
    """Of a plain answer: its type, its length and its cost."""
    content_type = dict(exchange.headers).get(b"content-type", b"")
    if is_translated or not content_type.startswith(b"application/json"):
        content_type = b"application/json"  # whatever it is called, it was read as JSON
    headers = [(b"content-type", content_type), (b"content-length", b"%d" % len(body))]
    settlement = exchange.settlement
    if settlement is not None and not _is_unknown_cost(settlement):
        headers.append((b"x-looprouter-cost", dollars(settlement.cost_nanos).encode()))
    return headers


def _is_unknown_cost(settlement: Settlement) -> bool:
    """No price and none assumed (`unpriced: allow`): not to be told as $0."""
    price = settlement.price
    return price is not None and not price.is_priced and not settlement.cost_nanos


def error_headers(body: bytes) -> Headers:
    """Of an upstream's error that is passed on."""
    return [(b"content-type", b"application/json"), (b"content-length", b"%d" % len(body))]


def usage_extra(
    exchange: Exchange, *, include_cost: bool, before: Exchange | None = None
) -> tuple[dict[str, object] | None, Usage | None]:
    """(what the usage of a stream says beyond tokens, our own count where the upstream has none).

    The cost is a JSON number with all its digits, which a float would not keep. Of an answer that
    `exchange` continued both are of the two attempts together, as they are billed.
    """
    settlement = exchange.settlement
    if settlement is None:
        return None, None
    settlements = [settlement]
    if before is not None and before.settlement is not None:
        settlements.insert(0, before.settlement)
    extra: dict[str, object] = {}
    if include_cost and not any(_is_unknown_cost(each) for each in settlements):
        cost_nanos = sum(each.cost_nanos for each in settlements)
        extra["cost"] = msgspec.Raw(dollars(cost_nanos).encode())
    is_estimated = any(each.is_estimated for each in settlements)
    if is_estimated:
        extra["is_estimated"] = True
    if not is_estimated and before is None:
        return extra or None, None
    return extra or None, _summed([each.usage for each in settlements])


def _summed(usages: Sequence[Usage | None]) -> Usage | None:
    """Every bucket added up; None where none is known."""
    known = [usage for usage in usages if usage is not None]
    if len(known) < 2:
        return known[0] if known else None
    return Usage(
        **{name: sum(getattr(each, name) for each in known) for name in Usage.__struct_fields__}
    )


def continuation_mark(endpoint_id: str) -> bytes:
    """An SSE comment: what follows was generated by another endpoint."""
    return b": continued by " + _ascii(endpoint_id) + b"\n\n"


def warnings_of(exchange: Exchange) -> list[str]:
    """What was changed or lost on the way to the endpoint."""
    said: list[str] = []
    if exchange.max_tokens_set is not None:
        said.append(f"max_tokens={exchange.max_tokens_set} was set, for this key has a budget")
    if exchange.dropped:
        said.append(f"not carried: {', '.join(exchange.dropped)}")
    if exchange.is_unpriced:
        said.append("the price of this endpoint is unknown")
    if exchange.settlement is not None and exchange.settlement.is_estimated:
        said.append("the endpoint reported no usage; tokens and cost are estimates")
    return said


def passed_error(exchange: Exchange, client: Surface, request_id: str) -> tuple[int, bytes] | None:
    """The upstream's own 4xx for the caller: its bytes if they are of his dialect, else written."""
    fault = exchange.reading.fault
    if fault is None or not FAILURES[fault.failure].passes_answer:
        return None
    status = exchange.outcome.status
    if not 400 <= status < 500:
        status = 400  # it came inside a 200
    dialect = SURFACE_DIALECT[client]
    body = exchange.reading.error_body
    if dialect is SURFACE_DIALECT[exchange.reading.surface] and is_error_of(dialect, body):
        return status, body
    error = fault.error
    # The other dialect's word for the type means nothing here; the status says it as well.
    return status, error_body(
        dialect,
        status=status,
        type="invalid_request_error",
        message=error.message,
        code=error.code or None,
        request_id=request_id,
    )


def api_error(
    exchange: Exchange | None,
    failure: FailureClass | None,
    *,
    num_attempts: int,
    retry_after_s: float | None,
) -> ApiError:
    """The error of a request that no endpoint answered."""
    if failure is None:
        if exchange is not None and exchange.refusal is not None:
            return exchange.refusal
        return Overloaded(
            "no endpoint may be tried just now: the ones left are being probed by other requests",
            retry_after_s=retry_after_s if retry_after_s is not None else 1.0,
        )
    assert exchange is not None

    said, words = describe_failure(exchange, failure)
    tried = f"{num_attempts} attempts failed; the last: " if num_attempts > 1 else ""
    message = f"{tried}{said}: {words}" if words else f"{tried}{said}"
    error: ApiError
    if failure in _TIMEOUTS:
        error = UpstreamTimeout(message, retry_after_s=retry_after_s)
    elif failure in _SATURATED:
        error = Overloaded(message, code=f"upstream_{failure.value}", retry_after_s=retry_after_s)
        if num_attempts > 1:
            error.should_retry = False  # our fallbacks are spent
    else:
        error = UpstreamFailed(message, retry_after_s=retry_after_s)
    error.summary = f"{tried}{said}"
    return error


def draining_error() -> ApiError:
    return Draining("the gateway is shutting down and this answer was cut short; send it again")


def untranslatable(why: str) -> ApiError:
    """A good answer that the caller's dialect has no words for."""
    error = UpstreamFailed(f"the answer cannot be put into the caller's dialect: {why}")
    error.summary = "the answer cannot be put into the caller's dialect"
    return error


def in_band(error: ApiError, exchange: Exchange | None, client: Surface) -> WireError:
    """The same error as a frame of a stream that has begun."""
    fault = exchange.reading.fault if exchange is not None else None
    is_ours = SURFACE_DIALECT[client] is Dialect.ANTHROPIC
    kind = "server_error" if is_ours else "upstream_error"
    if fault is not None and FAILURES[fault.failure].passes_answer:
        said = fault.error  # the caller's own fault, which only the upstream can explain
        return WireError(
            message=said.message, type="invalid_request_error", code=said.code, status=400
        )
    if fault is not None and fault.failure is FailureClass.STREAM_BROKEN:
        own = fault.error
        code = own.code if own.code and own.code != "stream_truncated" else "stream_interrupted"
        return WireError(message=error.message, type=kind, code=code, status=error.status)
    if isinstance(error, UpstreamTimeout):
        return WireError(
            message=error.message, type=kind, code="stream_timeout", status=error.status
        )
    return WireError(
        message=error.message, type=error.type, code=error.code or "", status=error.status
    )


def describe_failure(exchange: Exchange, failure: FailureClass) -> tuple[str, str]:
    """(what happened to one attempt, the words for it), without what concerns only the operator.

    The words are the provider's, and may repeat the request.
    """
    outcome, fault = exchange.outcome, exchange.reading.fault
    status = f", HTTP {outcome.status}" if outcome.status >= 400 else ""
    said = f"endpoint {exchange.endpoint.id} failed ({failure.value}{status})"
    if failure in _PRIVATE:
        return said, ""
    return said, _REASONS.get(failure, "") if fault is None else fault.error.message


def add_up(result: RelayResult, exchanges: Sequence[Exchange]) -> RelayResult:
    """Fill in what all attempts together came to."""
    for exchange in exchanges:
        if not exchange.is_counted:
            continue
        outcome, settlement = exchange.outcome, exchange.settlement
        result.outcomes.append(outcome)
        result.endpoint_id = result.endpoint_id or exchange.endpoint.id
        if exchange.settled is not None:
            result.bills.append((exchange.endpoint.id, exchange.settled))
            result.cost_nanos += exchange.settled.cost_nanos
            result.billed_nanos += exchange.settled.billed_nanos
        if outcome.is_committed or outcome.client_gone:
            result.endpoint_id = exchange.endpoint.id
            if settlement is not None:
                result.usage = _summed([result.usage, settlement.usage])
                result.is_estimated = result.is_estimated or settlement.is_estimated
    return result


def _ascii(text: str) -> bytes:
    """Safe in a header: anything else than printable ASCII becomes `?`."""
    return "".join(char if " " <= char <= "~" else "?" for char in text).encode()
