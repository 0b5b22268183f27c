"""The engine in a thread of its own: commands in by a queue, reports out in one call a step.

The engine is synchronous and belongs to this thread alone, from its making on (how many cores torch
uses is set for the calling thread). The event loop never waits for a step.
"""

from __future__ import annotations

import asyncio
import queue
import threading
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Protocol

import structlog

from backend.engine.interface import EngineLoad, EngineRequest, FinishReason, TokenEvent
from backend.errors import BackendError, RequestFailed, Unavailable
from backend.serving.mailbox import Accepted, Mailbox, Refused, Report
from backend.serving.metrics import Metrics

log = structlog.get_logger()

IDLE_WAKE_S = 0.5  # so that figures "over the last seconds" fall to 0
STOP_WAIT_S = 30.0


class EngineApi(Protocol):
    """What serving asks of the engine."""

    def add(self, request: EngineRequest) -> None:
        """Raises BadRequest, ContextOverflow or Overloaded; the request is then forgotten."""
        ...

    def cancel(self, request_id: str) -> None:
        """Its blocks are free when this returns; harmless for one that is not there."""
        ...

    def step(self) -> Iterable[TokenEvent]: ...

    def has_work(self) -> bool: ...

    def load(self) -> EngineLoad: ...


@dataclass(frozen=True, slots=True)
class _Cancel:
    request_id: str


class _Stop:
    pass


_Command = EngineRequest | _Cancel | _Stop


@dataclass(slots=True)
class _Open:
    """A request that the engine has, as the loop sees it."""

    mailbox: Mailbox
    submitted_at_s: float
    num_prompt_tokens: int
    num_generated: int = 0
    last_token_at_s: float = 0.0


