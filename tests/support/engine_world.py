"""An engine with a tiny model, and what it computed beside what transformers computes."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from transformers import PreTrainedModel

from backend.config import DType, EngineConfig, ShapeSet
from backend.engine.batch import Batch
from backend.engine.engine import Engine
from backend.engine.interface import (
    EngineRequest,
    FinishReason,
    Priority,
    SpeculationWish,
    TokenEvent,
    TokenLogprob,
)
from backend.engine.runner import Computed
from backend.engine.scheduler import Step
from backend.engine.sequence import Status
from backend.models.interface import CausalModel, ForwardInput, KvCache
from backend.sampling.params import SamplingParams
from backend.speculate.protocol import Proposal, Proposer
from tests.support.tiny_checkpoints import CONTEXT, VOCAB, reference_logits

BLOCK_SIZE = 8
SHAPES = ShapeSet(decode_batches=(1, 2, 4, 8), prefill_lens=(4, 8, 16, 32))


def tiny_engine_config(**changes: Any) -> EngineConfig:
    defaults: dict[str, Any] = {
        "dtype": DType.FLOAT32,
        "block_size": BLOCK_SIZE,
        "kv_cache_bytes": 1 << 20,
        "sequences_max": 8,
        "rows_max": 64,
        "prefills_max": 3,
        "shapes": SHAPES,
    }
    return EngineConfig(**{**defaults, **changes})


def bytes_for(model: CausalModel, num_blocks: int, block_size: int = BLOCK_SIZE) -> int:
    """Memory for so many usable blocks, and the one for padding."""
    return model.kv_bytes_per_token() * block_size * (num_blocks + 1)


def random_prompt(rng: random.Random, num_tokens: int) -> list[int]:
    """Without the first few ids, which are special."""
    return [rng.randrange(4, VOCAB) for _ in range(num_tokens)]


class RecordingModel:
    """The model itself; keeps the logits of every row of its last forward."""

    def __init__(self, model: CausalModel) -> None:
        self._model = model
        self.config = model.config
        self.logits_of_rows = torch.empty(0)
        self.fails_at_forward: Exception | None = None

    def forward(self, given: ForwardInput, cache: KvCache) -> Tensor:
        if self.fails_at_forward is not None:
            raise self.fails_at_forward
        hidden = self._model.forward(given, cache)
        self.logits_of_rows = self._model.logits(hidden).clone()
        return hidden

    def logits(self, hidden: Tensor) -> Tensor:
        return self._model.logits(hidden)

    def make_cache(self, num_blocks: int, block_size: int) -> KvCache:
        return self._model.make_cache(num_blocks, block_size)

    def kv_bytes_per_token(self) -> int:
        return self._model.kv_bytes_per_token()


@dataclass
class Answer:
    """Everything that came back for one request."""

    prompt: list[int]
    token_ids: list[int] = field(default_factory=list)
    logprobs: list[TokenLogprob] = field(default_factory=list)
    events: list[TokenEvent] = field(default_factory=list)

    @property
    def finish(self) -> FinishReason | None:
        return self.events[-1].finish if self.events else None

    @property
    def error(self) -> str | None:
        return self.events[-1].error if self.events else None


@dataclass(frozen=True)
class Row:
    """What one row of a forward gave: `fed` are the tokens of its sequence up to it."""

    fed: tuple[int, ...]
    logits: Tensor


class EngineWorld:
    """Drives an engine and notes everything; `rows` holds every row that was not padding."""

    def __init__(
        self,
        model: CausalModel,
        *,
        proposer: Proposer | None = None,
        eos_token_ids: Iterable[int] | None = (),
        **changes: Any,
    ) -> None:
        self.model = RecordingModel(model)
        self.config = tiny_engine_config(**changes)
        self.now_s = 0.0
        self.step_s = 0.01  # that a forward seems to take
        make = {} if proposer is None else {"make_proposer": lambda model, config: proposer}
        self.engine = Engine(
            self.model,
            self.config,
            eos_token_ids,
            clock=lambda: self.now_s,
            rng=random.Random(7),
            **make,
        )
        self.answers: dict[str, Answer] = {}
        self.rows: dict[str, list[Row]] = {}
        self.steps: list[Step] = []
        self._record_steps()

    @property
    def runner(self) -> Any:
        return self.engine._runner

    @property
    def scheduler(self) -> Any:
        return self.engine._scheduler

    @property
    def blocks(self) -> Any:
        return self.engine._blocks

    def add(
        self,
        prompt: Sequence[int],
        *,
        name: str | None = None,
        priority: Priority = Priority.INTERACTIVE,
        tenant: bytes = b"",
        speculation: SpeculationWish | None = None,
        **params: Any,
    ) -> str:
        """Greedy and 8 tokens unless told otherwise."""
        name = name or f"r{len(self.answers)}"
        asked = SamplingParams(**{"max_tokens": 8, "temperature": 0.0, **params})
        wish = speculation or SpeculationWish()
        self.engine.add(EngineRequest(name, tuple(prompt), asked, priority, tenant, wish))
        self.answers[name] = Answer(list(prompt))
        return name

    def step(self) -> list[TokenEvent]:
        events = self.engine.step()
        for event in events:
            answer = self.answers[event.request_id]
            assert answer.finish is None, "an event after the last one"
            answer.events.append(event)
            answer.token_ids += event.token_ids
            answer.logprobs += event.logprobs
        self._check_state()
        return events

    def _check_state(self) -> None:
        """What the device remembers is what the host has been told."""
        state = self.runner.state
        for each in self.scheduler.running:
            if each.status is Status.DECODE:
                assert int(state.lengths[each.slot]) == each.num_tokens
                assert int(state.last_tokens[each.slot]) == each.token_ids[-1]
                table = state.block_tables[each.slot].tolist()
                assert (
                    table[: each.num_tokens // BLOCK_SIZE]
                    == (each.table.blocks[: each.num_tokens // BLOCK_SIZE])
                )
        assert (int(state.lengths[0]), int(state.last_tokens[0])) == (1, 0)
        assert not state.block_tables[0].any()

    def run(self, steps_max: int = 2000) -> None:
        """Until nothing is left to do."""
        for _ in range(steps_max):
            if not self.engine.has_work():
                return
            self.step()
        raise AssertionError(f"there is still work after {steps_max} steps")

    def ask(self, prompt: Sequence[int], **given: Any) -> Answer:
        """One request alone, to its end."""
        name = self.add(prompt, **given)
        self.run()
        return self.answers[name]

    def largest_error(self, reference: PreTrainedModel, name: str) -> float:
        """Over every row computed for a request: the distance from transformers' logits."""
        return max(
            float((row.logits - expected).abs().max())
            for row, expected in self.compared(reference, name)
        )

    def compared(self, reference: PreTrainedModel, name: str) -> list[tuple[Row, Tensor]]:
        """Each row with what transformers gives behind the same tokens."""
        whole: dict[tuple[int, ...], Tensor] = {}
        for row in sorted(self.rows[name], key=lambda each: -len(each.fed)):
            if not any(longer[: len(row.fed)] == row.fed for longer in whole):
                whole[row.fed] = reference_logits(reference, row.fed)
        return [
            (
                row,
                next(whole[each] for each in whole if each[: len(row.fed)] == row.fed)[
                    len(row.fed) - 1
                ],
            )
            for row in self.rows[name]
        ]

    def positions(self, name: str) -> list[int]:
        """Of all rows computed for a request, in order of computing."""
        return [len(row.fed) - 1 for row in self.rows[name]]

    def check_empty(self) -> None:
        """Nothing runs or waits, and every block and slot is free."""
        load = self.engine.load()
        assert (load.num_running, load.num_waiting, load.kv_blocks_used) == (0, 0, 0)
        assert self.blocks.num_free == load.kv_blocks_total
        assert sorted(self.scheduler._free_slots) == list(range(1, self.config.sequences_max + 1))
        assert not self.engine.has_work()
        assert not self.runner.sampler.tables.is_counting

    def _record_steps(self) -> None:
        forward = self.runner.forward

        def recording(step: Step, batch: Batch, proposal: Proposal | None) -> Computed:
            computed: Computed = forward(step, batch, proposal)
            self.now_s += self.step_s
            self.steps.append(step)
            self._record(step, batch, proposal)
            return computed

        self.runner.forward = recording

    def _record(self, step: Step, batch: Batch, proposal: Proposal | None) -> None:
        logits = self.model.logits_of_rows
        drafts: list[list[int]] = [[] for _ in step.decodes]
        query_len = 1
        if proposal is not None:
            query_len += proposal.token_ids.shape[1]
            counts = proposal.num_valid.tolist()
            rows = zip(proposal.token_ids.tolist(), counts, strict=True)
            drafts = [row[:count] for row, count in rows]
        for number, sequence in enumerate(step.decodes):
            fed = [*sequence.token_ids, *drafts[number]][:CONTEXT]
            for place, end in enumerate(range(sequence.num_tokens, len(fed) + 1)):
                logits_row = logits[number * query_len + place]
                self._note(sequence.request_id, fed[:end], logits_row)
        row = batch.num_sequences * query_len
        for chunk in step.chunks:
            for place in range(chunk.num_tokens):
                tokens = chunk.sequence.token_ids[: chunk.start + place + 1]
                self._note(chunk.sequence.request_id, tokens, logits[row + place])
            row += chunk.num_rows
        assert row == logits.shape[0]

    def _note(self, name: str, fed: Sequence[int], logits: Tensor) -> None:
        self.rows.setdefault(name, []).append(Row(tuple(fed), logits))


