"""A head to begin with: its layers start as the target's own last ones, not as noise.

The states that a head reads are states of the target, so the target's last layers already know how
to read them; a head that starts from them learns what remains.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

import torch
from torch import Tensor, nn

from backend.config import ModelConfig, RopeConfig
from backend.errors import SetupError
from backend.models.loading import read_tensors
from backend.speculate.heads.base import DraftHead
from backend.speculate.heads.dflash import DFlashConfig, DFlashHead
from backend.speculate.heads.dspark import DSparkConfig, DSparkHead
from backend.speculate.heads.eagle3 import Eagle3Config, Eagle3Head
from backend.speculate.heads.vocabulary import offsets_of

Method = Literal["eagle3", "dflash", "dspark"]
METHODS: tuple[Method, ...] = ("eagle3", "dflash", "dspark")
_NOISE = 0.02
_PARTS = (
    "input_layernorm", "post_attention_layernorm", "self_attn.q_proj", "self_attn.k_proj",
    "self_attn.v_proj", "self_attn.o_proj", "mlp.gate_proj", "mlp.up_proj", "mlp.down_proj",
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class HeadPlan:
    """`layer_ids`: of the target, whose entering states are the features. `num_drafts`: places."""

    method: Method
    num_layers: int
    layer_ids: tuple[int, ...]
    draft_vocab_size: int
    num_drafts: int
    mask_token_id: int = 0
    markov_rank: int = 0


def default_layer_ids(num_target_layers: int) -> tuple[int, ...]:
    """An early, a middle and a late layer, as EAGLE-3 takes them; the last one stays out."""
    return (min(2, num_target_layers - 1), num_target_layers // 2, max(0, num_target_layers - 2))


def new_head(plan: HeadPlan, target: ModelConfig, counts: Tensor, seed: int) -> DraftHead:
    """`counts` [V]: how often the target wrote each token; the draft vocabulary is the most
    frequent ones. Raises SetupError as `check_plan` does."""
    check_plan(plan, target)
    torch.manual_seed(seed)
    head = _made(plan, target)
    for each in head.modules():
        if isinstance(each, nn.Linear | nn.Embedding):
            nn.init.normal_(each.weight, std=_NOISE)
            if isinstance(each, nn.Linear) and each.bias is not None:
                nn.init.zeros_(each.bias)
    if isinstance(head, DSparkHead) and head.markov_head is not None:
        nn.init.zeros_(head.markov_head.markov_w2.weight)
    if head.d2t is not None:
        head.d2t.copy_(offsets_of(counts, plan.draft_vocab_size))
    return head


def check_plan(plan: HeadPlan, target: ModelConfig) -> None:
    """Raises SetupError for a head that cannot be made for this target, or not be served."""
    if not 0 < plan.num_layers <= target.num_layers:
        raise SetupError(
            f"a head of {plan.num_layers} layers begins as the target's last ones, and the target "
            f"has {target.num_layers}; ask for fewer (--layers)"
        )
    if plan.method == "dspark" and plan.num_drafts < 2:
        raise SetupError("a dspark head makes 2 drafts or more (--drafts)")
    for layer in plan.layer_ids:
        if not 0 <= layer < target.num_layers:
            raise SetupError(
                f"layer {layer} is not one of the target's {target.num_layers}; features are taken "
                f"from layers 0 to {target.num_layers - 1}"
            )
    if not 0 < plan.draft_vocab_size <= target.vocab_size:
        raise SetupError(
            f"a draft vocabulary of {plan.draft_vocab_size} tokens: the target has "
            f"{target.vocab_size}"
        )


def start_from_target(head: DraftHead, path: Path, target: ModelConfig) -> None:
    """The head's layers become the target's last ones, its feature projection the last feature."""
    layers = head.draft_layers
    first = target.num_layers - len(layers)
    names = [
        f"model.layers.{first + index}.{part}.weight"
        for index in range(len(layers))
        for part in _parts(target)
    ]
    stored = read_tensors(path, [*names, "model.norm.weight"])
    with torch.no_grad():
        head.norm.weight.copy_(stored["model.norm.weight"])
        size = target.hidden_size
        head.fc.weight[:, -size:] += torch.eye(size, device=head.fc.weight.device)
        for index, layer in enumerate(layers):
            at = f"model.layers.{first + index}."
            own = dict(layer.named_parameters())
            for part in _parts(target):
                _copy(own[f"{part}.weight"], stored[f"{at}{part}.weight"])
            if layer.hidden_norm is not None:
                layer.hidden_norm.weight.copy_(stored[f"{at}input_layernorm.weight"])


def start_from_head(head: DraftHead, other: DraftHead) -> None:
    """Takes over what both have in one shape: a head of the same method that learnt less, or one
    of another method whose layers are alike.

    Raises SetupError if their layers are not, or their draft vocabularies differ.
    """
    own, theirs = head.own_state(), other.own_state()
    layers = [name for name in own if name.startswith(("layers.", "fc."))]
    unlike = [
        name for name in layers if name not in theirs or theirs[name].shape != own[name].shape
    ]
    if unlike:
        raise SetupError(
            f"the head to start from has no {unlike[0]} of shape {list(own[unlike[0]].shape)}; "
            "start from one of the same method and size"
        )
    if head.d2t is not None:
        if other.d2t is None or other.d2t.shape != head.d2t.shape:
            raise SetupError("the head to start from has a draft vocabulary of another size")
        head.d2t.copy_(other.d2t)
    with torch.no_grad():
        for name, tensor in own.items():
            if name in theirs and theirs[name].shape == tensor.shape:
                tensor.copy_(theirs[name])


def _parts(target: ModelConfig) -> tuple[str, ...]:
    norms = ("self_attn.q_norm", "self_attn.k_norm") if target.has_qk_norm else ()
    return _PARTS + norms


def _copy(own: Tensor, stored: Tensor) -> None:
    """A layer that reads the token beside the state takes the target's weights for the state."""
    if own.shape == stored.shape:
        own.copy_(stored)
    else:
        own[:, -stored.shape[1] :] = stored


def _made(plan: HeadPlan, target: ModelConfig) -> DraftHead:
    shape = replace(
        target,
        family="draft",
        num_layers=plan.num_layers,
        rope=_plain(target.rope),
        has_attention_bias=False,
        tie_embeddings=False,
    )
    common: Mapping[str, Any] = {
        "shape": shape,
        "windows": (0,) * plan.num_layers,
        "target_hidden_size": target.hidden_size,
        "layer_ids": plan.layer_ids,
        "tap_side": "in",
        "num_features": len(plan.layer_ids),
        "draft_vocab_size": plan.draft_vocab_size,
        "has_own_embedding": False,
        "has_own_lm_head": False,
    }
    if plan.method == "eagle3":
        return Eagle3Head(Eagle3Config(**common))
    block: Mapping[str, Any] = {
        "mask_token_id": plan.mask_token_id,
        "is_causal": (False,) * plan.num_layers,
    }
    if plan.method == "dflash":
        return DFlashHead(DFlashConfig(**common, **block, block_size=plan.num_drafts + 1))
    return DSparkHead(
        DSparkConfig(
            **common,
            **block,
            block_size=plan.num_drafts,
            samples_from_anchor=True,
            markov_rank=plan.markov_rank,
            has_confidence=True,
            reads_markov=plan.markov_rank > 0,
        )
    )


def _plain(rope: RopeConfig) -> RopeConfig:
    """As the layout can describe it: halves are rotated, which is how weights are read."""
    return replace(rope, is_interleaved=False, frequency_divisors=())
