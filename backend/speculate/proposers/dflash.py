"""DFlash: one pass over a block of masks gives all drafts (arXiv 2602.06036).

A round: the target's states of the rows that were just verified become keys and values of every
layer, over what the block of the round before left there; then the next block runs behind them. Its
keys and values are scratch.

Shapes: S sequences, Q rows of the target each, N drafts, R rows of a block, H hidden.
"""

from __future__ import annotations

import torch
from torch import Tensor

from backend.config import EngineConfig
from backend.errors import SetupError
from backend.models.interface import CausalModel
from backend.speculate.captured_rounds import CapturedRounds, RoundInputs
from backend.speculate.draft_cache import Places, View
from backend.speculate.feature_proposer import FeatureProposer, configured_head
from backend.speculate.heads.dflash import DFlashHead
from backend.speculate.heads.dspark import DSparkHead
from backend.speculate.protocol import Proposal, ProposeInput
from backend.speculate.running import projected
from kernels.dispatch import Ops
from kernels.interface import MaskKind


class DFlashProposer(FeatureProposer):
    name = "dflash"

    def __init__(
        self, head: DFlashHead, model: CausalModel, config: EngineConfig, ops: Ops | None = None
    ) -> None:
        super().__init__(
            head, model, config, num_drafts_max=head.config.num_drafts_max, lookahead=0, ops=ops
        )
        self._config = head.config
        self._hidden_norm = self._packer.norm(head.hidden_norm)
        attentions = [each.self_attn for each in head.draft_layers]
        # All layers at once where there is an op for it, else one by one.
        weights = [w for each in attentions for w in (each.k_proj.weight, each.v_proj.weight)]
        self._stacked = self._packer.stacked_for("dflash_context_kv", weights)
        self._context = (
            []
            if self._stacked is not None
            else [
                self._packer.linear(each.k_proj.weight, each.v_proj.weight) for each in attentions
            ]
        )
        norms: list[Tensor] = [each.k_norm.weight for each in attentions if each.k_norm is not None]
        self._k_norms = self._packer.vector(torch.stack(norms)) if norms else None
        shape = head.config.shape
        self._width = 2 * shape.num_kv_heads * shape.head_dim
        self._rounds = CapturedRounds(self._packer.ops, self._run)

    def _drafts(self, given: ProposeInput, view: View, features: Tensor) -> Proposal | None:
        num_rows = features.shape[0] // given.slots.shape[0]
        num_fresh = given.num_fresh.clamp(1, num_rows)
        first = given.lengths - 1 - num_fresh
        context = view.places(first, num_rows, num_fresh)
        if given.num_drafts == 0:
            self._write_context(features, context)
            return None
        inputs = RoundInputs(features, context, *self._block(given, view))
        # A piece of a prompt is of a length that seldom comes again.
        run = self._rounds.run if given.start is None else self._run
        states = run(inputs).view(given.slots.shape[0], inputs.block.query_len, -1)
        return self._chosen(given, view, states[:, -given.num_drafts :].contiguous())

    def _block(self, given: ProposeInput, view: View) -> tuple[Tensor, Places]:
        """The newest token and masks, embedded [S R, H], and where they stand."""
        num_rows = given.num_drafts + (not self._config.samples_from_anchor)
        ids = given.slots.new_full((given.slots.shape[0], num_rows), self._config.mask_token_id)
        ids[:, 0].copy_(given.last_tokens)
        return self._head.embed(ids.flatten()), view.places(given.lengths - 1, num_rows)

    def _run(self, given: RoundInputs) -> Tensor:
        """Normed states [S R, H] of the block's rows, by ops alone."""
        self._write_context(given.features, given.context)
        places, residual, delta = given.block, given.residual, None
        for index, layer in enumerate(self._head.layers):
            keys, values = self.cache.keys[index], self.cache.values[index]
            if delta is None:
                normed = layer.input_norm(residual)
            else:
                normed, residual = layer.input_norm.added(delta, residual)
            queries = layer.enter(normed, places, keys, values)
            mask: MaskKind = "causal" if self._config.is_causal[index] else "block"
            attended = layer.attend(queries, places, keys, values, mask)
            residual, delta = layer.finish(residual, attended)
        assert delta is not None, "a head has a layer"
        return self._head.norm.added(delta, residual)[0]

    def _write_context(self, features: Tensor, places: Places) -> None:
        states = self._hidden_norm(self._head.fuse(features))
        if self._stacked is not None:
            shape = self._head.shape
            self._packer.ops.dflash_context_kv(
                states,
                self._stacked,
                places.positions,
                self._head.cos_sin,
                places.kv_slots,
                k_caches=self.cache.all_keys,
                v_caches=self.cache.all_values,
                rotary_dim=shape.rope.rotary_dim,
                is_interleaved=shape.rope.is_interleaved,
                k_norm=self._k_norms,
                eps=shape.rms_norm_eps,
            )
            return
        for index, layer in enumerate(self._head.layers):
            heads = projected(self._context[index], states, self._width)
            layer.write(heads, places, self.cache.keys[index], self.cache.values[index])

    def _chosen(self, given: ProposeInput, view: View, states: Tensor) -> Proposal:
        """Every slot for itself; `states` [S, N, H] of the rows that draft."""
        logits = self._head.logits(states.flatten(0, 1)).view(*states.shape[:2], -1)
        if given.temperatures is None:
            ids = self._head.target_ids(logits.argmax(-1))
            return Proposal(ids, self._num_valid(given, view))
        tokens: list[Tensor] = []
        probs: list[Tensor | None] = []
        for slot in range(given.num_drafts):
            draft_ids, drawn_from = self._picker.pick(logits[:, slot], given.temperatures)
            tokens.append(self._head.target_ids(draft_ids))
            probs.append(drawn_from)
        return self._proposal(given, view, tokens, probs)


def make(model: CausalModel, config: EngineConfig) -> DFlashProposer:
    """Raises SetupError for a head that is not there, not DFlash, or of another target."""
    head = configured_head(model, config, DFlashProposer.name, DFlashHead)
    if isinstance(head, DSparkHead) and head.markov_head is not None:
        raise SetupError(
            f"the head in {config.draft_path} drafts by a Markov head too; choose the method dspark"
        )
    return DFlashProposer(head, model, config)
