"""EAGLE-3: drafts token after token, each from the state of the one before (arXiv 2503.01840).

A round: the rows that the target has just verified go through the head with the target's true
states, over what was provisional in the cache; behind the last of them N - 1 more steps run on the
head's own states.

Shapes: S sequences, Q rows of the target each, N drafts, H hidden.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor
from torch.nn import functional

from backend.config import EngineConfig
from backend.models.interface import CausalModel
from backend.speculate.draft_cache import Places, View
from backend.speculate.feature_proposer import FeatureProposer, configured_head
from backend.speculate.heads.eagle3 import Eagle3Head
from backend.speculate.protocol import Proposal, ProposeInput
from kernels.dispatch import Ops


class Eagle3Proposer(FeatureProposer):
    name = "eagle3"

    def __init__(
        self, head: Eagle3Head, model: CausalModel, config: EngineConfig, ops: Ops | None = None
    ) -> None:
        super().__init__(
            head, model, config, num_drafts_max=config.num_drafts_max, lookahead=1, ops=ops
        )
        self._config = head.config
        packer = self._packer
        self._input_norm = None if head.input_norm is None else packer.norm(head.input_norm)
        self._fc_norms = [packer.norm(each) for each in head.feature_norms]
        # The drafts of the last round: those that were accepted are the tokens behind its rows.
        num_slots = config.sequences_max + 1
        shape = (num_slots, max(1, self.num_drafts_max))
        self._drafted = torch.zeros(shape, dtype=torch.int64, device=packer.device)
        # Of a prompt's pieces, for as many rows as one step has, twice: none is written while it
        # may still be on its way to the device.
        staged = torch.zeros(2 * config.rows_max, dtype=torch.int64)
        self._staged = staged.pin_memory() if packer.device.type == "cuda" else staged
        self._staged_rows = self._staged.numpy()
        self._num_staged = 0

    def _drafts(self, given: ProposeInput, view: View, features: Tensor) -> Proposal | None:
        states = self._first_pass(given, view, features)
        if states is None:
            return None
        tokens: list[Tensor] = []
        probs: list[Tensor | None] = []
        for step in range(1, given.num_drafts + 1):
            normed = self._head.norm(states)
            draft_ids, drawn_from = self._picker.pick(self._head.logits(normed), given.temperatures)
            tokens.append(self._head.target_ids(draft_ids))
            probs.append(drawn_from)
            if step < given.num_drafts:
                hidden = normed if self._config.is_output_normed else states
                places = view.places(given.lengths - 2 + step, 1)
                states = self._step(tokens[-1], hidden, places)
        proposal = self._proposal(given, view, tokens, probs)
        self.note_drafts(given, proposal.token_ids)
        return proposal

    def note_drafts(self, given: ProposeInput, token_ids: Tensor) -> None:
        """See `FeatureProposer.note_drafts`."""
        self._drafted[:, : token_ids.shape[1]].index_copy_(0, given.slots, token_ids)

    def _first_pass(self, given: ProposeInput, view: View, features: Tensor) -> Tensor | None:
        """True rows into the cache; the state [S, H] of each sequence's last one, if it drafts."""
        num_rows = features.shape[0] // given.slots.shape[0]
        num_fresh = given.num_fresh.clamp(1, num_rows)
        first = given.lengths - 1 - num_fresh
        places = view.places(first, num_rows, num_fresh)
        begins = torch.arange(given.slots.shape[0], device=first.device) * num_rows
        last = begins + num_fresh - 1 if given.num_drafts else None
        tokens = self._next_tokens(given, num_fresh, num_rows)
        return self._layers(tokens.flatten(), self._fused(features), places, last)

    def _step(self, tokens: Tensor, hidden: Tensor, places: Places) -> Tensor:
        """One provisional row a sequence: tokens [S], the head's states [S, H] → the next ones."""
        states = self._layers(tokens, hidden, places, None, is_whole=True)
        assert states is not None
        return states

    def _layers(
        self,
        tokens: Tensor,
        hidden: Tensor,
        places: Places,
        last: Tensor | None,
        *,
        is_whole: bool = False,
    ) -> Tensor | None:
        """Rows [R] through all layers → states [R, H] if `is_whole`; else of the rows `last` alone,
        or None: then the last layer only takes its keys and values."""
        cache, embedded = self.cache, self._head.embed(tokens)
        residual, delta = hidden, None
        for index, layer in enumerate(self._head.layers):
            keys, values = cache.keys[index], cache.values[index]
            if layer.hidden_norm is None:
                assert delta is not None, "the first layer reads the token"
                given, residual = layer.input_norm.added(delta, residual)
            else:
                residual = residual if delta is None else residual + delta
                normed = layer.hidden_norm(residual)
                given = torch.cat((layer.input_norm(embedded), normed), 1)
                residual = normed if self._config.is_norm_before_residual else residual
            queries = layer.enter(given, places, keys, values)
            if index == len(self._head.layers) - 1 and not is_whole:
                if last is None:
                    return None
                places = places.last_only(last)
                queries, residual = (each.index_select(0, last) for each in (queries, residual))
            attended = layer.attend(queries, places, keys, values, "causal")
            residual, delta = layer.finish(residual, attended)
        return residual if delta is None else residual + delta

    def _fused(self, features: Tensor) -> Tensor:
        """[R, F H] → [R, H]."""
        if self._input_norm is not None:
            features = self._input_norm(features)
        if self._fc_norms:
            parts = features.chunk(len(self._fc_norms), 1)
            normed = [
                norm(part.contiguous()) for norm, part in zip(self._fc_norms, parts, strict=True)
            ]
            features = torch.cat(normed, 1)
        return self._head.fuse(features)

    def _next_tokens(self, given: ProposeInput, num_fresh: Tensor, num_rows: int) -> Tensor:
        """[S, Q]: behind each row of the target the token that follows it.

        Behind the last real row that is the newest token; behind those before it the prompt's own
        next one, or the draft that was accepted.
        """
        if given.start is None:
            drafted = self._drafted.index_select(0, given.slots)
            missing = max(0, num_rows - drafted.shape[1])
            following = functional.pad(drafted, (0, missing))[:, :num_rows]
        else:
            begin = given.start + 1
            following = self._staging(given.histories[0][begin : begin + num_rows], num_rows)
        places = torch.arange(num_rows, device=given.slots.device)
        is_last = places == (num_fresh - 1).unsqueeze(1)
        return torch.where(is_last, given.last_tokens.unsqueeze(1), following)

    def _staging(self, tokens: Sequence[int], num_rows: int) -> Tensor:
        """[1, num_rows] on the device, padded with 0."""
        if self._num_staged + num_rows > self._staged.shape[0]:
            self._num_staged = 0
        part = slice(self._num_staged, self._num_staged + num_rows)
        self._num_staged += num_rows
        self._staged_rows[part] = [*tokens, *[0] * (num_rows - len(tokens))]
        return self._staged[part].to(self._packer.device, non_blocking=True).unsqueeze(0)


def make(model: CausalModel, config: EngineConfig) -> Eagle3Proposer:
    """Raises SetupError for a head that is not there, not EAGLE-3, or of another target."""
    head = configured_head(model, config, Eagle3Proposer.name, Eagle3Head)
    return Eagle3Proposer(head, model, config)
