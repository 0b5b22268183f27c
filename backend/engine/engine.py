"""The engine: requests in, tokens out, one step at a time. Read `Engine.step` first.

Synchronous and single-threaded: whoever drives it calls `add`, `cancel` and `step` in turn. It
knows token ids only. A failure that belongs to one request ends that request; a failure of a whole
step ends the requests that were running; the engine itself goes on.
"""

from __future__ import annotations

import logging
import random
import time
from collections.abc import Callable, Iterable
from dataclasses import replace

from backend.config import EngineConfig
from backend.engine.batch import Batch
from backend.engine.block_manager import BlockManager
from backend.engine.draft_why import DraftTally
from backend.engine.drawn import Drawn, DrawnTokens, fetch
from backend.engine.interface import (
    EngineLoad,
    EngineRequest,
    FinishReason,
    SpeculationLoad,
    TokenEvent,
    TokenLogprob,
)
from backend.engine.measure import StepCosts
from backend.engine.rounds import RoundMeter, SequenceStep
from backend.engine.runner import Runner
from backend.engine.scheduler import Scheduler, Step
from backend.engine.sequence import Sequence, Status
from backend.engine.shapes import Shapes
from backend.errors import BackendError, BadRequest, ContextOverflow, OutOfMemory, Overloaded
from backend.models.interface import CausalModel
from backend.speculate.protocol import Proposal, Proposer
from backend.speculate.registry import make_proposer

log = logging.getLogger(__name__)

_RETRY_AFTER_MIN_S = 1.0
_RETRY_AFTER_MAX_S = 60.0


