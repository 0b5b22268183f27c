"""One served model: its engine thread, its text side, and the states a server goes through."""

from __future__ import annotations

import time
from dataclasses import dataclass
from enum import StrEnum
from typing import Protocol

import structlog

from backend.config import EngineConfig, ModelConfig
from backend.engine.interface import EngineLoad, EngineRequest, SpeculationWish
from backend.errors import RequestFailed, RequestTimedOut, SetupError, Unavailable
from backend.sampling.params import SamplingParams
from backend.serving.acceptance_alarm import AcceptanceAlarm, AcceptanceCheck
from backend.serving.decisions import Decision, DecisionLog
from backend.serving.engine_thread import EngineApi, EngineThread
from backend.serving.job import Job, TimeLimits
from backend.serving.metrics import Metrics
from backend.serving.prompting import TextSide
from backend.speculate.heads.identity import HeadIdentity

log = structlog.get_logger()

LOADING_RETRY_S = 2.0
DRAIN_RETRY_S = 1.0
ABORT_GRACE_S = 2.0
STALL_S = 60.0  # a step that runs for longer hangs
WARM_UP_TOKENS = 4  # one from the prompt, the others from steps that only decode
WARM_UP_PROMPT = 64
WARM_UP_LIMIT_S = 600.0  # kernels may be compiled in it
# Larger batches are tried for so long, so that /v1/load has a step-cost table from the start.
MEASURE_S = 3.0


class Status(StrEnum):
    LOADING = "loading"
    READY = "ready"
    DRAINING = "draining"
    FAILED = "failed"  # the engine raised; only a restart helps
    STALLED = "stalled"  # the engine's step does not end


@dataclass(frozen=True, slots=True, kw_only=True)
class Loaded:
    """What loading gives: everything the server needs of a model."""

    engine: EngineApi
    text: TextSide
    model: ModelConfig
    config: EngineConfig  # as the engine runs it: no zeros left that mean a default
    context_len: int
    notes: dict[str, object]  # of the load, for /health
    head: HeadIdentity | None = None  # what the draft head says of itself, if there is one


class LoadModel(Protocol):
    def __call__(self) -> Loaded: ...


