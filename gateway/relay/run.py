"""One decided request under way: its attempt machine, real attempts and a real client."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from gateway.errors import ApiError, FailureClass
from gateway.relay.attempts import AttemptMachine
from gateway.relay.client_side import ClientSide
from gateway.relay.continuing import AnswerSoFar, continued_job, continues_at
from gateway.relay.endings import (
    STREAM_HEADERS,
    Unwritable,
    add_up,
    answer_headers,
    api_error,
    continuation_mark,
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
from gateway.relay.hedge_budget import HedgeBudget
from gateway.relay.job import (
    ClientSink,
    Headers,
    RelayJob,
    RelayResult,
    attempt_limits,
    fallback_models,
)
from gateway.relay.mailbox import Mailbox
from gateway.relay.moves import (
    Abandon,
    Action,
    Blocked,
    Cancel,
    ClientGone,
    Commit,
    Continue,
    Deliver,
    Dispatch,
    Event,
    Failed,
    Finish,
    Forward,
    GiveUp,
    Heard,
    KeepAlive,
    OpenClient,
    Skipped,
    Stop,
    Tick,
)
from gateway.relay.retry_budget import RetryBudget
from gateway.wire.pieces import StreamWriter, WireError
from gateway.wire.translate import CannotTranslate, translate_answer
from gateway.wire.writers import keep_alive, stream_writer

PAUSED_S = 0.1  # a write to the client that takes longer holds up the reading


class Run:
    """One request. Its loop is the only place that changes its state."""

    def __init__(
        self,
        shop: Workshop,
        job: RelayJob,
        client: ClientSink,
        retries: RetryBudget,
        hedges: HedgeBudget,
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
        self._limits = attempt_limits(job)
        goes_on_at = continues_at(job)
        # The text the client has, where another endpoint may have to go on from it.
        self._answer = AnswerSoFar() if goes_on_at else None
        self._machine = AttemptMachine(
            job.plan.order,
            self._limits,
            now=shop.clock(),
            may_retry=lambda: retries.take(
                tenant_id, shop.clock(), share=retry.budget_share, floor=retry.floor
            ),
            models=fallback_models(job),
            may_hedge=hedges.take if job.policy.rescue.hedge_share_max > 0.0 else None,
            continues_at=goes_on_at,
        )
        self._exchanges: list[Exchange] = []
        self._writer: StreamWriter | None = None
        self._continued: Exchange | None = None  # the first of two that made up the answer
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
            # Cut off from outside (the server ends this task): settle what there is.
            self._cancel_open(FailureClass.CLIENT_GONE, is_clients=True)
        return add_up(self._result, self._exchanges)

    def stop(self) -> None:
        self._mailbox.post(Stop(), is_urgent=True)

    def _lose_client(self) -> None:
        """Close upstream at once, even while the loop is stuck in a write to the client."""
        for exchange in self._exchanges:
            if not exchange.is_closed:
                exchange.abort()
        self._mailbox.post(ClientGone(), is_urgent=True)

    def _cancel_open(self, failure: FailureClass, *, is_clients: bool = False) -> None:
        """End what still runs: `failure` is of the answer the client got or would have got."""
        running = [exchange for exchange in self._exchanges if not exchange.is_closed]
        for exchange in running:
            is_first = exchange is running[0]  # whoever was before a committed one has ended
            exchange.outcome.client_gone = is_clients and is_first
            exchange.cancel(failure if is_first else FailureClass.OUTPACED)
            exchange.close_books()

    def _account(self, event: Event | None, actions: Sequence[Action]) -> None:
        """Close the books of an attempt that ended by itself, unless it is whole: see Finish."""
        if isinstance(event, Failed | Skipped) and Finish(event.attempt) not in actions:
            exchange = self._exchanges[event.attempt - 1]
            if not exchange.is_closed:
                exchange.close_books()
        elif isinstance(event, Blocked) and not self._machine.is_over:
            # It ran beside one that goes on, and has done nothing for the client.
            exchange = self._exchanges[event.attempt - 1]
            if not exchange.is_closed:
                exchange.cancel(FailureClass.OUTPACED)
                exchange.close_books()

    async def _perform(self, action: Action) -> None:
        if isinstance(action, Forward):
            await self._forward(action)
        elif isinstance(action, Dispatch):
            self._dispatch(action)
        elif isinstance(action, Commit):
            self._commit(action.attempt)
        elif isinstance(action, Heard):
            self._heard(self._exchanges[action.attempt - 1])
        elif isinstance(action, Continue):
            await self._continue(action)
        elif isinstance(action, OpenClient):
            await self._start(200, STREAM_HEADERS)
        elif isinstance(action, KeepAlive):
            await self._client.send(keep_alive(self._job.surface))
        elif isinstance(action, Cancel):
            exchange = self._exchanges[action.attempt - 1]
            is_ours = action.failure is FailureClass.OUTPACED  # the client never asked for it
            exchange.outcome.client_gone = self._client.is_lost and not is_ours
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
        endpoint, job = self._job.policy.endpoints[action.endpoint_id], self._job
        before = self._exchanges[action.continues - 1] if action.continues else None
        continued = job
        if before is not None:
            assert self._answer is not None
            has_chat = before.reading.surface is job.surface
            found = continued_job(job, endpoint, self._answer) if has_chat else None
            continued = found or job
        exchange = Exchange(self._shop, continued, endpoint, action.attempt, self._mailbox)
        self._exchanges.append(exchange)
        if before is not None and continued is job:
            self._mailbox.post(Skipped(action.attempt))
            return
        task = exchange.start()
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def _heard(self, exchange: Exchange) -> None:
        """Its first token has come: the fleet waits for it no longer."""
        if not exchange.outcome.was_heard and self._job.parsed.stream:
            self._shop.fleet.first_token(exchange.endpoint.id)
        exchange.outcome.was_heard = True

    def _commit(self, attempt: int) -> None:
        exchange = self._exchanges[attempt - 1]
        self._heard(exchange)
        exchange.outcome.is_committed = True
        if self._job.parsed.stream:
            self._writer = self._new_writer(exchange)

    def _new_writer(self, exchange: Exchange) -> StreamWriter:
        return stream_writer(
            self._job.surface,
            exchange.reading.surface,
            include_usage=self._job.parsed.include_usage,
            model=exchange.endpoint.model,
            request_id=self._job.request_id,
            created=int(self._shop.wall_clock()),
        )

    async def _continue(self, action: Continue) -> None:
        """Another endpoint goes on with the answer; the stream says so, in a comment."""
        exchange = self._exchanges[action.attempt - 1]
        self._heard(exchange)
        exchange.outcome.is_committed = True
        self._continued = self._exchanges[action.of - 1]
        # A new one: usage that the first attempt said on the way is not that of the whole.
        self._writer = self._new_writer(exchange)
        await self._client.send(continuation_mark(exchange.endpoint.id))

    async def _forward(self, action: Forward) -> None:
        writer, pieces = self._writer, action.pieces
        assert writer is not None, "pieces are forwarded only after the commit"

        if self._answer is not None:
            if self._continued is None:
                self._answer.add(pieces)
            else:
                pieces = self._answer.adapt(pieces)
        if len(pieces) == 1:
            frames = writer.write(pieces[0])
        else:
            frames = b"".join([writer.write(piece) for piece in pieces])
        if frames:
            await self._send(frames)
        if writer.failed is not None:
            raise Unwritable(writer.failed)

    async def _send(self, frames: bytes) -> None:
        if self._limits.decode_floor_tokens_per_s is None:
            await self._client.send(frames)
            return
        began_at_s = self._shop.clock()
        await self._client.send(frames)
        now = self._shop.clock()
        if now - began_at_s > PAUSED_S:
            self._machine.pause_ended(now)

    async def _finish_stream(self, exchange: Exchange) -> None:
        writer = self._writer
        assert writer is not None
        exchange.outcome.protocol_faults += writer.protocol_faults
        exchange.completed()
        exchange.close_books()
        extra, usage = usage_extra(
            exchange, include_cost=self._job.parsed.include_usage, before=self._continued
        )
        self._note_answer(exchange, 200)
        await self._client.send(writer.finish(extra, usage))
        await self._client.end()

    async def _break_off(self, said: WireError) -> None:
        """End an answer that goes on upstream: what was generated is paid, the rest is spared."""
        self._cancel_open(FailureClass.UNTRANSLATABLE)
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
        if job.keep is not None:
            exchange.note_progress(is_whole=True)
            await job.keep(exchange.outcome.status, body)
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
