"""Rotary positions: one table of cosines and sines for every position of the context.

RoPE: Su et al. 2021 (arXiv 2104.09864), section 3.2.2. The scalings are those of the published
formulas: position interpolation (arXiv 2306.15595), YaRN (arXiv 2309.00071, sections 3.2 to 3.4)
and the wavelength bands that Llama 3.1 was released with.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from backend.config import RopeConfig, RopeScaling

POSITIONS_AT_ONCE = 16384  # in float64, whatever the context


def cos_sin_table(rope: RopeConfig, context_len: int, device: torch.device) -> Tensor:
    """[context_len, rotary_dim] float32: the cosines of all frequencies, then their sines.

    Computed in float64, so that a position far into the context has no rounded angle.
    """
    frequencies = inverse_frequencies(rope)
    factor = attention_factor(rope)
    half = len(frequencies)
    table = torch.empty(context_len, 2 * half, dtype=torch.float32)
    for start in range(0, context_len, POSITIONS_AT_ONCE):
        part = table[start : start + POSITIONS_AT_ONCE]
        positions = torch.arange(start, start + len(part), dtype=torch.float64)
        angles = torch.outer(positions, frequencies)
        part[:, :half] = angles.cos() * factor
        part[:, half:] = angles.sin() * factor
    return table.to(device)


def inverse_frequencies(rope: RopeConfig) -> Tensor:
    """[rotary_dim / 2] float64: radians a position for each pair, scaling applied."""
    exponents = torch.arange(0, rope.rotary_dim, 2, dtype=torch.float64) / rope.rotary_dim
    plain = rope.theta**-exponents
    match rope.scaling:
        case RopeScaling.NONE:
            scaled = plain
        case RopeScaling.LINEAR:
            scaled = plain / rope.factor
        case RopeScaling.LLAMA3:
            scaled = _llama3(plain, rope)
        case RopeScaling.YARN:
            scaled = _yarn(plain, rope)
    if rope.frequency_divisors:
        scaled = scaled / torch.tensor(rope.frequency_divisors, dtype=torch.float64)
    return scaled


def attention_factor(rope: RopeConfig) -> float:
    """What YaRN multiplies cosines and sines with (its section 3.4); 1 for all others."""
    if rope.scaling is not RopeScaling.YARN:
        return 1.0
    if rope.attention_factor is not None:
        return rope.attention_factor
    return 1.0 if rope.factor <= 1.0 else 0.1 * math.log(rope.factor) + 1.0


def _llama3(plain: Tensor, rope: RopeConfig) -> Tensor:
    """Short wavelengths stay, long ones are divided by `factor`, between them a linear blend."""
    turns = rope.original_context_len * plain / (2 * math.pi)
    low, high = rope.low_frequency_factor, rope.high_frequency_factor
    share_kept = ((turns - low) / (high - low)).clamp(0.0, 1.0)
    return share_kept * plain + (1 - share_kept) * plain / rope.factor


def _yarn(plain: Tensor, rope: RopeConfig) -> Tensor:
    """As `_llama3`, but the blend runs over the pair's index between two numbers of turns."""
    num_pairs = len(plain)
    low = max(math.floor(_pair_with_turns(rope.beta_fast, rope)), 0)
    high = min(math.ceil(_pair_with_turns(rope.beta_slow, rope)), rope.rotary_dim - 1)
    width = max(high - low, 0.001)  # both ends may meet in a tiny model
    index = torch.arange(num_pairs, dtype=torch.float64)
    share_interpolated = ((index - low) / width).clamp(0.0, 1.0)
    return share_interpolated * plain / rope.factor + (1 - share_interpolated) * plain


def _pair_with_turns(num_turns: float, rope: RopeConfig) -> float:
    """Index of the pair that turns `num_turns` times over the original context."""
    wavelength = rope.original_context_len / (num_turns * 2 * math.pi)
    return rope.rotary_dim * math.log(wavelength) / (2 * math.log(rope.theta))