MakeWorld = Callable[..., EngineWorld]


@dataclass(frozen=True)
class Tiny:
    """A tiny random checkpoint, as transformers and as the engine sees it."""

    directory: Path
    reference: PreTrainedModel
    model: CausalModel
    written: dict[tuple[int, ...], list[int]] = field(default_factory=dict)

    def greedy(self, prompt: Sequence[int], num_tokens: int) -> list[int]:
        """What transformers' own greedy decoding gives."""
        known = self.written.get(tuple(prompt), [])
        if len(known) < num_tokens:
            known = self.written[tuple(prompt)] = self._generate(prompt, num_tokens)
        return known[:num_tokens]

    def is_greedy(self, prompt: Sequence[int], token_ids: Sequence[int]) -> bool:
        """The same question of a text that is there, in one forward: each token is the likeliest
        behind those before it."""
        logits = reference_logits(self.reference, [*prompt, *token_ids])
        return logits[len(prompt) - 1 : -1].argmax(1).tolist() == list(token_ids)

    def _generate(self, prompt: Sequence[int], num_tokens: int) -> list[int]:
        given = torch.tensor([list(prompt)])
        self.reference.generation_config.eos_token_id = None
        with torch.inference_mode():
            out = self.reference.generate(
                given,
                attention_mask=torch.ones_like(given),
                do_sample=False,
                max_new_tokens=num_tokens,
                pad_token_id=0,
            )
        return [int(token_id) for token_id in out[0, len(prompt) :]]
