"""Which token a draft proposes: the most likely one, or one that is drawn."""

from __future__ import annotations

import torch
from torch import Tensor

_TEMPERATURE_MIN = 1e-5


class Picker:
    """Its noise is its own: a draft drawn with the noise of verification would bias the text."""

    def __init__(self, device: torch.device, seed: int = 0) -> None:
        self._generator = torch.Generator(device)
        self._generator.manual_seed(seed)

    def pick(self, logits: Tensor, temperatures: Tensor | None) -> tuple[Tensor, Tensor | None]:
        """float32 [S, Vd] → ids [S], and the distribution [S, Vd] that they were drawn from.

        Without `temperatures` [S] the best token and no distribution: one-hot. With them softmax at
        that temperature, which is what rejection sampling divides by; one-hot again where it is 0.
        """
        best = logits.argmax(-1)
        if temperatures is None:
            return best, None
        is_drawn = (temperatures > 0).unsqueeze(-1)
        scaled = logits / temperatures.clamp_min(_TEMPERATURE_MIN).unsqueeze(-1)
        one_hot = torch.zeros_like(logits).scatter_(-1, best.unsqueeze(-1), 1.0)
        probs = torch.where(is_drawn, torch.softmax(scaled, -1), one_hot)
        sums = probs.cumsum(-1)
        uniforms = torch.rand((logits.shape[0], 1), generator=self._generator, device=logits.device)
        # The first entry whose sum exceeds the mark: never one of probability 0.
        ids = (sums <= uniforms * sums[:, -1:]).sum(-1).clamp(max=logits.shape[-1] - 1)
        return ids, probs
