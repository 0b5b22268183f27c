"""One attempt: reserve, build, send, read; reports to the request's mailbox and keeps its books.

All reading of the network happens in this attempt's own task. Its books (ledger and fleet) are
closed by the request's loop without waiting, so nothing is lost when a task is cancelled.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from gateway.core import AttemptOutcome, Endpoint
from gateway.errors import (
    ApiError,
    BudgetExhausted,
    FailureClass,
    InvalidRequest,
    ServiceError,
)
from gateway.fleet.fleet import Fleet
from gateway.ledger.ledger import Ledger
from gateway.ledger.records import Hold, HoldRequest, Settled, Settlement
from gateway.providers.adapter import Adapter, Built, Call, Fault
from gateway.providers.transport import (
    Headers,
    SendProgress,
    Transport,
    TransportError,
    UnsendableRequest,
)
from gateway.relay.echoes import Echoes
from gateway.relay.job import RelayJob, RelayLimits
from gateway.relay.mailbox import Mailbox
from gateway.relay.money import (
    billable_usage,
    characters_per_token,
    hold_for,
    injected_max_tokens,
    rows_of,
    settlement_for,
    tier_for,
)
from gateway.relay.moves import Answered, Blocked, Event, Sent, Skipped
from gateway.relay.reading import Reading
from gateway.relay.unseen import unseen_of
from gateway.wire.pieces import Dialect, WireError
from gateway.wire.translate import CannotTranslate
from gateway.wire.usage import Usage

# Ends of attempts that say nothing of their endpoint, if nothing was sent.
_NEVER_NEEDED = frozenset({"", FailureClass.CLIENT_GONE.value, FailureClass.OUTPACED.value})

logger = logging.getLogger("looprouter.relay")


@dataclass(frozen=True, slots=True, kw_only=True)
class Workshop:
    """The long-lived things that every attempt uses."""

    transport: Transport
    adapters: Mapping[Dialect, Adapter]
    ledger: Ledger
    fleet: Fleet
    clock: Callable[[], float]
    wall_clock: Callable[[], float]
    secrets: Callable[[str], str | None]
    new_id: Callable[[], str]
    limits: RelayLimits = field(default_factory=RelayLimits)


class Exchange:
    """One attempt's life. `start` it, hear from it by mail, then `close_books` exactly once."""

    def __init__(
        self,
        shop: Workshop,
        job: RelayJob,
        endpoint: Endpoint,
        attempt: int,
        mailbox: Mailbox[Event],
    ) -> None:
        self.endpoint = endpoint
        self.outcome = _new_outcome(shop, job, endpoint)
        self.dropped: tuple[str, ...] = ()
        self.max_tokens_set: int | None = None
        self.refusal: ApiError | None = None  # why it was skipped or blocked
        self.headers: Headers = ()
        self.settlement: Settlement | None = None
        self.settled: Settled | None = None
        self.reading = Reading(
            self.outcome,
            shop.adapters[endpoint.api],
            mailbox,
            attempt=attempt,
            limits=shop.limits,
            clock=shop.clock,
            wall_clock=shop.wall_clock,
            note_progress=self.note_progress,
        )
        self._shop = shop
        self._job = job
        self._attempt = attempt
        self._mailbox = mailbox
        self._progress = SendProgress()
        self._hold: Hold | None = None
        self._is_in_flight = False  # the fleet counts it
        self._is_counted = False
        self._is_whole = False  # the answer came to its own end
        self._is_closed = False
        self._is_aborted = False
        self._task: asyncio.Task[None] | None = None

    @property
    def is_closed(self) -> bool:
        """Its books are closed."""
        return self._is_closed

    @property
    def is_counted(self) -> bool:
        """It was about to be sent at least: one of the attempts of the request."""
        return self._is_counted

    @property
    def is_unpriced(self) -> bool:
        return not any(row.is_priced for row in rows_of(self._job, self.endpoint))

    def start(self) -> asyncio.Task[None]:
        self._task = asyncio.create_task(self._live())
        return self._task

    def cancel(self, failure: FailureClass) -> None:
        """Close the connection now; the books stay open until `close_books`."""
        if not self.outcome.failure:
            self.outcome.failure = failure.value
        self.abort()

    def abort(self) -> None:
        """Stop the task and with it the connection."""
        if self._task is not None and not self._is_aborted:
            # Once only: a second cancel would interrupt the closing of the socket.
            self._is_aborted = True
            self._task.cancel()

    def completed(self) -> None:
        """The client has the whole answer: no failure of the connection counts any more."""
        self._is_whole = True
        if self.outcome.ended_at_s is None:
            self.outcome.protocol_faults += 1  # its end mark never came
            self.abort()
        self.outcome.failure = ""

    # Its own task

    async def _live(self) -> None:
        try:
            event = await self._attempt_it()
        except TransportError as error:
            # Before anything was said, a cut connection is a failure like others: fall over.
            is_early = error.failure is FailureClass.STREAM_BROKEN and not self.outcome.num_frames
            event = self.reading.failed(
                Fault(
                    FailureClass.SERVER_ERROR if is_early else error.failure,
                    WireError(message=error.message, type="server_error", code=error.failure),
                    error.was_refused,
                )
            )
        except UnsendableRequest as error:
            # A header or URL of the policy that may not go on a wire: ours to mend, nothing sent.
            said = WireError(message=str(error), type="server_error", code="misconfigured")
            event = self.reading.failed(Fault(FailureClass.MISCONFIGURED, said, was_refused=True))
        except Exception as error:  # this task's outermost loop: the request must hear of it
            logger.exception("attempt %s failed by our own bug", self.outcome.attempt_id)
            self.refusal = ServiceError(
                "the gateway met an unexpected error; its log has the cause"
            )
            self.refusal.__cause__ = error
            event = Blocked(self._attempt)
        if event is not None:
            self._mailbox.post(event)

    async def _attempt_it(self) -> Event | None:
        shop, job = self._shop, self._job
        built = self._build()
        if built is None or not shop.fleet.may_probe(self.endpoint.id, in_panic=job.is_forced):
            return Skipped(self._attempt)
        is_stream = job.parsed.stream
        self.outcome.in_flight = shop.fleet.started(self.endpoint.id, is_stream=is_stream)
        job.let_go()
        self._is_in_flight = True
        try:
            self._hold = await shop.ledger.reserve(self._hold_request(built))
        except BudgetExhausted as error:
            self.refusal = error  # a cheaper endpoint may still fit
            return Skipped(self._attempt)
        except ApiError as error:
            self.refusal = error
            return Blocked(self._attempt)
        self._is_counted = True
        outcome = self.outcome
        outcome.dispatched_at_s = shop.clock()
        timeouts = job.policy.providers[self.endpoint.provider].timeouts
        is_reasoning = "reasoning" in job.facts.needs
        self._mailbox.post(
            Sent(
                self._attempt,
                self._first_token_timeout_s(),
                timeouts.idle_reasoning_s if is_reasoning else timeouts.idle_s,
                self._hedge_after_s(),
                characters_per_token(job.snapshot.stats.get(self.endpoint.id)),
            )
        )
        response = await shop.transport.send(
            built.request,
            connect_timeout_s=timeouts.connect_s,
            headers_timeout_s=timeouts.total_s,
            progress=self._progress,
        )
        try:
            outcome.headers_at_s = response.headers_at_s
            outcome.status = response.status
            self.headers = response.headers
            event = await self.reading.read(response, is_stream=job.parsed.stream)
            self._is_whole = isinstance(event, Answered)
            return event
        finally:
            await response.aclose()

    def _build(self) -> Built | None:
        """The request for this endpoint, or None with `refusal` saying why there is none."""
        job, endpoint = self._job, self.endpoint
        secret = self._shop.secrets(endpoint.key_env) if endpoint.key_env else None
        if endpoint.key_env and secret is None:
            self.refusal = ApiError(
                f"{endpoint.id} needs a key and {endpoint.key_env} is not set on the gateway"
            )
            return None
        self.reading.echoes = Echoes(secret)
        self.max_tokens_set = injected_max_tokens(job, endpoint)
        call = Call(
            endpoint=endpoint,
            parsed=job.parsed,
            secret=secret,
            max_tokens=self.max_tokens_set,
            max_tokens_default=endpoint.output_tokens_max or job.policy.limits.default_max_tokens,
            client_headers=job.headers,
            verify_tls=job.policy.providers[endpoint.provider].verify_tls,
            attempt_id=self.outcome.attempt_id,
            tenant_id=job.caller.tenant_id,
            lane=job.facts.lane,
        )
        try:
            built = self._shop.adapters[endpoint.api].build(call)
        except CannotTranslate as error:
            self.refusal = InvalidRequest(error.message, param=error.param)
            return None
        if built.dropped and job.facts.preferences.require_parameters:
            self.refusal = InvalidRequest(
                f"require_parameters is set and {endpoint.id} cannot carry "
                f"{', '.join(built.dropped)}",
                param=built.dropped[0],
                code="unsupported_parameter",
            )
            return None
        self.reading.surface, self.dropped = built.surface, built.dropped
        return built

    def _hold_request(self, built: Built) -> HoldRequest:
        job, endpoint, outcome = self._job, self.endpoint, self.outcome
        unseen = unseen_of(job, endpoint, self._shop.fleet)
        return HoldRequest(
            attempt_id=outcome.attempt_id,
            request_id=job.request_id,
            caller=job.caller,
            endpoint_id=endpoint.id,
            model=job.plan.model_of(endpoint.id),
            surface=job.surface.value,
            stream=job.parsed.stream,
            hold_nanos=hold_for(
                job, endpoint, max_tokens=self.max_tokens_set, body=built.request.body
            ),
            rows=rows_of(job, endpoint),
            tier=tier_for(job, endpoint),
            prompt_tokens_estimate=unseen.prompt_tokens,
            provider=endpoint.provider,
            is_simulated=endpoint.is_simulated,
            unseen_tokens=unseen.tokens,
            unseen_s=unseen.whole_s,
            lane=job.facts.lane.value,
        )

    def _first_token_timeout_s(self) -> float:
        fixed_s = self._job.policy.rescue.first_token_timeout_s
        if fixed_s is not None and self._job.parsed.stream:
            return fixed_s
        return self._shop.fleet.ttft_timeout_s(self.endpoint.id, self._job.facts)

    def _hedge_after_s(self) -> float | None:
        job = self._job
        if not job.parsed.stream or job.policy.rescue.hedge_share_max <= 0.0:
            return None
        return self._shop.fleet.ttft_p95_s(self.endpoint.id, job.facts)

    def note_progress(self, *, is_whole: bool = False) -> None:
        """For the journal: what a settlement after a crash starts from."""
        if self._hold is not None:
            stats = self._job.snapshot.stats.get(self.endpoint.id)
            usage, _ = billable_usage(self.outcome, stats, is_whole=is_whole)
            self._shop.ledger.progress(self._hold, usage)

    def usage_estimate(self) -> Usage | None:
        """Our own count of a whole answer whose upstream gave none: what will be billed."""
        if self.outcome.usage is not None:
            return None
        stats = self._job.snapshot.stats.get(self.endpoint.id)
        return billable_usage(self.outcome, stats, is_whole=True)[0]

    # Its books

    def close_books(self) -> None:
        """Settle or release the hold and let the fleet learn. Once; waits for nothing."""
        if self._is_closed:
            return
        self._is_closed = True
        shop, outcome = self._shop, self.outcome
        self.reading.end_pause()
        if outcome.ended_at_s is None:
            outcome.ended_at_s = shop.clock()
        is_sent = self._progress.is_sent
        if not is_sent or self._said_nothing() or self._died_unbilled():
            outcome.was_refused = True
        if self._hold is not None:
            if outcome.was_refused:
                self.settled = shop.ledger.release(self._hold, outcome.failure or "not_sent")
            else:
                self.settlement = self._bill()
                self.settled = shop.ledger.settle(self._hold, self.settlement)
        if not self._is_in_flight:
            return
        if not is_sent and outcome.failure in _NEVER_NEEDED:
            shop.fleet.abandoned(self.endpoint.id, is_stream=outcome.stream)
        else:
            shop.fleet.observe(outcome)

    def _said_nothing(self) -> bool:
        """An empty answer costs only what the provider's usage says: its prompt, or nothing."""
        outcome = self.outcome
        return (
            outcome.failure == FailureClass.SERVER_ERROR.value
            and (self.reading.has_end or bool(outcome.finish))
            and outcome.num_frames == 0
            and (outcome.usage is None or outcome.usage.is_zero)
        )

    def _died_unbilled(self) -> bool:
        """No token came, and the operator says that this provider bills from the first one."""
        outcome = self.outcome
        return (
            self.endpoint.bills_from_first_token
            and outcome.stream
            and not self._is_whole
            and outcome.first_generated_at_s is None
        )

    def _bill(self) -> Settlement:
        job, endpoint = self._job, self.endpoint
        return settlement_for(
            self.outcome,
            rows_of(job, endpoint),
            tier_for(job, endpoint),
            job.snapshot.stats.get(endpoint.id),
            is_whole=self._is_whole,
        )


def _new_outcome(shop: Workshop, job: RelayJob, endpoint: Endpoint) -> AttemptOutcome:
    facts = job.facts
    return AttemptOutcome(
        attempt_id=shop.new_id(),
        request_id=job.request_id,
        endpoint_id=endpoint.id,
        surface=job.surface,
        stream=job.parsed.stream,
        dispatched_at_s=shop.clock(),
        prompt_tokens_expected=facts.prompt_tokens,
        cached_tokens_expected=job.plan.cached_tokens(endpoint.id),
        text_bytes=facts.text_bytes,
        max_tokens=facts.max_tokens,
        has_tools="tools" in facts.needs,
        tenant_id=job.caller.tenant_id,
        key_id=job.caller.key_id,
        model=facts.models[0] if facts.models else job.plan.model,
        affinity_key=facts.affinity_key,
        session_key=facts.session_key,
        num_choices=facts.num_choices,
        num_images=facts.num_images,
    )