class EngineThread:
    """All methods but `load` and the states belong to the event loop's thread."""

    def __init__(
        self,
        make_engine: Callable[[], EngineApi],
        metrics: Metrics,
        watch: Callable[[EngineLoad], None] = lambda load: None,
    ) -> None:
        """`watch`: is shown the engine's load after every step, in the engine's thread."""
        self._make_engine = make_engine
        self._watch = watch
        self.metrics = metrics
        self._loop = asyncio.get_running_loop()
        self._commands: queue.SimpleQueue[_Command] = queue.SimpleQueue()
        self._open: dict[str, _Open] = {}
        self._idle = asyncio.Event()
        self._idle.set()
        self._made: asyncio.Future[None] = self._loop.create_future()
        self._thread = threading.Thread(target=self._run, name="engine", daemon=True)
        self._step_began_at_s: float | None = None
        self._is_stopping = False
        self.load: EngineLoad | None = None
        self.failure: str | None = None
        self.last_error: str | None = None  # of a sequence; cleared by the next token of any

    @property
    def num_open(self) -> int:
        return len(self._open)

    def step_age_s(self) -> float:
        """For how long the present step has been running; 0 between steps."""
        began_at_s = self._step_began_at_s
        return 0.0 if began_at_s is None else time.monotonic() - began_at_s

    async def start(self) -> None:
        """Make the engine in its thread. Raises what its making raises."""
        self._thread.start()
        await self._made

    def submit(self, request: EngineRequest, mailbox: Mailbox) -> None:
        """Reports go to the mailbox: Accepted or Refused first. Raises Unavailable."""
        if self.failure is not None:
            raise Unavailable(self.failure)
        if self._is_stopping or not self._made.done():
            raise Unavailable("the server is shutting down", retry_after_s=1.0)
        assert request.request_id not in self._open, "a request id is used once"

        self._open[request.request_id] = _Open(
            mailbox, time.monotonic(), len(request.prompt_token_ids)
        )
        self._idle.clear()
        self._commands.put(request)

    def cancel(self, request_id: str) -> None:
        """Before its next step the engine frees what the request held. Harmless when ended."""
        if self._close(request_id) is not None:
            self.metrics.sequences.labels("cancelled").inc()
            self._commands.put(_Cancel(request_id))

    def fail_open(self, error: BackendError) -> None:
        """End every open request with this error."""
        for request_id in list(self._open):
            mailbox = self._open[request_id].mailbox
            self.cancel(request_id)
            mailbox.put(Refused(request_id, error))

    async def wait_idle(self, limit_s: float) -> bool:
        """Whether every open request has ended within the limit."""
        try:
            async with asyncio.timeout(limit_s):
                await self._idle.wait()
        except TimeoutError:
            return False
        return True

    async def stop(self) -> None:
        """End the thread after its present step."""
        self._is_stopping = True
        self._commands.put(_Stop())
        if self._thread.is_alive():
            await asyncio.to_thread(self._thread.join, STOP_WAIT_S)

    # ------------------------------------------------------------ on the loop

    def _deliver(self, reports: list[Report]) -> None:
        now_s = time.monotonic()
        for report in reports:
            entry = self._open.get(report.request_id)
            if entry is None:
                continue  # cancelled meanwhile
            if isinstance(report, TokenEvent):
                self._measure(entry, report, now_s)
                if report.finish is not None:
                    self._close(report.request_id)
            elif isinstance(report, Refused):
                self.metrics.refused.inc()
                self._close(report.request_id)
            entry.mailbox.put(report)

    def _measure(self, entry: _Open, event: TokenEvent, now_s: float) -> None:
        num_new = event.num_generated - entry.num_generated
        if num_new > 0:
            if entry.num_generated == 0:
                self.metrics.ttft_s.observe(now_s - entry.submitted_at_s)
            else:
                self.metrics.inter_token_s.observe((now_s - entry.last_token_at_s) / num_new)
            self.metrics.generated_tokens.inc(num_new)
            self.last_error = None
            entry.num_generated = event.num_generated
            entry.last_token_at_s = now_s
        if event.finish is FinishReason.ERROR:
            self.last_error = event.error
        if event.finish is not None:
            self.metrics.sequences.labels(event.finish.value).inc()
            self.metrics.prompt_tokens.inc(entry.num_prompt_tokens)
            self.metrics.cached_tokens.inc(event.num_cached_tokens)

    def _close(self, request_id: str) -> _Open | None:
        entry = self._open.pop(request_id, None)
        if not self._open:
            self._idle.set()
        return entry

    def _engine_made(self, error: BaseException | None) -> None:
        if self._made.done():
            return
        if error is None:
            self._made.set_result(None)
        else:
            self._made.set_exception(error)

    def _engine_failed(self, said: str) -> None:
        self.failure = said
        self.fail_open(RequestFailed(said))

    # ---------------------------------------------------- on the engine's thread

    def _run(self) -> None:
        try:
            engine = self._make_engine()
            self.load = engine.load()
        except BaseException as error:
            self._post(self._engine_made, error)
            return
        self._post(self._engine_made, None)
        try:
            while self._obey(engine):
                self._step(engine)
        except BaseException as error:
            log.error("the engine has stopped", exc_info=error)
            said = f"the engine has stopped after an error ({type(error).__name__}: {error})"
            self._post(self._engine_failed, said + "; start the server again")

    def _step(self, engine: EngineApi) -> None:
        if engine.has_work():
            began_at_s = self._step_began_at_s = time.monotonic()
            events: list[Report] = list(engine.step())
            self.metrics.step_s.observe(time.monotonic() - began_at_s)
            self._step_began_at_s = None
            if events:
                self._post(self._deliver, events)
        self.load = load = engine.load()
        self._watch(load)

    def _obey(self, engine: EngineApi) -> bool:
        """Take all commands that wait; sleep for one if there is nothing else to do."""
        reports: list[Report] = []
        timeout_s = 0.0 if engine.has_work() else IDLE_WAKE_S
        goes_on = True
        while goes_on:
            try:
                command = self._commands.get(timeout_s > 0, timeout_s or None)
            except queue.Empty:
                break
            timeout_s = 0.0
            if isinstance(command, EngineRequest):
                reports.append(_add(engine, command))
            elif isinstance(command, _Cancel):
                engine.cancel(command.request_id)
            else:
                goes_on = False
        if reports:
            self._post(self._deliver, reports)
        return goes_on

    def _post(self, call: Callable[..., None], *arguments: object) -> None:
        try:
            self._loop.call_soon_threadsafe(call, *arguments)
        except RuntimeError:  # the loop has ended before us; there is nobody left to tell
            log.warning("a report of the engine came after the end")


def _add(engine: EngineApi, request: EngineRequest) -> Report:
    try:
        engine.add(request)
    except BackendError as error:
        return Refused(request.request_id, error)
    except Exception as error:  # its own failure; the others are unharmed
        log.error("a request failed on its way in", exc_info=error)
        said = f"the engine could not take the request ({type(error).__name__})"
        return Refused(request.request_id, RequestFailed(said))
    return Accepted(request.request_id)
