"""One line of a simulated batch answered: the same text as alone, at the batch price."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgspec

from gateway.simulator import chat_frames, messages_frames, responses_frames, small_answers
from gateway.simulator.answers import Answer, compose
from gateway.simulator.asks import Ask, AskError, parse_ask
from gateway.simulator.framing import Reply, encode
from gateway.simulator.gate import directed_faults
from gateway.simulator.meter import Books, InvoiceLine, Tally, cost_nanos
from gateway.simulator.native_jobs import Entry, Job, Told
from gateway.simulator.native_profile import BatchFaultMode, BatchProfile
from gateway.simulator.profile import FaultMode, ProviderProfile, SimulatedPrice
from gateway.wire.pieces import SURFACE_DIALECT, Dialect, Surface

_WRITERS: dict[Surface, Any] = {
    Surface.CHAT: chat_frames,
    Surface.COMPLETIONS: chat_frames,
    Surface.RESPONSES: responses_frames,
    Surface.MESSAGES: messages_frames,
}


class LineFailed(Exception):
    """The line is not answered; its error object and status."""

    def __init__(self, status: int, body: bytes) -> None:
        super().__init__(status)
        self.status = status
        self.body = body


def batch_price(price: SimulatedPrice, percent: int) -> SimulatedPrice:
    """Each bucket's share, rounded up to a pico-dollar, as the gateway's price book does it."""
    stated = {n: p for n, p in msgspec.structs.asdict(price).items() if p is not None}
    return SimulatedPrice(**{name: -(-picos * percent // 100) for name, picos in stated.items()})


class LineWorker:
    """Answers lines, and writes each on the invoice."""

    def __init__(
        self,
        *,
        profile: Callable[[], ProviderProfile],
        books: Callable[[], Books],
        new_id: Callable[[], str],
        wall_clock: Callable[[], float],
    ) -> None:
        self._profile = profile
        self._books = books
        self._new_id = new_id
        self._wall_clock = wall_clock

    def __call__(self, job: Job, entry: Entry, at_s: float) -> Told:
        request_id = self._new_id()
        try:
            ask, body, tally = self._answered(job, entry, request_id)
        except LineFailed as failed:
            return _failure(job.surface, entry, request_id, failed)
        self._charge(entry, ask, tally, request_id, at_s)
        return Told(
            _success(job.surface, entry, request_id, body),
            is_success=True,
            prompt_tokens=tally.prompt_tokens,
            output_tokens=tally.completion_tokens,
        )

    def _answered(self, job: Job, entry: Entry, request_id: str) -> tuple[Ask, bytes, Tally]:
        profile = self._profile()
        surface = job.surface
        try:
            ask = parse_ask(surface, entry.body)
            if ask.model != profile.model:
                raise AskError(f"model: {ask.model}", "model", status=404, code="model_not_found")
            if ask.prompt_tokens > profile.context_tokens_max:
                raise AskError(
                    f"This model's maximum context length is {profile.context_tokens_max} tokens.",
                    code="context_length_exceeded",
                )
            self._fail_as_told(job, entry, ask, request_id)
            if surface is Surface.EMBEDDINGS:
                return ask, small_answers.embeddings(ask, profile.model), Tally(ask.prompt_tokens)
            answer = compose(ask, profile, entry.number)
        except AskError as error:
            raise LineFailed(
                error.status,
                small_answers.error_body(
                    surface,
                    error.status,
                    error.message,
                    request_id=request_id,
                    param=error.param,
                    code=error.code,
                ),
            ) from error
        return ask, self._whole(ask, answer, request_id), _tally(ask, answer)

    def _fail_as_told(self, job: Job, entry: Entry, ask: Ask, request_id: str) -> None:
        """By the batch's fault for every so-many-th line, or by `[[sim fault=error]]` in it."""
        statuses = [f.status for f in directed_faults(ask.directives) if f.mode is FaultMode.ERROR]
        fault = job.faults.get(BatchFaultMode.LINE_ERRORS)
        if fault is not None and entry.number % fault.every == 0:
            statuses.append(fault.status)
        for status in statuses:
            raise LineFailed(
                status,
                small_answers.error_body(
                    job.surface,
                    status,
                    "simulated failure",
                    request_id=request_id,
                    code="simulated",
                ),
            )

    def _whole(self, ask: Ask, answer: Answer, request_id: str) -> bytes:
        profile = self._profile()
        reply = Reply(
            id=request_id,
            created_unix_s=int(self._wall_clock()),
            model=profile.model,
            ask=ask,
            answer=answer,
            prompt=Tally(input=ask.prompt_tokens),
            tokens_per_event=profile.tokens_per_event,
            usage_every_event=False,
            service_tier="batch",
        )
        body: bytes = _WRITERS[ask.surface].whole(reply)
        return body

    def _charge(self, entry: Entry, ask: Ask, tally: Tally, request_id: str, at_s: float) -> None:
        profile = self._profile()
        batch = profile.batch or BatchProfile()
        books = self._books()
        books.count_status(200)
        books.completed += 1
        books.charge(
            InvoiceLine(
                id=request_id,
                client_request_id=entry.custom_id,
                surface=ask.surface.value,
                model=profile.model,
                at_s=at_s,
                ended="complete",
                input=tally.input,
                cached_read=0,
                cache_write_5m=0,
                cache_write_1h=0,
                output=tally.output,
                reasoning=tally.reasoning,
                cost_nanos=cost_nanos(batch_price(profile.price, batch.price_percent), tally),
            )
        )


def undone(job: Job, entry: Entry, request_id: str, *, is_expired: bool) -> bytes:
    """The line of an entry that was never tried; "" where the provider says nothing of it."""
    if SURFACE_DIALECT[job.surface] is Dialect.ANTHROPIC:
        kind = "expired" if is_expired else "canceled"
        return encode({"custom_id": entry.custom_id, "result": {"type": kind}})
    if not is_expired:
        return b""  # a cancelled batch's files hold only what was done
    error = {
        "code": "batch_expired",
        "message": "This request could not be executed before the completion window expired.",
    }
    return encode(_openai_line(entry, request_id, None, error))


def _tally(ask: Ask, answer: Answer) -> Tally:
    return Tally(input=ask.prompt_tokens, output=answer.output, reasoning=answer.reasoning)


def _success(surface: Surface, entry: Entry, request_id: str, body: bytes) -> bytes:
    if SURFACE_DIALECT[surface] is Dialect.ANTHROPIC:
        result = {"type": "succeeded", "message": msgspec.Raw(body)}
        return encode({"custom_id": entry.custom_id, "result": result})
    response = {"status_code": 200, "request_id": request_id, "body": msgspec.Raw(body)}
    return encode(_openai_line(entry, request_id, response, None))


def _failure(surface: Surface, entry: Entry, request_id: str, failed: LineFailed) -> Told:
    body = msgspec.Raw(failed.body)
    if SURFACE_DIALECT[surface] is Dialect.ANTHROPIC:
        result = {"type": "errored", "error": body}
        return Told(encode({"custom_id": entry.custom_id, "result": result}), is_success=False)
    response = {"status_code": failed.status, "request_id": request_id, "body": body}
    return Told(encode(_openai_line(entry, request_id, response, None)), is_success=False)


def _openai_line(
    entry: Entry, request_id: str, response: object, error: object
) -> dict[str, object]:
    return {
        "id": f"batch_req_{request_id}",
        "custom_id": entry.custom_id,
        "response": response,
        "error": error,
    }
