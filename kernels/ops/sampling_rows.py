"""Rows of logits as kernels take them, split into blocks of the vocabulary, and their best."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
import triton
from torch import Tensor

from kernels.ops.launching import IS_INTERPRETED, Config, launch
from kernels.ops.sampling_weights import block_best, block_mass, take_best
from kernels.reference.sample import VOCAB_SIZE_MAX

BLOCK = 2048
INTERPRETED_BLOCKS = 2  # there a program costs by its operations, and hardly by their size
INTERPRETED_BLOCK_MAX = 65536  # 16 of them are as large as Triton lets a tensor be
CONFIG = Config(num_warps=4, num_stages=1)


@dataclass(frozen=True, slots=True)
class Rows:
    """Row r is place r % num_places of sequence r // num_places, or its place in `places` [S]."""

    logits: Tensor
    num_rows: int
    num_places: int
    sequence_stride: int
    place_stride: int
    vocab_size: int
    places: Tensor | None = None

    @property
    def block(self) -> int:
        if IS_INTERPRETED:
            half = int(triton.next_power_of_2(-(-self.vocab_size // INTERPRETED_BLOCKS)))
            return min(half, INTERPRETED_BLOCK_MAX)
        return BLOCK

    @property
    def num_blocks(self) -> int:
        return -(-self.vocab_size // self.block)

    @property
    def grid(self) -> tuple[int, int]:
        return self.num_rows, self.num_blocks

    @property
    def blocks(self) -> dict[str, int]:
        """For kernels that look at all of a row's blocks at once."""
        return {"BLOCKS": triton.next_power_of_2(self.num_blocks)}

    def place(self) -> dict[str, Any]:
        """Arguments of every kernel that reads logits."""
        return {
            "logits": self.logits,
            "places": self.places,
            "num_places": self.num_places,
            "sequence_stride": self.sequence_stride,
            "place_stride": self.place_stride,
            "vocab_size": self.vocab_size,
            "BLOCK": self.block,
        }

    def parts(self) -> Tensor:
        """int64, one a block of a row, not yet written."""
        return torch.empty(self.grid, dtype=torch.int64, device=self.logits.device)


def rows_of(logits: Tensor) -> Rows:
    """The rows of [R, V]. Raises ValueError for more than VOCAB_SIZE_MAX tokens, or none."""
    logits = _packed(logits)
    return Rows(logits, logits.shape[0], 1, logits.stride(0), 0, logits.shape[1])


def places_of(logits: Tensor, num_places: int, places: Tensor | None = None) -> Rows:
    """The first `num_places` rows of each sequence of [S, N + 1, V], or the one in `places` [S].

    Raises ValueError for more than VOCAB_SIZE_MAX tokens, or none.
    """
    logits = _packed(logits)
    num_rows = logits.shape[0] * num_places
    return Rows(
        logits, num_rows, num_places, logits.stride(0), logits.stride(1), logits.shape[2], places
    )


def best_of(rows: Rows) -> Tensor:
    """int64 [rows, blocks]: the largest order of each block."""
    best = rows.parts()
    launch(block_best, rows.grid, CONFIG, best=best, **rows.place())
    return best


def masses_of(rows: Rows, best: Tensor, temperature: Tensor) -> Tensor:
    """int64 [rows, blocks]: the sums of weights; greedy sequences' stay unwritten."""
    masses = rows.parts()
    launch(
        block_mass, rows.grid, CONFIG,
        best=best, masses=masses, temperature=temperature, **rows.place(), **rows.blocks,
    )  # fmt: skip
    return masses


def first_largest(rows: Rows, best: Tensor, tokens: Tensor) -> Tensor:
    """`tokens` with every row's first largest logit."""
    launch(
        take_best, (rows.num_rows,), CONFIG,
        best=best, tokens=tokens, num_blocks=rows.num_blocks, **rows.blocks,
    )  # fmt: skip
    return tokens


def tokens_for(out: Tensor | None, num_rows: int, device: torch.device) -> Tensor:
    """`out` if a kernel can write it, or int64 [num_rows] to be copied to it.

    Raises ValueError if `out` is of another shape.
    """
    if out is not None and out.shape != (num_rows,):
        raise ValueError(f"out is {list(out.shape)}; it must be {[num_rows]}, one token a row")
    if out is not None and out.dtype is torch.int64 and out.is_contiguous():
        return out
    return torch.empty(num_rows, dtype=torch.int64, device=device)


def delivered(tokens: Tensor, out: Tensor | None) -> Tensor:
    return tokens if out is None or tokens is out else out.copy_(tokens)


def _packed(logits: Tensor) -> Tensor:
    vocab_size = logits.shape[-1]
    if not 0 < vocab_size <= VOCAB_SIZE_MAX:
        raise ValueError(
            f"logits of {vocab_size} tokens cannot be sampled; 1 to {VOCAB_SIZE_MAX} can"
        )
    return logits if logits.stride(-1) == 1 or vocab_size == 1 else logits.contiguous()
