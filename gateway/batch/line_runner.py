"""One line of a batch, sent at once: an ordinary request of the batch lane to a chosen endpoint."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass

import msgspec

from gateway.api.problems import as_api_error, error_answer
from gateway.batch.line_client import LineClient
from gateway.core import Caller
from gateway.errors import ApiError, InvalidRequest, NoEligibleEndpoint
from gateway.measure.recorder import RequestRecord
from gateway.pipeline import Gateway, Inbound, serve
from gateway.policy.units import DURATION_S_MAX
from gateway.prices.rows import STANDARD, cost_nanos, pick_row
from gateway.store.batch_work import ClaimedLine, LineCost, LineResult
from gateway.wire.pieces import SURFACE_DIALECT, Surface
from gateway.wire.rawjson import parse_members

TRIES_MAX = 10
BACK_OFF_S, BACK_OFF_S_MAX = 2.0, 120.0
# A place or a provider's minute was missing, or an operator holds the endpoint: nothing is wrong
# with the line.
NO_ROOM = frozenset({"overloaded", "rate_limit_exceeded", "endpoint_held"})


@dataclass(frozen=True, slots=True)
class PutBack:
    """The line is to be sent again, not before so many seconds."""

    after_s: float
    is_a_try: bool
    error: ApiError


Ended = LineResult | PutBack


@dataclass(frozen=True, slots=True)
class LineRun:
    """What sending one line takes."""

    gateway: Gateway
    keep: Callable[[LineResult], Awaitable[None]]
    note_cost: Callable[[LineCost], None]

    async def send(
        self, line: ClaimedLine, text: bytes, caller: Caller, client: LineClient
    ) -> PutBack | None:
        """
        Send it; None when the line has ended and is kept. Raises CancelledError as told.

        The answer of an endpoint is kept before its attempt is settled; an error that sending
        again may mend puts the line back, any other is what the line came to.
        """
        gateway = self.gateway
        request_id = gateway.new_request_id()
        endpoint_id, _, tier = line.lane.rpartition("#")
        surface = Surface(line.surface)

        async def keep(status: int, body: bytes) -> None:
            await self.keep(self._result(line, status, body, request_id, endpoint_id))

        try:
            inbound = Inbound(
                request_id=request_id,
                surface=surface,
                caller=unmetered(caller),
                headers=lane_headers(line, now=gateway.wall_clock()),
                body=line_body(text, tier),
                client=client,
                received_at_s=gateway.clock(),
                only_endpoint=endpoint_id,
                keep=keep,
            )
            record = await serve(gateway, inbound)
        except Exception as error:
            return await self._failed(line, error, request_id)
        if not client.is_started:  # it was stopped on the way; what was generated is paid
            stopped = self._result(line, 499, b"", request_id, endpoint_id)
            await self.keep(msgspec.structs.replace(stopped, state=client.ends_as))
        elif client.status >= 400:  # the endpoint's own refusal, which is the line's answer
            result = self._result(line, client.status, client.body, request_id, endpoint_id)
            await self.keep(result)
        self.note_cost(self._cost(line, record))
        return None

    async def _failed(self, line: ClaimedLine, error: Exception, request_id: str) -> PutBack | None:
        told = as_api_error(error)
        back = put_back(line, told, now=self.gateway.wall_clock())
        if back is not None:
            return back
        dialect = SURFACE_DIALECT[Surface(line.surface)]
        status, _, body, _ = error_answer(told, dialect, request_id, is_kept=True)
        await self.keep(self._result(line, status, body, request_id, ""))
        return None

    def _result(
        self, line: ClaimedLine, status: int, body: bytes, request_id: str, endpoint_id: str
    ) -> LineResult:
        return LineResult(
            batch_id=line.batch_id,
            line_no=line.line_no,
            state="succeeded" if 200 <= status < 300 else "errored",
            status_code=status,
            body=body,
            request_id=request_id,
            endpoint_id=endpoint_id,
            ended_at=self.gateway.wall_clock(),
        )

    def _cost(self, line: ClaimedLine, record: RequestRecord) -> LineCost:
        result = record.result
        assert result is not None

        prices = self.gateway.fleet.snapshot().prices.get(result.endpoint_id, ())
        listed = 0
        if result.usage is not None:
            row = pick_row(prices, tier=STANDARD, context_tokens=result.usage.input_total)
            listed = cost_nanos(row, result.usage)
        return LineCost(
            batch_id=line.batch_id,
            line_no=line.line_no,
            attempt_id=result.outcomes[-1].attempt_id if result.outcomes else "",
            cost_nanos=result.cost_nanos,
            billed_nanos=result.billed_nanos,
            list_nanos=listed,
            is_estimated=result.is_estimated,
        )


def put_back(line: ClaimedLine, error: ApiError, *, now: float) -> PutBack | None:
    """Whether and when to send a line again; None: the error is what it came to."""
    if error.status < 429 or error.code == "insufficient_quota":
        return None
    is_room = error.code in NO_ROOM or (isinstance(error, NoEligibleEndpoint) and error.is_capacity)
    if not is_room and line.num_tries >= TRIES_MAX:
        return None
    tries = 1 if is_room else line.num_tries
    after_s = min(BACK_OFF_S_MAX, BACK_OFF_S * 2.0 ** (tries - 1))
    if error.retry_after_s is not None:
        after_s = max(after_s, min(error.retry_after_s, BACK_OFF_S_MAX))
    if now + after_s >= line.deadline_at:
        return None
    return PutBack(after_s, is_a_try=not is_room, error=error)


def line_body(text: bytes, tier: str) -> bytes:
    """The request in a line of the file; the lane's tier goes into it where it is not standard."""
    members = parse_members(text)
    body = members.raw("body")
    if body is None:
        raise InvalidRequest("the line has no body")
    if tier in ("", STANDARD):
        return body
    return parse_members(body).rewrite({"service_tier": msgspec.json.encode(tier)})


def lane_headers(line: ClaimedLine, *, now: float) -> dict[str, str]:
    """Its lane, and the time there is until its deadline, of which an attempt may take half."""
    left_s = min(DURATION_S_MAX, max(1.0, line.deadline_at - now))
    return {"x-looprouter-lane": "batch", "x-looprouter-deadline": f"{int(left_s)}s"}


def unmetered(caller: Caller) -> Caller:
    """A batch keeps to budgets and to what endpoints take, not to the key's limits a minute."""
    return msgspec.structs.replace(
        caller, requests_per_minute=None, tokens_per_minute=None, concurrency_max=None
    )


def key_refused(line: ClaimedLine, error: ApiError, now: float) -> LineResult:
    """How a line ends whose batch's key is no good any more."""
    body = b'{"error":{"message":"the key of this batch is no longer valid","type":"%s"}}'
    return LineResult(
        batch_id=line.batch_id,
        line_no=line.line_no,
        state="errored",
        status_code=error.status,
        body=body % error.type.encode(),
        request_id="",
        endpoint_id="",
        ended_at=now,
    )
