"""A draft head → a directory in the speculators layout, which others can read too.

Written in moves of whole files, so that a checkpoint that is interrupted leaves the one before it.
"""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from torch import Tensor

from backend.config import RopeConfig, RopeScaling
from backend.models.safetensors_files import SINGLE
from backend.speculate.heads.base import DraftHead, HeadConfig
from backend.speculate.heads.dflash import DFlashConfig
from backend.speculate.heads.dspark import DSparkConfig
from backend.speculate.heads.eagle3 import Eagle3Config
from backend.speculate.heads.files import IS_DRAFTED, OFFSETS, SCALE
from backend.speculate.heads.vocabulary import drafted_mask
from kernels.reference.linear_int8 import quantize_int8


def save_head(
    head: DraftHead,
    directory: str | Path,
    *,
    num_drafts: int,
    target_name: str = "",
    dtype: torch.dtype = torch.bfloat16,
    is_int8: bool = False,
) -> None:
    """Everything that is the head's own; what the target lends is left out.

    `num_drafts`: what it is meant to draft a round, for others' servers. `is_int8`: matrices with
    one scale a row, this project's own form. Raises ValueError for a head that the layout cannot
    describe.
    """
    path = Path(directory)
    path.mkdir(parents=True, exist_ok=True)
    config = head_to_json(head.head_config, num_drafts=num_drafts, target_name=target_name)
    tensors = stored_tensors(head, dtype=dtype, is_int8=is_int8)
    unfinished = path / f".{SINGLE}.part"
    save_file(tensors, unfinished)
    os.replace(unfinished, path / SINGLE)
    unfinished = path / ".config.json.part"
    unfinished.write_text(json.dumps(config, indent=2) + "\n", encoding="utf-8")
    os.replace(unfinished, path / "config.json")


def stored_tensors(
    head: DraftHead, *, dtype: torch.dtype, is_int8: bool = False
) -> dict[str, Tensor]:
    found: dict[str, Tensor] = {}
    for name, tensor in head.own_state().items():
        own = tensor.detach().cpu()
        if not own.is_floating_point():
            found[name] = own.contiguous()
        elif is_int8 and own.dim() == 2:
            rounded = quantize_int8(own)
            found[name], found[name + SCALE] = rounded.qweight, rounded.scale
        else:
            found[name] = own.to(dtype).contiguous()
    if OFFSETS in found:
        found[IS_DRAFTED] = drafted_mask(found[OFFSETS], head.head_config.shape.vocab_size)
    return found


def head_to_json(config: HeadConfig, *, num_drafts: int, target_name: str) -> dict[str, Any]:
    """config.json. Raises ValueError for what the layout has no words for."""
    match config:
        case Eagle3Config():
            method, own = "eagle3", _eagle3(config)
        case DSparkConfig():
            method, own = "dspark", {**_block(config), **_dspark(config)}
        case DFlashConfig():
            method, own = "dflash", _block(config)
        case _:
            raise ValueError(f"{type(config).__name__} has no layout")
    return {
        "architectures": [f"{method.title()}Speculator"],
        "speculators_model_type": method,
        "transformer_layer_config": _layers(config),
        "draft_vocab_size": config.draft_vocab_size,
        "target_hidden_size": config.target_hidden_size,
        **own,
        "speculators_config": {
            "algorithm": method,
            "default_proposal_method": "greedy",
            "proposal_methods": [{"proposal_type": "greedy", "speculative_tokens": num_drafts}],
            "verifier": {"name_or_path": target_name, "architectures": []},
        },
    }


def _eagle3(config: Eagle3Config) -> dict[str, Any]:
    if config.is_fusing_everywhere and config.shape.num_layers > 1:
        raise ValueError("in the speculators layout only the first layer reads the token")
    return {
        "eagle_aux_hidden_state_layer_ids": _entering(config),
        "norm_before_residual": config.is_norm_before_residual,
        "norm_before_fc": config.is_norm_before_fc,
        "fc_norm": config.has_fc_norm,
        "norm_output": config.is_output_normed,
    }


def _block(config: DFlashConfig) -> dict[str, Any]:
    usual = tuple(window > 0 for window in config.windows)
    if config.is_causal != usual and any(config.is_causal):
        raise ValueError("in the speculators layout only layers with a window look back only")
    return {
        "aux_hidden_state_layer_ids": _entering(config),
        "block_size": config.block_size,
        "mask_token_id": config.mask_token_id,
        "sample_from_anchor": config.samples_from_anchor,
        "sliding_window_non_causal": config.is_causal != usual,
    }


def _dspark(config: DSparkConfig) -> dict[str, Any]:
    return {
        "markov_rank": config.markov_rank,
        "markov_head_type": config.markov_kind,
        "enable_confidence_head": config.has_confidence,
        "confidence_head_with_markov": config.reads_markov,
    }


def _entering(config: HeadConfig) -> list[int]:
    """What leaves layer i enters layer i + 1."""
    if not config.layer_ids:
        raise ValueError("the layers of the target must be named to be written down")
    return [layer + (config.tap_side == "out") for layer in config.layer_ids]


def _layers(config: HeadConfig) -> dict[str, Any]:
    shape, windows = config.shape, {each for each in config.windows if each}
    if len(windows) > 1:
        raise ValueError(f"windows of several sizes ({sorted(windows)}) cannot be written down")
    section: dict[str, Any] = {
        "model_type": "qwen3" if shape.has_qk_norm else "llama",
        "vocab_size": shape.vocab_size,
        "hidden_size": shape.hidden_size,
        "intermediate_size": shape.intermediate_size,
        "num_hidden_layers": shape.num_layers,
        "num_attention_heads": shape.num_heads,
        "num_key_value_heads": shape.num_kv_heads,
        "head_dim": shape.head_dim,
        "max_position_embeddings": shape.context_len_max,
        "rms_norm_eps": shape.rms_norm_eps,
        "hidden_act": "silu",
        **_rope(shape.rope),
    }
    if windows:
        section["sliding_window"] = windows.pop()
        section["layer_types"] = [
            "sliding_attention" if each else "full_attention" for each in config.windows
        ]
    return section


def _rope(rope: RopeConfig) -> dict[str, Any]:
    if rope.is_interleaved or rope.frequency_divisors:
        raise ValueError("interleaved rotary positions and divisors cannot be written down")
    scaling: dict[str, Any] = {"rope_type": rope.scaling.value, "factor": rope.factor}
    original = {"original_max_position_embeddings": rope.original_context_len}
    match rope.scaling:
        case RopeScaling.NONE:
            return {"rope_theta": rope.theta}
        case RopeScaling.LINEAR:
            more: dict[str, Any] = {}
        case RopeScaling.LLAMA3:
            more = {
                **original,
                "low_freq_factor": rope.low_frequency_factor,
                "high_freq_factor": rope.high_frequency_factor,
            }
        case RopeScaling.YARN:
            more = {**original, "beta_fast": rope.beta_fast, "beta_slow": rope.beta_slow}
            if rope.attention_factor is not None:
                more["attention_factor"] = rope.attention_factor
    return {"rope_theta": rope.theta, "rope_scaling": {**scaling, **more}}
