"""GGUF files made from a transformers model, laid out and quantized as llama.cpp does.

Q4_K and Q6_K are encoded here, from the block layout in ggml's documentation: the `gguf` package
only reads them. Encoders return the numbers that they stored too, so a decoder has something to
be compared with that is not itself.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from gguf import GGMLQuantizationType, GGUFWriter, quants
from numpy.typing import NDArray
from transformers import PreTrainedModel

from backend.models.family import LLAMA_GGUF_NAMES

Floats = NDArray[np.float32]
Bytes = NDArray[np.uint8]

SUPER_BLOCK = 256
TOKENIZER = {
    "tokenizer.ggml.model": "gpt2",
    "tokenizer.ggml.pre": "smollm",
    "tokenizer.ggml.tokens": ["<|endoftext|>", "<s>", "</s>", "é", "Ġthe"],
    "tokenizer.ggml.token_type": [3, 3, 3, 1, 1],
    "tokenizer.ggml.merges": ["Ġ t", "Ġt h"],
    "tokenizer.chat_template": "{{ messages[0]['content'] }}",
}
_NAMES = {
    **{hf: name for name, hf in LLAMA_GGUF_NAMES.items()},
    "model.layers.*.self_attn.q_norm.weight": "blk.*.attn_q_norm.weight",
    "model.layers.*.self_attn.k_norm.weight": "blk.*.attn_k_norm.weight",
}


def write_gguf(
    path: Path,
    model: PreTrainedModel,
    *,
    matrix_type: GGMLQuantizationType = GGMLQuantizationType.F32,
    is_permuted: bool | None = None,
    metadata: Mapping[str, Any] | None = None,
    extra: Mapping[str, Floats] | None = None,
    without: Sequence[str] = (),
) -> None:
    """Matrices in `matrix_type`, norms in F32. The model takes over the numbers as stored.

    `is_permuted`: rows of Q and K as llama.cpp writes them; None: for llama only.
    """
    config = model.config
    writer = GGUFWriter(path, config.model_type)
    _add_metadata(writer, config, {**TOKENIZER, **(metadata or {})})
    permuted = {"q_proj": config.num_attention_heads, "k_proj": config.num_key_value_heads}
    if not (config.model_type == "llama" if is_permuted is None else is_permuted):
        permuted = {}
    for name, tensor in model.state_dict().items():
        if name in without or (name == "lm_head.weight" and config.tie_word_embeddings):
            continue
        values = tensor.numpy()
        if values.ndim == 1:
            writer.add_tensor(gguf_name(name), values)
            continue
        heads = permuted.get(name.split(".")[-2])
        if heads is not None:
            values = permuted_rows(values, heads)
        stored, read_back = encode(values, matrix_type)
        writer.add_tensor(gguf_name(name), stored, raw_dtype=matrix_type)
        if heads is not None:
            read_back = unpermuted_rows(read_back, heads)
        tensor.copy_(torch.from_numpy(read_back))
    for name, values in (extra or {}).items():
        writer.add_tensor(name, values)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def _add_metadata(writer: GGUFWriter, config: Any, others: Mapping[str, Any]) -> None:
    writer.add_vocab_size(config.vocab_size)
    writer.add_context_length(config.max_position_embeddings)
    writer.add_embedding_length(config.hidden_size)
    writer.add_block_count(config.num_hidden_layers)
    writer.add_feed_forward_length(config.intermediate_size)
    writer.add_head_count(config.num_attention_heads)
    writer.add_head_count_kv(config.num_key_value_heads)
    writer.add_key_length(config.head_dim)
    writer.add_value_length(config.head_dim)
    writer.add_layer_norm_rms_eps(config.rms_norm_eps)
    writer.add_rope_freq_base(config.rope_parameters["rope_theta"])
    writer.add_rope_dimension_count(config.head_dim)
    writer.add_bos_token_id(1)
    writer.add_eos_token_id(2)
    for key, value in others.items():
        add = {
            str: writer.add_string,
            bool: writer.add_bool,
            int: writer.add_uint32,
            float: writer.add_float32,
            list: writer.add_array,
        }[type(value)]
        add(key, value)


def gguf_name(name: str) -> str:
    parts = name.split(".")
    if parts[1] != "layers":
        return _NAMES[name]
    return _NAMES[".".join([*parts[:2], "*", *parts[3:]])].replace("*", parts[2])


def permuted_rows(values: Floats, heads: int) -> Floats:
    """Row i and row i + half of a head become neighbours."""
    halves = values.reshape(heads, 2, -1, values.shape[1])
    return np.ascontiguousarray(halves.swapaxes(1, 2)).reshape(values.shape)


def unpermuted_rows(values: Floats, heads: int) -> Floats:
    pairs = values.reshape(heads, -1, 2, values.shape[1])
    return np.ascontiguousarray(pairs.swapaxes(1, 2)).reshape(values.shape)


def encode(values: Floats, ggml_type: GGMLQuantizationType) -> tuple[NDArray[Any], Floats]:
    """What is stored, and the numbers that it stands for."""
    if ggml_type is GGMLQuantizationType.Q4_K:
        return encode_q4_k(values)
    if ggml_type is GGMLQuantizationType.Q6_K:
        return encode_q6_k(values)
    stored = quants.quantize(values, ggml_type)
    return stored, quants.dequantize(stored, ggml_type)


def encode_q4_k(values: Floats) -> tuple[Bytes, Floats]:
    """144 bytes for 256 numbers: d, dmin (float16), 8 scales and 8 minima of 6 bits, 4-bit digits.

    number = d · scale · digit - dmin · minimum, one scale and one minimum for 32 numbers.
    """
    blocks = values.reshape(-1, 8, 32)
    low = np.minimum(blocks.min(axis=2), 0.0)
    step = (blocks.max(axis=2) - low) / 15
    d = (step.max(axis=1) / 63).astype(np.float16)
    dmin = (-low.min(axis=1) / 63).astype(np.float16)
    scales = np.clip(np.rint(step / _positive(d)[:, None]), 0, 63).astype(np.uint8)
    minima = np.clip(np.rint(-low / _positive(dmin)[:, None]), 0, 63).astype(np.uint8)
    scale = d.astype(np.float32)[:, None, None] * scales[:, :, None]
    offset = dmin.astype(np.float32)[:, None, None] * minima[:, :, None]
    digits = np.clip(np.rint((blocks + offset) / _positive(scale)), 0, 15).astype(np.uint8)

    packed = np.zeros((len(blocks), 12), np.uint8)
    packed[:, 0:4] = scales[:, :4] | (scales[:, 4:] >> 4 << 6)
    packed[:, 4:8] = minima[:, :4] | (minima[:, 4:] >> 4 << 6)
    packed[:, 8:12] = (scales[:, 4:] & 15) | (minima[:, 4:] & 15) << 4
    pairs = digits.reshape(-1, 4, 2, 32)
    nibbles = (pairs[:, :, 0] | pairs[:, :, 1] << 4).reshape(-1, 128)
    halves = np.stack((d, dmin), axis=1).view(np.uint8)
    stored = np.concatenate((halves, packed, nibbles), axis=1).reshape(len(values), -1)
    return stored, (scale * digits - offset).astype(np.float32).reshape(values.shape)


def encode_q6_k(values: Floats) -> tuple[Bytes, Floats]:
    """210 bytes for 256 numbers: low 4 bits, high 2 bits, 16 signed scales, d (float16).

    number = d · scale · (digit - 32), one scale for 16 numbers.
    """
    blocks = values.reshape(-1, 16, 16)
    step = np.abs(blocks).max(axis=2) / 31
    d = (step.max(axis=1) / 127).astype(np.float16)
    scales = np.clip(np.rint(step / _positive(d)[:, None]), -128, 127).astype(np.int8)
    scale = d.astype(np.float32)[:, None, None] * scales[:, :, None]
    digits = np.clip(np.rint(blocks / _positive(scale)), -32, 31).astype(np.int8)

    # Two halves of 128; in each, number 32 q + l has its bits in place l of quarter q.
    raw = (digits + 32).astype(np.uint8).reshape(-1, 2, 4, 32)
    low = np.concatenate(
        (
            (raw[:, :, 0] & 15) | (raw[:, :, 2] & 15) << 4,
            (raw[:, :, 1] & 15) | (raw[:, :, 3] & 15) << 4,
        ),
        axis=2,
    )
    high = sum((raw[:, :, quarter] >> 4) << (2 * quarter) for quarter in range(4))
    parts = (low.reshape(-1, 128), high.reshape(-1, 64), scales.view(np.uint8))
    stored = np.concatenate((*parts, d[:, None].view(np.uint8)), axis=1)
    read_back = (scale * digits).astype(np.float32).reshape(values.shape)
    return stored.astype(np.uint8).reshape(len(values), -1), read_back


def _positive(values: NDArray[Any]) -> Floats:
    return np.where(values == 0, 1.0, values).astype(np.float32)
