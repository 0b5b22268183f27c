"""Random draft heads on disk, in the layouts that are published, by the names that they use."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from torch import Tensor

from tests.support.draft_references import BlockRules, Dimensions, Eagle3Rules
from tests.support.tiny_checkpoints import CONTEXT, VOCAB

HIDDEN = 64
INNER = 96
THETA = 5000.0  # not the target's
DRAFT_VOCAB = 120


@dataclass(frozen=True)
class SavedHead:
    directory: Path
    tensors: dict[str, Tensor]  # by canonical names
    dims: Dimensions
    state_indices: tuple[int, ...]  # its features among transformers' hidden_states
    config: dict[str, Any] = field(default_factory=dict)


def dimensions(**changes: Any) -> Dimensions:
    given = {"num_heads": 4, "num_kv_heads": 2, "head_dim": 16, "num_layers": 1, "eps": 1e-5}
    return Dimensions(**{**given, "theta": THETA, **changes})


def random_tensors(shapes: dict[str, tuple[int, ...]], seed: int) -> dict[str, Tensor]:
    """Norms around 1; matrices so large that attention is not nearly uniform."""
    rng = torch.Generator().manual_seed(seed)
    found = {}
    for name, shape in shapes.items():
        noise = torch.randn(shape, generator=rng)
        if len(shape) == 1:
            found[name] = 1.0 + 0.3 * noise if "norm" in name else 0.3 * noise
        else:
            found[name] = 1.5 * noise * shape[-1] ** -0.5
    return found


def draft_vocabulary(seed: int, ids: Sequence[int] = ()) -> tuple[Tensor, Tensor]:
    """(d2t offsets, t2d mask) of these tokens, or of a random subset."""
    rng = torch.Generator().manual_seed(seed + 1000)
    chosen = torch.tensor(ids) if ids else torch.randperm(VOCAB, generator=rng)[:DRAFT_VOCAB]
    mask = torch.zeros(VOCAB, dtype=torch.bool)
    mask[chosen] = True
    return chosen.sort().values - torch.arange(len(chosen)), mask


def _size(has_draft_vocab: bool, draft_ids: Sequence[int]) -> int:
    return (len(draft_ids) or DRAFT_VOCAB) if has_draft_vocab else VOCAB


def layer_shapes(
    dims: Dimensions, index: int, *, is_fusing: bool, has_qk_norm: bool
) -> dict[str, tuple[int, ...]]:
    at, inputs = f"layers.{index}.", 2 * HIDDEN if is_fusing else HIDDEN
    queries, keys = dims.num_heads * dims.head_dim, dims.num_kv_heads * dims.head_dim
    shapes: dict[str, tuple[int, ...]] = {
        "input_layernorm": (HIDDEN,),
        "post_attention_layernorm": (HIDDEN,),
        "self_attn.q_proj": (queries, inputs),
        "self_attn.k_proj": (keys, inputs),
        "self_attn.v_proj": (keys, inputs),
        "self_attn.o_proj": (HIDDEN, queries),
        "mlp.gate_proj": (INNER, HIDDEN),
        "mlp.up_proj": (INNER, HIDDEN),
        "mlp.down_proj": (HIDDEN, INNER),
    }
    if is_fusing:
        shapes["hidden_norm"] = (HIDDEN,)
    if has_qk_norm:
        shapes |= {"self_attn.q_norm": (dims.head_dim,), "self_attn.k_norm": (dims.head_dim,)}
    return {f"{at}{name}.weight": shape for name, shape in shapes.items()}


def layer_keys(dims: Dimensions, model_type: str = "llama") -> dict[str, Any]:
    """The part of a config.json that describes the head's own layers."""
    keys: dict[str, Any] = {
        "model_type": model_type,
        "hidden_size": HIDDEN,
        "intermediate_size": INNER,
        "num_hidden_layers": dims.num_layers,
        "num_attention_heads": dims.num_heads,
        "num_key_value_heads": dims.num_kv_heads,
        "head_dim": dims.head_dim,
        "max_position_embeddings": CONTEXT,
        "rms_norm_eps": dims.eps,
        "rope_theta": dims.theta,
        "vocab_size": VOCAB,
    }
    if dims.windows:
        keys["layer_types"] = [
            "sliding_attention" if each else "full_attention" for each in dims.windows
        ]
        keys["sliding_window"] = max(dims.windows)
    return keys


def write(directory: Path, config: dict[str, Any], tensors: dict[str, Tensor]) -> None:
    directory.mkdir(parents=True, exist_ok=True)
    (directory / "config.json").write_text(json.dumps(config), encoding="utf-8")
    contiguous = {name: each.contiguous() for name, each in tensors.items()}
    save_file(contiguous, directory / "model.safetensors")


