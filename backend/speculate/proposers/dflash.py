"""DFlash: one pass over a block of masks gives all drafts (arXiv 2602.06036).

A round: the target's states of the rows that were just verified become keys and values of every
layer, over what the block of the round before left there; then the next block runs behind them. Its
keys and values are scratch.

Shapes: S sequences, Q rows of the target each, N drafts, R rows of a block, H hidden.
"""

from __future__ import annotations

from torch import Tensor

from backend.config import EngineConfig
from backend.errors import SetupError
from backend.models.interface import CausalModel
from backend.speculate.draft_cache import View
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
        attentions = [layer.self_attn for layer in head.draft_layers]
        weights = [(each.k_proj.weight, each.v_proj.weight) for each in attentions]
        # Keys and values of all layers read the same states: one product.
        self._context = self._packer.linear(*(weight for pair in weights for weight in pair))
        shape = head.config.shape
        self._width = 2 * shape.num_kv_heads * shape.head_dim

    def _drafts(self, given: ProposeInput, view: View, features: Tensor) -> Proposal | None:
        self._write_context(given, view, features)
        if given.num_drafts == 0:
            return None
        return self._chosen(given, view, self._block(given, view))

    def _write_context(self, given: ProposeInput, view: View, features: Tensor) -> None:
        num_rows = features.shape[0] // given.slots.shape[0]
        num_fresh = given.num_fresh.clamp(1, num_rows)
        places = view.places(given.lengths - 1 - num_fresh, num_rows, num_fresh)
        states = self._hidden_norm(self._head.fuse(features))
        layers, cache = self._head.layers, self.cache
        heads = projected(self._context, states, self._width * len(layers))
        for index, layer in enumerate(layers):
            part = heads[:, index * self._width : (index + 1) * self._width].contiguous()
            layer.write(part, places, cache.keys[index], cache.values[index])

    def _block(self, given: ProposeInput, view: View) -> Tensor:
        """Normed states [S, N, H] of the rows that draft."""
        num_sequences = given.slots.shape[0]
        num_rows = given.num_drafts + (not self._config.samples_from_anchor)
        shape = (num_sequences, num_rows)
        ids = given.slots.new_full(shape, self._config.mask_token_id)
        ids[:, 0].copy_(given.last_tokens)
        places = view.places(given.lengths - 1, num_rows)
        residual, delta = self._head.embed(ids.flatten()), None
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
        states = self._head.norm.added(delta, residual)[0]
        return states.view(*shape, -1)[:, num_rows - given.num_drafts :].contiguous()

    def _chosen(self, given: ProposeInput, view: View, states: Tensor) -> Proposal:
        """Every slot for itself."""
        logits = self._head.logits(states.flatten(0, 1)).view(*states.shape[:2], -1)
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
