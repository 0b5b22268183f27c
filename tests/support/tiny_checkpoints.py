"""Tiny random checkpoints made by transformers, and steps made by hand to compare a model with it.

`save_tiny` writes a Hugging Face directory as sharded safetensors and returns the reference model.
`step_input` builds one step for sequences whose blocks the test chooses itself.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from transformers import (
    AutoConfig,
    AutoModelForCausalLM,
    LlamaConfig,
    PreTrainedModel,
    Qwen3Config,
)

from backend.models.interface import (
    AttentionGroup,
    CausalModel,
    FeatureTap,
    ForwardInput,
    KvCache,
)

VOCAB = 320
CONTEXT = 256
BLOCK_SIZE = 8

LINEAR_ROPE = {"rope_type": "linear", "factor": 4.0, "rope_theta": 10000.0}
LLAMA3_ROPE = {
    "rope_type": "llama3",
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 64,
    "rope_theta": 500000.0,
}
YARN_ROPE = {
    "rope_type": "yarn",
    "factor": 4.0,
    "original_max_position_embeddings": 64,
    "rope_theta": 10000.0,
}


def tiny_config(family: str, **changes: Any) -> LlamaConfig | Qwen3Config:
    """Grouped queries, a head size that is not hidden / heads for qwen3, untied."""
    given: dict[str, Any] = {
        "vocab_size": VOCAB,
        "hidden_size": 64,
        "intermediate_size": 112,
        "num_hidden_layers": 3,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "max_position_embeddings": CONTEXT,
        "rms_norm_eps": 1e-5,
        "tie_word_embeddings": False,
        "bos_token_id": 1,
        "eos_token_id": 2,
    }
    if family == "qwen3":
        return Qwen3Config(**{**given, "head_dim": 32, **changes})
    return LlamaConfig(**{**given, **changes})


def save_tiny(
    directory: Path, family: str = "llama", *, seed: int = 0, **changes: Any
) -> PreTrainedModel:
    """Writes at least two shards. Norms are random too: all ones would hide a wrong order."""
    torch.manual_seed(seed)
    model = AutoModelForCausalLM.from_config(
        tiny_config(family, **changes), attn_implementation="eager", dtype=torch.float32
    )
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            # Larger than the usual start, so that attention is not nearly uniform.
            scale = 0.3 if parameter.dim() == 1 else 2.0 * parameter.shape[-1] ** -0.5
            parameter.normal_(1.0 if "norm" in name else 0.0, scale)
    model.eval()
    model.save_pretrained(directory, max_shard_size="120KB")
    return model


def reference_logits(model: PreTrainedModel, token_ids: Sequence[int]) -> Tensor:
    """[tokens, V] float32 of one whole prompt."""
    with torch.inference_mode():
        return model(torch.tensor([list(token_ids)])).logits[0].float()


def reference_config(directory: Path) -> Any:
    return AutoConfig.from_pretrained(directory)


@dataclass(frozen=True, slots=True)
class Chunk:
    """Tokens of one sequence that enter a step: from position `start` on, in `blocks`."""

    token_ids: Sequence[int]
    start: int
    blocks: Sequence[int]


def step_input(
    groups: Sequence[Sequence[Chunk]],
    block_size: int = BLOCK_SIZE,
    features: Mapping[FeatureTap, Tensor] | None = None,
) -> ForwardInput:
    """One attention group for each inner list; its chunks are of one length."""
    rows: list[tuple[int, int, int]] = []
    made = []
    for chunks in groups:
        made.append(_group(chunks, len(rows)))
        for chunk in chunks:
            for offset, token_id in enumerate(chunk.token_ids):
                position = chunk.start + offset
                block = chunk.blocks[position // block_size]
                rows.append((token_id, position, block * block_size + position % block_size))
    token_ids, positions, kv_slots = torch.tensor(rows, dtype=torch.int64).T.contiguous()
    return ForwardInput(token_ids, positions, kv_slots, made, features)


def _group(chunks: Sequence[Chunk], row_start: int) -> AttentionGroup:
    lengths = {len(chunk.token_ids) for chunk in chunks}
    assert len(lengths) == 1, "chunks of one group are of one length"
    query_len = lengths.pop()
    width = max(len(chunk.blocks) for chunk in chunks)
    tables = [[*chunk.blocks, *[0] * (width - len(chunk.blocks))] for chunk in chunks]
    starts = torch.tensor([chunk.start for chunk in chunks], dtype=torch.int32)
    return AttentionGroup(
        row_start=row_start,
        num_sequences=len(chunks),
        query_len=query_len,
        block_tables=torch.tensor(tables, dtype=torch.int32),
        context_lens=starts + query_len,
        query_starts=starts,
    )


def step_logits(model: CausalModel, cache: KvCache, groups: Sequence[Sequence[Chunk]]) -> Tensor:
    """[R, V] of every row of one step."""
    with torch.inference_mode():
        hidden = model.forward(step_input(groups, cache.block_size), cache)
        return model.logits(hidden)
