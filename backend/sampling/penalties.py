"""What changes logits before temperature: logit bias and the three penalties.

Order: bias, repetition, then frequency and presence, as in vLLM. Definitions: the bias is added
(OpenAI API); repetition divides a positive and multiplies a negative logit of every token seen in
prompt or answer (Keskar et al., CTRL, 2019; Hugging Face); frequency is subtracted once for every
time the token stands in the answer, presence once if it stands there at all (OpenAI API).

The tables are [slots, V] and are made when the first request needs them. Shapes: R rows, S
sequences, V vocabulary.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from backend.sampling.params import SamplingParams


class TokenTables:
    """Counts, prompt membership and bias of every slot; row 0 pads and stays empty."""

    def __init__(self, vocab_size: int, num_slots: int, device: torch.device) -> None:
        self._vocab_size = vocab_size
        self._num_slots = num_slots
        self._device = device
        self._counts: Tensor | None = None  # int32: times in the answer
        self._in_prompt: Tensor | None = None  # bool
        self._bias: Tensor | None = None  # float32
        # Slots whose tokens are counted: the host's copy, and the device's.
        self._counted: set[int] = set()
        self._is_counted = torch.zeros(num_slots, dtype=torch.bool, device=device)
        self._used: set[int] = set()

    @property
    def is_counting(self) -> bool:
        """Whether any slot has a penalty now."""
        return bool(self._counted)

    @property
    def counts(self) -> Tensor:
        if self._counts is None:
            self._counts = self._table(torch.int32)
        return self._counts

    @property
    def in_prompt(self) -> Tensor:
        if self._in_prompt is None:
            self._in_prompt = self._table(torch.bool)
        return self._in_prompt

    @property
    def bias(self) -> Tensor:
        if self._bias is None:
            self._bias = self._table(torch.float32)
        return self._bias

    def set_slot(
        self,
        slot: int,
        params: SamplingParams,
        prompt_ids: Sequence[int],
        output_ids: Sequence[int],
    ) -> None:
        self.clear_slot(slot)
        if params.logit_bias:
            self._used.add(slot)
            ids = self._ids(list(params.logit_bias))
            self.bias[slot, ids] = torch.tensor(
                list(params.logit_bias.values()), dtype=torch.float32, device=self._device
            )
        if params.has_penalties:
            self._used.add(slot)
            self._counted.add(slot)
            self._is_counted[slot] = True
            generated = self._ids(output_ids)
            self.counts[slot].scatter_add_(
                0, generated, torch.ones_like(generated, dtype=torch.int32)
            )
        if params.repetition_penalty != 1.0:
            self.in_prompt[slot].scatter_(0, self._ids(prompt_ids), True)

    def clear_slot(self, slot: int) -> None:
        if slot not in self._used:
            return
        for table in (self._counts, self._in_prompt, self._bias):
            if table is not None:
                table[slot].zero_()
        self._is_counted[slot] = False
        self._counted.discard(slot)
        self._used.discard(slot)

    def add(self, slots: Tensor, tokens: Tensor, num_tokens: Tensor) -> None:
        """Counts the first `num_tokens[s]` of each row of tokens [S, n], of slots with one."""
        place = torch.arange(tokens.shape[1], device=tokens.device)
        is_new = (place < num_tokens.unsqueeze(1)) & self._is_counted[slots].unsqueeze(1)
        index = slots.unsqueeze(1) * self._vocab_size + tokens.clamp(0, self._vocab_size - 1)
        self.counts.view(-1).scatter_add_(0, index.view(-1), is_new.to(torch.int32).view(-1))

    def _table(self, dtype: torch.dtype) -> Tensor:
        return torch.zeros((self._num_slots, self._vocab_size), dtype=dtype, device=self._device)

    def _ids(self, ids: Sequence[int]) -> Tensor:
        return torch.tensor(ids, dtype=torch.int64, device=self._device)


def repeat(logits: Tensor, is_seen: Tensor, penalty: Tensor) -> Tensor:
    """The repetition penalty: float32 [R, V], bool [R, V], float32 [R, 1] → float32 [R, V]."""
    changed = torch.where(logits > 0, logits / penalty, logits * penalty)
    return torch.where(is_seen, changed, logits)


def subtract(logits: Tensor, counts: Tensor, frequency: Tensor, presence: Tensor) -> Tensor:
    """Frequency and presence: float32 [R, V], int32 [R, V], float32 [R, 1] twice → [R, V]."""
    return logits - frequency * counts - presence * (counts > 0)
