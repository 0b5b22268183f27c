"""Tensors of a GGUF file under their Hugging Face names, their blocks turned back into numbers."""

from __future__ import annotations

import re
from collections.abc import Mapping

import numpy as np
import torch
from gguf import GGMLQuantizationType, quants
from torch import Tensor

from backend.config import ModelConfig
from backend.errors import BadCheckpoint
from backend.models.checkpoint import StoredTensor
from backend.models.family import Family
from backend.models.gguf_file import GgufFile, GgufTensor

TYPES = (
    GGMLQuantizationType.F32,
    GGMLQuantizationType.F16,
    GGMLQuantizationType.BF16,
    GGMLQuantizationType.Q8_0,
    GGMLQuantizationType.Q4_0,
    GGMLQuantizationType.Q4_1,
    GGMLQuantizationType.Q4_K,
    GGMLQuantizationType.Q6_K,
)
# Numbers that are float32 at a time, whatever the size of the tensor.
NUMBERS_AT_ONCE = 1024 * 1024


class GgufCheckpoint:
    """A `Checkpoint`. Raises BadCheckpoint for a tensor type that cannot be read.

    llama.cpp stores the rows of Llama's queries and keys so that rotary pairs are neighbours; they
    are put back here, and the model rotates halves as everywhere else.
    """

    def __init__(self, file: GgufFile, family: Family, config: ModelConfig) -> None:
        self.path = str(file.path)
        self._file = file
        self._source: dict[str, GgufTensor] = {}
        for name, tensor in file.tensors.items():
            if tensor.ggml_type not in TYPES:
                known = ", ".join(each.name for each in TYPES)
                raise BadCheckpoint(
                    f"{file.path}: tensor {name} has type {tensor.ggml_type.name}; known: {known}"
                )
            self._source[hf_name(name, family.gguf_names)] = tensor
        self._permuted_heads = (
            {"q_proj": config.num_heads, "k_proj": config.num_kv_heads}
            if family.has_gguf_permuted_qk
            else {}
        )

    def tensors(self) -> Mapping[str, StoredTensor]:
        return {name: StoredTensor(self.path, each.shape) for name, each in self._source.items()}

    def read_into(self, name: str, out: Tensor) -> None:
        source = self._source[name]
        rows = source.shape[0] if len(source.shape) > 1 else 1
        stored = np.frombuffer(
            self._file.content, dtype=np.uint8, count=source.num_bytes, offset=source.offset
        ).reshape(rows, -1)
        heads = self._permuted_heads.get(name.split(".")[-2])
        if heads is None:
            target, unit = out.view(rows, 1, -1), 1
        else:
            # [heads, pairs, 2, K] as it is stored, seen in the order in which it is wanted.
            unit = rows // heads
            target = out.view(heads, 2, unit // 2, -1).transpose(1, 2)
        units_at_once = max(1, NUMBERS_AT_ONCE // (unit * out.shape[-1]))
        for at in range(0, len(target), units_at_once):
            part = target[at : at + units_at_once]
            block = stored[at * unit : at * unit + len(part) * unit]
            numbers = torch.from_numpy(quants.dequantize(block, source.ggml_type))
            part.copy_(numbers.view(part.shape))


def hf_name(name: str, names: Mapping[str, str]) -> str:
    """`blk.3.attn_q.weight` → `model.layers.3.self_attn.q_proj.weight`; unknown names stay."""
    layer = re.fullmatch(r"blk\.(\d+)\.(.+)", name)
    if layer is None:
        return names.get(name, name)
    found = names.get(f"blk.*.{layer[2]}")
    return name if found is None else found.replace("*", layer[1])
