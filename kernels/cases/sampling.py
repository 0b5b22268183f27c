"""What the cases of ops over a vocabulary share."""

from __future__ import annotations

import torch
from torch import Tensor

from kernels.cases.case import Maker

VOCAB_SIZE = 151_936  # Qwen3


def logits_of(maker: Maker, *shape: int, dtype: torch.dtype, salt: int = 0) -> Tensor:
    """As spread out as those of a model that is fairly sure; now and then a token is taken out."""
    logits = maker.normal(*shape, dtype=dtype, std=3.0, salt=salt)
    if maker.device != "meta" and shape[-1] > 2:
        logits[..., 1::7] = -torch.inf
    return logits


def cycle(maker: Maker, values: tuple[float, ...], size: int, *, dtype: torch.dtype) -> Tensor:
    """[size]: the values again and again, so that rows differ."""
    return maker.tensor([values[i % len(values)] for i in range(size)], dtype=dtype)