class Service:
    """Made on the event loop's thread. `start`, then serve, then `drain` and `close`."""

    def __init__(
        self, name: str, load_model: LoadModel, limits: TimeLimits, drain_s: float
    ) -> None:
        self.name = name
        self.limits = limits
        self.metrics = Metrics(name)
        self.started_at_unix_s = time.time()
        self._load_model = load_model
        self._drain_s = drain_s
        self._loaded: Loaded | None = None
        self._is_warm = False
        self._is_draining = False
        self._alarm = AcceptanceAlarm(None)
        self._log = DecisionLog()
        # The warm-up's metrics are thrown away.
        self._thread = EngineThread(self._make_engine, Metrics(), self._watch)

    def _make_engine(self) -> EngineApi:
        self._loaded = self._load_model()
        self._alarm = AcceptanceAlarm(self._loaded.head)
        self._log.begin(self._loaded.config, self._loaded.engine.load().speculation)
        return self._loaded.engine

    def _watch(self, load: EngineLoad) -> None:
        self._alarm.observe(load.speculation)
        self._log.watch(load.speculation, self._alarm.checks)

    @property
    def status(self) -> Status:
        if self._thread.failure is not None:
            return Status.FAILED
        if self._is_draining:
            return Status.DRAINING
        if not self._is_warm:
            return Status.LOADING
        return Status.STALLED if self._thread.step_age_s() > STALL_S else Status.READY

    @property
    def failure(self) -> str | None:
        """Why the status is what it is; where it is ready: how the last sequence failed, if no
        token came since."""
        if self.status is Status.STALLED:
            return f"one step has been running for {self._thread.step_age_s():.0f} s"
        return self._thread.failure or self._thread.last_error

    @property
    def load(self) -> EngineLoad | None:
        return self._thread.load

    @property
    def acceptance_checks(self) -> tuple[AcceptanceCheck, ...]:
        """Of the draft head, one for each kind of work that its file tells a rate of."""
        return self._alarm.checks

    @property
    def decisions(self) -> tuple[Decision, ...]:
        """What was decided about drafting, the oldest first; the last few are kept."""
        return self._log.entries

    @property
    def loaded(self) -> Loaded:
        """Raises Unavailable until the model is there and a real forward has run."""
        self.check_open()
        assert self._loaded is not None
        return self._loaded

    def peek(self) -> Loaded | None:
        """What is loaded, also while nothing can be answered."""
        return self._loaded if self._is_warm else None

    def check_open(self) -> None:
        """Raises Unavailable where a new request cannot be answered."""
        status = self.status
        if status is Status.LOADING:
            raise Unavailable("the model is still being loaded", retry_after_s=LOADING_RETRY_S)
        if status is Status.DRAINING:
            raise Unavailable("the server is shutting down", retry_after_s=DRAIN_RETRY_S)
        if status is not Status.READY:
            raise Unavailable(self.failure or "the engine has stopped")

    def job(self, groups: list[list[EngineRequest]]) -> Job:
        """Sequences to be followed; those of a group have one prompt."""
        return Job(
            self._thread,
            groups,
            self.limits,
            share_tokens_min=self.loaded.config.block_size,
        )

    async def start(self) -> None:
        """Load the model and run real forwards. Raises what loading raises, or SetupError."""
        await self._thread.start()
        assert self._loaded is not None
        self.metrics.kernels_withheld.set(len(self._loaded.config.kernels.withheld))
        began_at_s = time.monotonic()
        size, largest = 1, self._loaded.config.sequences_max
        while size <= largest and (size == 1 or time.monotonic() - began_at_s < MEASURE_S):
            await self._warm_up(size)
            size = min(2 * size, largest) if size < largest else largest + 1
        self._thread.metrics = self.metrics
        self._is_warm = True

    async def _warm_up(self, num_sequences: int) -> None:
        assert self._loaded is not None
        # No two prompts begin alike, so that each is computed.
        vocab_size, num_tokens = self._loaded.model.vocab_size, self._loaded.context_len
        prompt_len = max(1, min(WARM_UP_PROMPT, num_tokens - WARM_UP_TOKENS))
        params = SamplingParams(max_tokens=WARM_UP_TOKENS, temperature=0.0, ignore_eos=True)
        requests = [
            EngineRequest(
                f"warm-up-{num_sequences}-{idx}",
                ((num_sequences + idx) % vocab_size, *[0] * (prompt_len - 1)),
                params,
                speculation=SpeculationWish(is_off=True),  # plain steps: what rounds are held to
            )
            for idx in range(num_sequences)
        ]
        limits = TimeLimits(WARM_UP_LIMIT_S, WARM_UP_LIMIT_S, WARM_UP_LIMIT_S)
        job = Job(self._thread, [[each] for each in requests], limits)
        num_ended = 0
        try:
            async for events in job.events():
                num_ended += sum(event.finish is not None for event in events)
        except (RequestFailed, RequestTimedOut, Unavailable) as error:
            raise SetupError(f"the model's first forward failed: {error}") from error
        finally:
            job.close()
        if num_ended != num_sequences:
            raise SetupError("the model's first forward did not end")

    async def drain(self) -> None:
        """Refuse what is new, let what runs finish within the limit, then fail the rest."""
        self._is_draining = True
        log.info("draining", sequences=self._thread.num_open, limit_s=self._drain_s)
        if not await self._thread.wait_idle(self._drain_s):
            log.warning("drain limit reached", sequences=self._thread.num_open)
            self._thread.fail_open(
                Unavailable("the server is shutting down", retry_after_s=DRAIN_RETRY_S)
            )

    async def close(self) -> None:
        await self._thread.stop()
