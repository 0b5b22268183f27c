"""The device's side of a step: propose, forward, verify. Launches work, reads no result.

From a filled batch to the state that the next step starts from, nothing depends on a value on the
host; the one wait of a step is where the engine reads the tokens drawn.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from backend.config import EngineConfig
from backend.engine.batch import Batch, InputMaker, StepBuffers, copy_blocks
from backend.engine.drafting import Drafting
from backend.engine.drawn import Drawn
from backend.engine.scheduler import Step
from backend.engine.sequence import Sequence
from backend.engine.shapes import Shapes
from backend.engine.state import SlotState
from backend.layers.ops import ops_of
from backend.models.interface import CausalModel
from backend.sampling.rejection import RULES
from backend.sampling.sampler import Sampled, Sampler
from backend.sampling.verify import Verified, verify
from backend.speculate.protocol import Proposal, Proposer


@dataclass(frozen=True, slots=True)
class Computed:
    """Logits of the rows that draw: [S, 1 + N, V] of the decode group, [P, V] of prompts."""

    decodes: Tensor | None
    prompts: Tensor | None


class Runner:
    """A model with its cache, the per-slot state and the buffers of a step."""

    def __init__(
        self,
        model: CausalModel,
        config: EngineConfig,
        shapes: Shapes,
        proposer: Proposer,
        *,
        num_blocks: int,
        context_len_max: int,
    ) -> None:
        device = torch.device(config.device)
        self.model = model
        self.cache = model.make_cache(num_blocks, config.block_size)
        self.sampler = Sampler(
            model.config.vocab_size, config.sequences_max + 1, device, ops=ops_of(config)
        )
        self.state = SlotState(config.sequences_max + 1, shapes.table_widths[-1], device)
        self.buffers = StepBuffers(
            rows_max=config.rows_max,
            sequences_max=config.sequences_max,
            prefills_max=config.prefills_max,
            device=device,
        )
        self.drafting = Drafting(
            proposer,
            self.state,
            num_drafts=config.num_drafts_max,
            rows_max=config.rows_max,
            sequences_max=config.sequences_max,
            prefills_max=config.prefills_max,
            hidden_size=model.config.hidden_size,
            dtype=getattr(torch, config.dtype.value),
            temperatures=self.sampler.draft_temperatures,
        )
        self._rule = RULES[config.rejection]
        self._shapes = shapes
        self._inputs = InputMaker(self.buffers, self.state, config.block_size, context_len_max)

    def persistent(self) -> Mapping[str, Tensor]:
        """Every tensor that outlives a step, by name."""
        layers = enumerate(zip(self.cache.keys, self.cache.values, strict=True))
        blocks = {
            f"{name}.{layer}": tensor
            for layer, pair in layers
            for name, tensor in zip(("keys", "values"), pair, strict=True)
        }
        features = {str(tap): buffer for tap, buffer in self.drafting.features.items()}
        return {**self.state.persistent(), **self.buffers.persistent(), **blocks, **features}

    def bind(self, sequence: Sequence) -> None:
        """A sequence has been given a slot. Raises what is wrong with its sampling alone."""
        self.state.bind(sequence.slot)
        self.sampler.set_slot(
            sequence.slot,
            sequence.request.params,
            sequence.seed,
            sequence.request.prompt_token_ids,
            sequence.output_ids,
        )

    def release(self, slot: int) -> None:
        """The slot is nobody's any more."""
        self.sampler.clear_slot(slot)
        self.drafting.release(slot)

    def load(self, step: Step) -> Batch:
        """The last work of the host before a step is launched."""
        for sequence in (*step.decodes, *(chunk.sequence for chunk in step.chunks)):
            self.state.write_table(sequence.slot, sequence.table.blocks)
        batch = Batch.of(step, self._shapes, self.cache.block_size)
        self.state.upload()
        self.buffers.fill(step, batch)
        self.drafting.fill(step, batch)
        return batch

    @torch.inference_mode()
    def propose(self, step: Step, batch: Batch) -> Proposal | None:
        """None: a plain step."""
        return self.drafting.propose(step, batch)

    @torch.inference_mode()
    def forward(self, step: Step, batch: Batch, proposal: Proposal | None) -> Computed:
        """One pass over all rows of the step; its features are the next step's to propose from."""
        take = self.buffers.host.take
        if batch.num_copies:
            sources = take("copy_sources", batch.num_copies)
            copy_blocks(self.cache, sources, take("copy_targets", batch.num_copies))
        drafts = None
        if proposal is not None:
            drafts = proposal.token_ids.clamp(0, self.sampler.vocab_size - 1)
        given = self._inputs.make(batch, drafts, self.drafting.features or None)
        hidden = self.model.forward(given, self.cache)
        query_len = 1 + (0 if drafts is None else drafts.shape[1])
        self.drafting.note(step, batch, query_len)
        num_rows = batch.num_sequences * query_len
        drawing = hidden[:num_rows]
        if batch.num_prompts:
            ends = hidden[num_rows:].index_select(0, take("prompt_rows", batch.num_prompts))
            drawing = torch.cat((drawing, ends))
        # The head's weight is the largest of all: it is read once for both.
        logits = self.model.logits(drawing) if drawing.shape[0] else None
        decodes = prompts = None
        if logits is not None and num_rows:
            decodes = logits[:num_rows].view(batch.num_sequences, query_len, -1)
        if logits is not None and batch.num_prompts:
            prompts = logits[num_rows:]
        return Computed(decodes, prompts)

    @torch.inference_mode()
    def verify(self, batch: Batch, proposal: Proposal | None, computed: Computed) -> Drawn:
        """Draws, accepts drafts, and moves the device's state on."""
        decodes = prompts = None
        if computed.decodes is not None:
            slots = self.buffers.host.take("slots", batch.num_sequences)
            decodes = self._verify_decodes(slots, batch, proposal, computed.decodes)
        if computed.prompts is not None:
            prompts = self._draw_prompts(batch, computed.prompts)
        return Drawn(decodes, prompts)

    def _verify_decodes(
        self, slots: Tensor, batch: Batch, proposal: Proposal | None, logits: Tensor
    ) -> Verified:
        positions = self.state.lengths.index_select(0, slots)
        drawn = verify(
            logits, proposal, slots, positions, self.sampler, batch.decode_traits, rule=self._rule
        )
        self.sampler.commit(slots, drawn.tokens, drawn.num_tokens)
        self.state.commit_decodes(slots, drawn.tokens, drawn.num_tokens)
        return drawn

    def _draw_prompts(self, batch: Batch, logits: Tensor) -> Sampled:
        slots = self.buffers.host.take("prompt_slots", batch.num_prompts)
        lengths = self.buffers.host.take("prompt_lengths", batch.num_prompts)
        drawn = self.sampler.sample(logits, slots, lengths - 1, batch.prompt_traits)
        self.sampler.commit(slots, drawn.tokens.unsqueeze(1), torch.ones_like(slots))
        self.state.commit_prompts(slots, drawn.tokens, lengths)
        return drawn
