"""Runs one decided request: drives the attempt machine with real attempts and a real client."""

from __future__ import annotations

import asyncio
import secrets as token_source
import time
from collections.abc import Callable, Mapping, Sequence

from gateway.errors import ApiError, FailureClass
from gateway.fleet.fleet import Fleet
from gateway.ledger.ledger import Ledger
from gateway.providers.adapter import Adapter
from gateway.providers.registry import ADAPTERS
from gateway.providers.transport import Transport
from gateway.relay.attempts import AttemptMachine
from gateway.relay.client_side import ClientSide
from gateway.relay.endings import (
    STREAM_HEADERS,
    Unwritable,
    add_up,
    answer_headers,
    api_error,
    draining_error,
    error_headers,
    in_band,
    passed_error,
    plain_headers,
    untranslatable,
    usage_extra,
    warnings_of,
)
from gateway.relay.exchange import Exchange, Workshop
from gateway.relay.job import (
    ClientSink,
    Headers,
    RelayJob,
    RelayLimits,
    RelayResult,
    attempt_limits,
    fallback_models,
)
from gateway.relay.mailbox import Mailbox
from gateway.relay.moves import (
    Abandon,
    Action,
    Cancel,
    ClientGone,
    Commit,
    Deliver,
    Dispatch,
    Event,
    Failed,
    Finish,
    Forward,
    GiveUp,
    KeepAlive,
    OpenClient,
    Skipped,
    Stop,
    Tick,
)
from gateway.relay.retry_budget import RetryBudget
from gateway.wire.pieces import Dialect, Piece, StreamWriter, WireError
from gateway.wire.translate import CannotTranslate, translate_answer
from gateway.wire.writers import keep_alive, stream_writer

__all__ = ["ClientSink", "Relay", "RelayJob", "RelayLimits", "RelayResult"]

CLOSE_S_MAX = 5.0


class Relay:
    """Runs requests; every long-lived thing is given. One for the process."""

    def __init__(
        self,
        transport: Transport,
        ledger: Ledger,
        fleet: Fleet,
        *,
        secrets: Callable[[str], str | None],
        adapters: Mapping[Dialect, Adapter] = ADAPTERS,
        clock: Callable[[], float] = time.monotonic,
        wall_clock: Callable[[], float] = time.time,
        new_id: Callable[[], str] = lambda: token_source.token_hex(12),
        limits: RelayLimits | None = None,
        retry_budget: RetryBudget | None = None,
    ) -> None:
        self._shop = Workshop(
            transport=transport,
            adapters=adapters,
            ledger=ledger,
            fleet=fleet,
            clock=clock,
            wall_clock=wall_clock,
            secrets=secrets,
            new_id=new_id,
            limits=limits or RelayLimits(),
        )
        self._retries = retry_budget or RetryBudget()
        self._runs: set[_Run] = set()
        self._tasks: set[asyncio.Task[None]] = set()  # attempts, until their sockets are closed

    @property
    def num_active(self) -> int:
        return len(self._runs)

    async def run(self, job: RelayJob, client: ClientSink) -> RelayResult:
        """Answer `job` through `client`. Does not raise for what endpoints or client do.

        When the result has an error and the client was not started, the caller must tell it.
        """
        tenant_id = job.caller.tenant_id
        self._retries.begin(tenant_id, self._shop.clock())
        run = _Run(self._shop, job, client, self._retries, self._tasks)
        self._runs.add(run)
        try:
            return await run.run()
        finally:
            self._runs.discard(run)
            self._retries.end(tenant_id)

    def stop_all(self) -> None:
        """The drain limit is reached: every running answer ends with an error in band."""
        for run in self._runs:
            run.stop()

    async def aclose(self) -> None:
        """End what runs and wait until the sockets of all attempts are closed."""
        self.stop_all()
        if self._tasks:
            _, pending = await asyncio.wait(self._tasks, timeout=CLOSE_S_MAX)
            for task in pending:
                task.cancel()