def in_int8(tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    """Matrices as int8 with a scale a row; everything else as it is."""
    found = {}
    for name, each in tensors.items():
        if each.dim() != 2 or not each.is_floating_point():
            found[name] = each
            continue
        scale = each.abs().amax(1) / 127
        found[name] = (each / scale[:, None]).round().to(torch.int8)
        found[name + "_scale"] = scale
    return found


def save_eagle3(
    directory: Path,
    layout: str = "speculators",
    *,
    seed: int = 0,
    dims: Dimensions | None = None,
    rules: Eagle3Rules | None = None,
    layer_ids: tuple[int, ...] = (1, 2, 4),
    has_draft_vocab: bool = True,
    draft_ids: Sequence[int] = (),
    has_lm_head: bool = True,
    has_embedding: bool = False,
    is_int8: bool = False,
) -> SavedHead:
    """`layer_ids` as this layout counts them."""
    rules = rules or Eagle3Rules(is_fusing_everywhere=layout == "deepspec")
    dims = dims or dimensions()
    num_features, draft_vocab = len(layer_ids), _size(has_draft_vocab, draft_ids)
    shapes: dict[str, tuple[int, ...]] = {
        "fc.weight": (HIDDEN, num_features * HIDDEN),
        "norm.weight": (HIDDEN,),
    }
    for index in range(dims.num_layers):
        is_fusing = index == 0 or rules.is_fusing_everywhere
        has_qk_norm = layout == "deepspec"
        shapes |= layer_shapes(dims, index, is_fusing=is_fusing, has_qk_norm=has_qk_norm)
    if rules.is_norm_before_fc:
        shapes["input_norm.weight"] = (num_features * HIDDEN,)
    if rules.has_fc_norm:
        shapes |= {f"fc_norm.{i}.weight": (HIDDEN,) for i in range(num_features)}
    if has_lm_head:
        shapes["lm_head.weight"] = (draft_vocab, HIDDEN)
    if has_embedding:
        shapes["embed_tokens.weight"] = (VOCAB, HIDDEN)
    tensors = random_tensors(shapes, seed)
    stored = in_int8(tensors) if is_int8 else dict(tensors)
    if has_draft_vocab:
        tensors["d2t"], mask = draft_vocabulary(seed, draft_ids)
        stored |= {"d2t": tensors["d2t"], "t2d": mask}
    config = _eagle3_config(layout, dims, rules, layer_ids, draft_vocab)
    if layout == "native":
        stored = {name.replace("layers.0.", "midlayer."): each for name, each in stored.items()}
    write(directory, config, stored)
    # DeepSpec's layer i means what leaves it; entry 0 of hidden_states is the embedding.
    indices = tuple(layer + (layout == "deepspec") for layer in layer_ids)
    return SavedHead(directory, tensors, dims, indices, config)


def _eagle3_config(
    layout: str,
    dims: Dimensions,
    rules: Eagle3Rules,
    layer_ids: tuple[int, ...],
    draft_vocab: int,
) -> dict[str, Any]:
    if layout == "speculators":
        return {
            "speculators_model_type": "eagle3",
            "architectures": ["Eagle3Speculator"],
            "transformer_layer_config": layer_keys(dims),
            "draft_vocab_size": draft_vocab,
            "norm_before_residual": rules.is_norm_before_residual,
            "norm_before_fc": rules.is_norm_before_fc,
            "fc_norm": rules.has_fc_norm,
            "norm_output": rules.is_output_normed,
            "eagle_aux_hidden_state_layer_ids": list(layer_ids),
        }
    if layout == "deepspec":
        return {
            "architectures": ["Qwen3Eagle3Model"],
            **layer_keys(dims, "qwen3"),
            "target_layer_ids": list(layer_ids),
            "num_target_layers": 6,
            "ttt_length": 7,
        }
    return {
        "architectures": ["LlamaForCausalLMEagle3"],
        **layer_keys(dims),
        "draft_vocab_size": draft_vocab,
        "eagle_config": {
            "eagle_aux_hidden_state_layer_ids": list(layer_ids),
            "use_aux_hidden_state": True,
            "norm_before_fc": rules.is_norm_before_fc,
        },
    }


MASK_TOKEN = 3
MARKOV_RANK = 8
BLOCK_SIZE = 6


def save_block_head(
    directory: Path,
    method: str = "dflash",
    layout: str = "speculators",
    *,
    seed: int = 0,
    dims: Dimensions | None = None,
    rules: BlockRules | None = None,
    layer_ids: tuple[int, ...] = (1, 3, 5),
    has_draft_vocab: bool = True,
    draft_ids: Sequence[int] = (),
    has_lm_head: bool = True,
    has_embedding: bool = False,
    has_qk_norm: bool = True,
    has_confidence: bool = False,
    is_int8: bool = False,
    extra: dict[str, Any] | None = None,
) -> SavedHead:
    """`layer_ids` as this layout counts them; `extra` goes into config.json."""
    rules = rules or BlockRules(MASK_TOKEN)
    dims = dims or dimensions(num_layers=2)
    draft_vocab = _size(has_draft_vocab, draft_ids)
    shapes: dict[str, tuple[int, ...]] = {
        "fc.weight": (HIDDEN, len(layer_ids) * HIDDEN),
        "hidden_norm.weight": (HIDDEN,),
        "norm.weight": (HIDDEN,),
    }
    for index in range(dims.num_layers):
        shapes |= layer_shapes(dims, index, is_fusing=False, has_qk_norm=has_qk_norm)
    if has_lm_head:
        shapes["lm_head.weight"] = (draft_vocab, HIDDEN)
    if has_embedding:
        shapes["embed_tokens.weight"] = (VOCAB, HIDDEN)
    shapes |= _small_shapes(rules, draft_vocab, has_confidence=has_confidence)
    tensors = random_tensors(shapes, seed)
    stored = in_int8(tensors) if is_int8 else dict(tensors)
    if has_draft_vocab:
        tensors["d2t"], mask = draft_vocabulary(seed, draft_ids)
        stored |= {"d2t": tensors["d2t"], "t2d": mask}
    config = _block_config(method, layout, dims, rules, layer_ids)
    config |= {"draft_vocab_size": draft_vocab} if has_draft_vocab else {}
    if method == "dspark":
        config |= {
            "markov_rank": MARKOV_RANK if rules.markov_kind else 0,
            "markov_head_type": rules.markov_kind or "vanilla",
            "enable_confidence_head": has_confidence,
            "confidence_head_with_markov": rules.reads_markov,
        }
    write(directory, config | (extra or {}), stored)
    # Only speculators counts what enters a layer.
    indices = tuple(layer + (layout != "speculators") for layer in layer_ids)
    return SavedHead(directory, tensors, dims, indices, config)


def _small_shapes(
    rules: BlockRules, draft_vocab: int, *, has_confidence: bool
) -> dict[str, tuple[int, ...]]:
    rank, kind = MARKOV_RANK, rules.markov_kind
    shapes: dict[str, tuple[int, ...]] = {}
    if kind:
        shapes["markov_head.markov_w1.weight"] = (VOCAB, rank)
        shapes["markov_head.markov_w2.weight"] = (draft_vocab, rank)
    if kind == "gated":
        shapes["markov_head.gate_proj.weight"] = (rank, HIDDEN + rank)
        shapes["markov_head.gate_proj.bias"] = (rank,)
    if kind == "rnn":
        shapes["markov_head.joint_proj.weight"] = (3 * rank, HIDDEN + 2 * rank)
        shapes["markov_head.joint_proj.bias"] = (3 * rank,)
    if has_confidence:
        size = HIDDEN + (rank if kind and rules.reads_markov else 0)
        shapes |= {"confidence_head.proj.weight": (1, size), "confidence_head.proj.bias": (1,)}
    return shapes


def _block_config(
    method: str, layout: str, dims: Dimensions, rules: BlockRules, layer_ids: tuple[int, ...]
) -> dict[str, Any]:
    common = {"block_size": BLOCK_SIZE, "mask_token_id": rules.mask_token_id}
    if layout == "speculators":
        return {
            "speculators_model_type": method,
            "transformer_layer_config": layer_keys(dims, "qwen3"),
            "aux_hidden_state_layer_ids": list(layer_ids),
            "sample_from_anchor": rules.samples_from_anchor,
            **common,
        }
    if layout == "deepspec":
        return {
            "architectures": ["Qwen3DSparkModel"],
            **layer_keys(dims, "qwen3"),
            "target_layer_ids": list(layer_ids),
            "num_anchors": 512,
            **common,
        }
    return {
        "architectures": ["DFlashDraftModel"],
        **layer_keys(dims, "qwen3"),
        "block_size": BLOCK_SIZE,
        "num_target_layers": 6,
        "dflash_config": {
            "mask_token_id": rules.mask_token_id,
            "target_layer_ids": list(layer_ids),
        },
    }