class Engine:
    """One model and everybody who waits for its tokens."""

    def __init__(
        self,
        model: CausalModel,
        config: EngineConfig,
        eos_token_ids: Iterable[int] | None = None,
        *,
        clock: Callable[[], float] = time.monotonic,
        rng: random.Random | None = None,
        make_proposer: Callable[[CausalModel, EngineConfig], Proposer] = make_proposer,
    ) -> None:
        """`eos_token_ids`: ends of a text; None: those of the model's config.

        Raises OutOfMemory if the cache would not hold one sequence, SetupError for sizes that do
        not go together.
        """
        eos = model.config.eos_token_ids if eos_token_ids is None else eos_token_ids
        self.context_len_max = config.context_len_max or model.config.context_len_max
        self._model_config = model.config
        self._config = config
        self._eos_token_ids = frozenset(eos)
        self._clock = clock
        self._rng = rng or random.Random()  # noqa: S311 - seeds of noise, not secrets
        shapes = Shapes.of(config, self.context_len_max)
        num_blocks = _num_blocks(model, config, self.context_len_max)
        self._blocks = BlockManager(
            num_blocks, config.block_size, is_prefix_cached=config.is_prefix_cached
        )
        self._runner = Runner(
            model,
            config,
            shapes,
            make_proposer(model, config),
            num_blocks=num_blocks,
            context_len_max=self.context_len_max,
        )
        self._scheduler = Scheduler(
            config,
            shapes,
            self._blocks,
            self.context_len_max,
            self._runner.release,
        )
        self._costs = StepCosts(clock)
        self._rounds = RoundMeter(self._runner.drafting.method)
        self._tally = DraftTally(self._runner.drafting.num_drafts)
        self._has_draft_failed = False  # in the present step
        self._sequences: dict[str, Sequence] = {}
        self._events: list[TokenEvent] = []
        self._num_added = 0

    def step(self) -> list[TokenEvent]:
        """New tokens of everybody who decodes, and progress on some prompts."""
        started_s = self._clock()
        step = self._schedule()
        if not step.is_empty:
            try:
                batch = self._runner.load(step)
                proposal = self._propose(step, batch)
                computed = self._runner.forward(step, batch, proposal)
                drawn = self._runner.verify(batch, proposal, computed)
                self._commit(step, batch, drawn, started_s)
            except Exception as error:
                self._fail_running(error)
        events, self._events = self._events, []
        return events

    def add(self, request: EngineRequest) -> None:
        """Puts a request into the queue.

        Raises BadRequest for what the caller can mend (ContextOverflow if the prompt leaves no room
        for a token), Overloaded if too many wait already; the request is then forgotten.
        """
        self._check(request)
        if len(self._scheduler.waiting) >= self._config.waiting_max:
            raise Overloaded(
                f"{len(self._scheduler.waiting)} requests wait already; try again later",
                retry_after_s=self._retry_after_s(),
            )
        seed = request.params.seed
        sequence = Sequence(
            request,
            order=self._num_added,
            arrived_s=self._clock(),
            seed=self._rng.getrandbits(63) if seed is None else seed,
            table=self._blocks.new_table(request.tenant),
        )
        self._num_added += 1
        self._sequences[request.request_id] = sequence
        self._scheduler.waiting.add(sequence)

    def cancel(self, request_id: str) -> None:
        """Frees what the request holds at once; harmless for one that is not there."""
        sequence = self._sequences.get(request_id)
        if sequence is not None:
            self._finish(sequence, FinishReason.CANCELLED)

    def has_work(self) -> bool:
        return bool(self._sequences or self._events)

    def load(self) -> EngineLoad:
        """A snapshot, cheap enough to be taken after every step."""
        waiting, running = self._scheduler.waiting, self._scheduler.running
        begun = [each for each in running if each.status is Status.PREFILL]
        num_left = sum(each.num_tokens - each.num_computed for each in begun)
        return EngineLoad(
            num_running=len(running),
            num_waiting=len(waiting),
            waiting_prompt_tokens=num_left + sum(each.num_tokens for each in waiting),
            kv_blocks_total=self._blocks.num_blocks - 1,
            kv_blocks_used=self._blocks.num_used,
            tokens_per_s=self._costs.generated.per_s(),
            prompt_tokens_per_s=self._costs.prompt.per_s(),
            num_preemptions=self._scheduler.num_preemptions,
            decode_step_s=self._costs.decode_step_s,
            prefill_token_s=self._costs.prefill_token_s,
            speculation=SpeculationLoad(
                self._rounds.method,
                self._runner.drafting.num_drafts,
                self._rounds.step_s,
                self._rounds.figures(),
                num_steps=self._rounds.num_steps,
                num_drafts_now=self._tally.num_drafts,
                why_now=self._tally.why.value,
                num_steps_by_why=self._tally.num_steps,
            ),
        )

    def close(self) -> None:
        """Ends every request; their last events are to be had from one more `step`."""
        for request_id in list(self._sequences):
            self.cancel(request_id)

    def _check(self, request: EngineRequest) -> None:
        prompt, vocab_size = request.prompt_token_ids, self._model_config.vocab_size
        if request.request_id in self._sequences:
            raise BadRequest(f"a request named {request.request_id!r} is being answered already")
        if not prompt:
            raise BadRequest("the prompt is empty", param="messages")
        if min(prompt) < 0 or max(prompt) >= vocab_size:
            raise BadRequest(
                f"the prompt holds a token outside of the vocabulary of {vocab_size}",
                param="messages",
            )
        if len(prompt) >= self.context_len_max:
            raise ContextOverflow(
                f"the prompt has {len(prompt)} tokens, and the context holds "
                f"{self.context_len_max} with the answer; shorten the prompt"
            )
        self._runner.sampler.check(request.params)

    def _schedule(self) -> Step:
        step = self._scheduler.schedule(self._clock(), self._runner.drafting.num_drafts)
        for sequence, said in step.failed:
            self._finish(sequence, FinishReason.ERROR, said)
        for sequence in step.admitted:
            try:
                self._runner.bind(sequence)
            except Exception as error:
                step.drop(sequence)
                self._fail(sequence, error)
        return step

    def _propose(self, step: Step, batch: Batch) -> Proposal | None:
        """A draft method that fails costs its drafts, nothing else."""
        self._has_draft_failed = False
        try:
            return self._runner.propose(step, batch)
        except Exception:
            log.exception("the draft method failed; this step goes on without drafts")
            self._has_draft_failed = True
            return None

    def _commit(self, step: Step, batch: Batch, drawn: Drawn, started_s: float) -> None:
        decodes, prompts = fetch(drawn)
        num_real = len(step.decodes)
        seconds = self._clock() - started_s
        self._measure_rounds(step, batch, drawn, decodes, seconds)
        num_decoded = sum(len(each.token_ids) for each in decodes[:num_real])
        num_prompt_tokens = sum(chunk.num_tokens for chunk in step.chunks)
        self._costs.observe(
            seconds,
            num_sequences=batch.num_sequences,
            tokens_each=num_decoded / max(num_real, 1),
            num_prompt_tokens=num_prompt_tokens,
        )
        self._costs.generated.add(num_decoded + len(prompts))
        self._costs.prompt.add(num_prompt_tokens)
        begun = [chunk.sequence for chunk in step.last_chunks]
        for chunk in step.chunks:
            self._scheduler.commit(chunk.sequence, chunk.end)
        for sequence, tokens in zip(
            (*step.decodes, *begun), (*decodes[:num_real], *prompts), strict=True
        ):
            try:
                self._advance(sequence, tokens)
            except Exception as error:
                self._fail(sequence, error)

    def _measure_rounds(
        self,
        step: Step,
        batch: Batch,
        drawn: Drawn,
        decodes: Iterable[DrawnTokens],
        seconds: float,
    ) -> None:
        drafting = self._runner.drafting
        if drawn.decodes is None or not drafting.is_active:
            return
        steps = [
            SequenceStep(sequence.request.workload, tokens.num_drafted, len(tokens.token_ids))
            for sequence, tokens in zip(step.decodes, decodes, strict=False)  # behind them: padding
            if drafting.wants_drafts(sequence)
        ]
        self._rounds.observe(steps)
        num_drafts = drawn.decodes.tokens.shape[1] - 1
        self._tally.note(
            step,
            num_drafts,
            limit=drafting.limit_now,
            is_wanted=bool(steps),
            is_returning=drafting.is_returning,
            has_failed=self._has_draft_failed,
        )
        if not step.chunks:
            self._rounds.time(seconds, batch.num_sequences, num_drafts, steps)

    def _advance(self, sequence: Sequence, tokens: DrawnTokens) -> None:
        num_before = sequence.num_tokens
        shown = sequence.take(tokens.token_ids, self._eos_token_ids, self.context_len_max)
        # Of the last token drawn nothing is in the cache yet.
        num_computed = min(num_before + len(tokens.token_ids) - 1, sequence.num_tokens)
        self._scheduler.commit(sequence, num_computed)
        logprobs = _wanted(tokens.logprobs[: len(shown)], sequence.request.params.logprobs)
        if sequence.finish is not None:
            self._release(sequence)
        self._tell(sequence, token_ids=tuple(shown), logprobs=logprobs)

    def _finish(self, sequence: Sequence, reason: FinishReason, said: str | None = None) -> None:
        """An end without a token."""
        sequence.finish = reason
        self._release(sequence)
        self._tell(sequence, error=said)

    def _release(self, sequence: Sequence) -> None:
        self._sequences.pop(sequence.request_id, None)
        self._scheduler.release(sequence)

    def _fail(self, sequence: Sequence, error: Exception) -> None:
        """Only this request is to blame; what the caller can mend is said in the error's words."""
        log.warning("request %s failed", sequence.request_id, exc_info=error)
        own_words = isinstance(error, BackendError)
        said = str(error) if own_words else f"the request failed ({type(error).__name__})"
        self._finish(sequence, FinishReason.ERROR, said)

    def _fail_running(self, error: Exception) -> None:
        """Nobody knows what of the step was computed, so nothing of it is kept."""
        running = list(self._scheduler.running)
        log.error("a step failed, and %d requests with it", len(running), exc_info=error)
        said = f"a step of the engine failed ({type(error).__name__}); send the request again"
        for sequence in running:
            self._finish(sequence, FinishReason.ERROR, said)

    def _tell(
        self,
        sequence: Sequence,
        *,
        token_ids: tuple[int, ...] = (),
        logprobs: tuple[TokenLogprob, ...] = (),
        error: str | None = None,
    ) -> None:
        self._events.append(
            TokenEvent(
                sequence.request_id,
                token_ids,
                logprobs,
                finish=sequence.finish,
                num_generated=sequence.num_generated,
                num_cached_tokens=sequence.num_cached_tokens or 0,
                error=error,
            )
        )

    def _retry_after_s(self) -> float:
        """When the first of the running ends, at the latest, the first of the waiting leaves."""
        running = self._scheduler.running
        step_s = self._costs.decode_s(len(running))
        soonest = min((each.num_tokens_left for each in running), default=0)
        first = next(iter(self._scheduler.waiting), None)
        prompt_s = self._costs.prefill_token_s * (first.num_tokens if first else 0)
        return min(max(soonest * step_s + prompt_s, _RETRY_AFTER_MIN_S), _RETRY_AFTER_MAX_S)


def _num_blocks(model: CausalModel, config: EngineConfig, context_len_max: int) -> int:
    """As many as the memory holds. Raises OutOfMemory where one sequence would not fit."""
    block_bytes = model.kv_bytes_per_token() * config.block_size
    num_blocks = config.kv_cache_bytes // block_bytes
    num_usable = num_blocks - 1  # block 0 is for padding
    num_needed = -(-context_len_max // config.block_size)
    if num_usable < num_needed:
        raise OutOfMemory(
            f"{config.kv_cache_bytes} bytes of key-value cache hold "
            f"{max(num_usable, 0) * config.block_size} tokens, but one sequence may have "
            f"{context_len_max}; give at least {(num_needed + 1) * block_bytes} bytes or a shorter "
            "context"
        )
    return num_blocks


def _wanted(logprobs: Iterable[TokenLogprob], num_top: int | None) -> tuple[TokenLogprob, ...]:
    """A step computes as many of the best tokens as the request that asked for most."""
    if num_top is None:
        return ()
    return tuple(replace(each, top=each.top[:num_top]) for each in logprobs)