class _Run:
    """One request. Its loop is the only place that changes its state."""

    def __init__(
        self,
        shop: Workshop,
        job: RelayJob,
        client: ClientSink,
        retries: RetryBudget,
        tasks: set[asyncio.Task[None]],
    ) -> None:
        self._shop = shop
        self._job = job
        self._tasks = tasks
        limits = shop.limits
        self._client = ClientSide(
            client,
            stalled_s_max=limits.stalled_s_max or job.policy.timeouts.client_s,
            when_lost=self._lose_client,
        )
        self._mailbox: Mailbox[Event] = Mailbox(
            events_max=limits.queued_events_max, bytes_max=limits.queued_bytes_max
        )
        retry, tenant_id = job.policy.retry, job.caller.tenant_id
        self._machine = AttemptMachine(
            job.plan.order,
            attempt_limits(job),
            now=shop.clock(),
            may_retry=lambda: retries.take(
                tenant_id, shop.clock(), share=retry.budget_share, floor=retry.floor
            ),
            models=fallback_models(job),
        )
        self._exchanges: list[Exchange] = []
        self._writer: StreamWriter | None = None
        self._result = RelayResult(outcomes=[])

    async def run(self) -> RelayResult:
        clock, machine = self._shop.clock, self._machine
        watcher = asyncio.create_task(self._client.watch())
        try:
            actions = machine.start(clock())
            while True:
                for action in actions:
                    await self._perform(action)
                deadline = machine.next_deadline()
                if deadline is None:
                    break
                event = await self._mailbox.next(deadline - clock())
                actions = machine.handle(event if event is not None else Tick(), clock())
                self._account(event, actions)
        except Unwritable as error:
            await self._break_off(error.said)
        finally:
            watcher.cancel()
            for exchange in self._exchanges:
                if not exchange.is_closed:
                    # Cut off from outside (the server ends this task): settle what there is.
                    exchange.outcome.client_gone = True
                    exchange.cancel(FailureClass.CLIENT_GONE)
                    exchange.close_books()
        return add_up(self._result, self._exchanges)

    def stop(self) -> None:
        self._mailbox.post(Stop(), is_urgent=True)

    def _lose_client(self) -> None:
        """Close upstream at once, even while the loop is stuck in a write to the client."""
        if self._exchanges and not self._exchanges[-1].is_closed:
            self._exchanges[-1].abort()
        self._mailbox.post(ClientGone(), is_urgent=True)

    def _account(self, event: Event | None, actions: Sequence[Action]) -> None:
        """Close the books of an attempt that ended by itself, unless it is whole: see Finish."""
        if isinstance(event, Failed | Skipped) and not any(isinstance(a, Finish) for a in actions):
            exchange = self._exchanges[event.attempt - 1]
            if not exchange.is_closed:
                exchange.close_books()

    # Actions

    async def _perform(self, action: Action) -> None:
        if isinstance(action, Forward):
            await self._forward(action.pieces)
        elif isinstance(action, Dispatch):
            self._dispatch(action)
        elif isinstance(action, Commit):
            self._commit(action.attempt)
        elif isinstance(action, OpenClient):
            await self._start(200, STREAM_HEADERS)
        elif isinstance(action, KeepAlive):
            await self._client.send(keep_alive(self._job.surface))
        elif isinstance(action, Cancel):
            exchange = self._exchanges[action.attempt - 1]
            exchange.outcome.client_gone = self._client.is_lost
            exchange.cancel(action.failure)
            exchange.close_books()
        elif isinstance(action, Finish):
            await self._finish_stream(self._exchanges[action.attempt - 1])
        elif isinstance(action, Deliver):
            await self._deliver(self._exchanges[action.attempt - 1])
        elif isinstance(action, GiveUp):
            await self._give_up(action)
        else:
            assert isinstance(action, Abandon)
            self._result.status = 499
            self._result.error_code = "client_gone"

    def _dispatch(self, action: Dispatch) -> None:
        endpoint = self._job.policy.endpoints[action.endpoint_id]
        exchange = Exchange(self._shop, self._job, endpoint, action.attempt, self._mailbox)
        self._exchanges.append(exchange)
        task = exchange.start()
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def _commit(self, attempt: int) -> None:
        exchange = self._exchanges[attempt - 1]
        exchange.outcome.is_committed = True
        if self._job.parsed.stream:
            self._shop.fleet.first_token(exchange.endpoint.id)
            self._writer = stream_writer(
                self._job.surface,
                exchange.reading.surface,
                include_usage=self._job.parsed.include_usage,
                model=exchange.endpoint.model,
                request_id=self._job.request_id,
                created=int(self._shop.wall_clock()),
            )

    async def _forward(self, pieces: Sequence[Piece]) -> None:
        writer = self._writer
        assert writer is not None, "pieces are forwarded only after the commit"

        if len(pieces) == 1:
            frames = writer.write(pieces[0])
        else:
            frames = b"".join([writer.write(piece) for piece in pieces])
        if frames:
            await self._client.send(frames)
        if writer.failed is not None:
            raise Unwritable(writer.failed)

    async def _finish_stream(self, exchange: Exchange) -> None:
        writer = self._writer
        assert writer is not None
        exchange.outcome.protocol_faults += writer.protocol_faults
        exchange.completed()
        exchange.close_books()
        extra, usage = usage_extra(exchange, include_cost=self._job.parsed.include_usage)
        self._note_answer(exchange, 200)
        await self._client.send(writer.finish(extra, usage))
        await self._client.end()

    async def _break_off(self, said: WireError) -> None:
        """End an answer that goes on upstream: what was generated is paid, the rest is spared."""
        exchange = self._exchanges[self._machine.attempt - 1]
        exchange.cancel(FailureClass.UNTRANSLATABLE)
        exchange.close_books()
        self._result.error_code = said.code
        await self._refuse(untranslatable(said.message))

    async def _deliver(self, exchange: Exchange) -> None:
        job, body = self._job, exchange.reading.body
        upstream = exchange.reading.surface
        is_translated = upstream is not job.surface
        if is_translated:
            try:
                body = translate_answer(
                    body,
                    upstream,
                    job.surface,
                    model=exchange.endpoint.model,
                    created=int(self._shop.wall_clock()),
                    request_id=job.request_id,
                    estimate=exchange.usage_estimate(),
                )
            except CannotTranslate as error:
                # Nothing of it reaches the client, so it is not the client's to pay.
                exchange.outcome.is_committed = False
                exchange.outcome.failure = FailureClass.UNTRANSLATABLE.value
                exchange.close_books()
                self._result.endpoint_id = exchange.endpoint.id
                await self._refuse(untranslatable(error.message))
                return
        exchange.close_books()
        status = exchange.outcome.status
        self._note_answer(exchange, status)
        await self._start(status, plain_headers(exchange, body, is_translated=is_translated))
        await self._client.send(body)
        await self._client.end()

    async def _give_up(self, action: GiveUp) -> None:
        job, result = self._job, self._result
        exchange = self._exchanges[action.attempt - 1] if action.attempt else None
        if exchange is not None:
            if not exchange.is_closed:
                exchange.close_books()
            result.endpoint_id = exchange.endpoint.id
        error: ApiError
        if action.is_shutdown:
            error = draining_error()
        else:
            if exchange is not None and not action.is_in_band and action.failure is not None:
                passed = passed_error(exchange, job.surface, job.request_id)
                if passed is not None:
                    await self._pass_error(exchange, *passed)
                    return
            error = api_error(
                self._refused_or(exchange, action.failure),
                action.failure,
                num_attempts=self._num_sent(),
                retry_after_s=action.retry_after_s,
            )
        if action.is_in_band:
            told = in_band(error, None if action.is_shutdown else exchange, job.surface)
            writer = self._writer or stream_writer(job.surface, job.surface, include_usage=False)
            await self._client.send(writer.error(told, job.request_id))
            result.error_code = told.code
        await self._refuse(error)

    def _refused_or(
        self, exchange: Exchange | None, failure: FailureClass | None
    ) -> Exchange | None:
        """Of attempts that were all skipped, the one that can say why."""
        if failure is not None or (exchange is not None and exchange.refusal is not None):
            return exchange
        return next((one for one in self._exchanges if one.refusal is not None), exchange)

    async def _pass_error(self, exchange: Exchange, status: int, body: bytes) -> None:
        fault = exchange.reading.fault
        self._result.status = status
        self._result.error_code = (fault.error.code or fault.failure) if fault is not None else ""
        await self._start(status, error_headers(body), exchange)
        await self._client.send(body)
        await self._client.end()

    async def _refuse(self, error: ApiError) -> None:
        self._result.error = error
        self._result.status = 200 if self._client.is_started else error.status
        self._result.error_code = self._result.error_code or error.code or error.type
        if self._client.is_started:
            await self._client.end()

    async def _start(self, status: int, headers: Headers, exchange: Exchange | None = None) -> None:
        if exchange is None and self._machine.committed is not None:
            exchange = self._exchanges[self._machine.committed - 1]
        warnings = warnings_of(exchange) if exchange is not None else []
        self._result.warnings = tuple(warnings)
        said = answer_headers(exchange, self._num_sent(), warnings)
        await self._client.start(status, [*headers, *said])

    # The sum

    def _num_sent(self) -> int:
        """Attempts that left, or tried to; those skipped before do not count."""
        return sum(one.is_counted for one in self._exchanges)

    def _note_answer(self, exchange: Exchange, status: int) -> None:
        result = self._result
        result.status = status
        result.endpoint_id = exchange.endpoint.id
