"""Rotary tables beside transformers' frequencies, for every scaling."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from transformers import LlamaConfig
from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

from backend.config import RopeConfig, RopeScaling
from backend.layers.rotary import (
    POSITIONS_AT_ONCE,
    attention_factor,
    cos_sin_table,
    inverse_frequencies,
)
from backend.models.hf_config import rope_config

CPU = torch.device("cpu")
SCALINGS: dict[str, dict[str, Any]] = {
    "linear": {"rope_type": "linear", "factor": 4.0, "rope_theta": 10000.0},
    "llama3": {
        "rope_type": "llama3",
        "factor": 8.0,
        "low_freq_factor": 1.0,
        "high_freq_factor": 4.0,
        "original_max_position_embeddings": 8192,
        "rope_theta": 500000.0,
    },
    "yarn": {
        "rope_type": "yarn",
        "factor": 4.0,
        "original_max_position_embeddings": 32768,
        "rope_theta": 1000000.0,
    },
    "yarn, its own numbers": {
        "rope_type": "yarn",
        "factor": 2.5,
        "original_max_position_embeddings": 4096,
        "beta_fast": 16.0,
        "beta_slow": 2.0,
        "attention_factor": 1.7,
        "rope_theta": 10000.0,
    },
}


@pytest.mark.parametrize("name", SCALINGS, ids=str)
@pytest.mark.parametrize("head_dim", [64, 128])
def test_scalings_equal_the_published_ones(name: str, head_dim: int) -> None:
    given = SCALINGS[name]
    reference = LlamaConfig(
        head_dim=head_dim, max_position_embeddings=131072, rope_parameters=dict(given)
    )
    expected, factor = ROPE_INIT_FUNCTIONS[given["rope_type"]](reference, CPU)

    rope = rope_config({"rope_parameters": given}, head_dim, 131072)

    assert torch.allclose(expected, inverse_frequencies(rope).float(), rtol=1e-5, atol=0)
    assert attention_factor(rope) == pytest.approx(factor)


def test_the_table_holds_cosines_then_sines() -> None:
    rope = RopeConfig(theta=10000.0, rotary_dim=8)

    table = cos_sin_table(rope, 50, CPU)

    angles = 37 * 10000.0 ** -(torch.arange(0, 8, 2) / 8)
    assert table.shape == (50, 8)
    assert table.dtype == torch.float32
    assert torch.allclose(table[37], torch.cat((angles.cos(), angles.sin())), atol=1e-5)


def test_positions_far_into_the_context_are_exact() -> None:
    rope = RopeConfig(theta=10000.0, rotary_dim=4)
    position = 3 * POSITIONS_AT_ONCE + 1

    table = cos_sin_table(rope, position + 1, CPU)

    angle = torch.tensor(float(position), dtype=torch.float64)
    assert table[-1, 0].item() == pytest.approx(angle.cos().item(), abs=1e-7)
    assert table[-1, 2].item() == pytest.approx(angle.sin().item(), abs=1e-7)


def test_yarn_multiplies_the_table_and_divisors_divide_frequencies() -> None:
    yarn = RopeConfig(
        theta=10000.0,
        rotary_dim=8,
        scaling=RopeScaling.YARN,
        factor=4.0,
        original_context_len=64,
    )
    divided = RopeConfig(theta=10000.0, rotary_dim=8, frequency_divisors=(1.0, 2.0, 4.0, 8.0))
    plain = inverse_frequencies(RopeConfig(theta=10000.0, rotary_dim=8))

    assert cos_sin_table(yarn, 1, CPU)[0, 0].item() == pytest.approx(1.1386294, abs=1e-6)
    assert torch.equal(plain / torch.tensor([1, 2, 4, 8]), inverse_frequencies(divided))
