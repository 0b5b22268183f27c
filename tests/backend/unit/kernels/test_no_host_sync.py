"""The guard itself, and every reference op under it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

from kernels.dispatch import REFERENCE, select
from kernels.reference.linear_fp8 import quantize_fp8
from kernels.reference.linear_int8 import is_exact_on_cpu, quantize_int8
from kernels.reference.linear_weight_only import quantize_int4
from tests.support.no_host_sync import HostSync, no_host_sync

X = torch.arange(6.0)


def _write(x: Tensor, mask: Tensor) -> None:
    x.clone()[mask] = 1.0


BREACHES: dict[str, Callable[[], object]] = {
    "item": lambda: X[0].item(),
    "float": lambda: float(X[1]),
    "index": lambda: [1, 2, 3][X.long()[1]],
    "if": lambda: 1 if X[0] > 0 else 2,
    "tolist": lambda: X.tolist(),
    "numpy": lambda: X.numpy(),
    "equal": lambda: torch.equal(X, X),
    "nonzero": lambda: X.nonzero(),
    "where of one": lambda: torch.where(X > 1),
    "read by mask": lambda: X[X > 1],
    "write by mask": lambda: _write(X, X > 1),
    "masked_select": lambda: X.masked_select(X > 1),
    "unique": lambda: X.unique(),
    "repeat_interleave": lambda: X.repeat_interleave(X.long()),
    "resize": lambda: X.clone().resize_(12),
}


@pytest.mark.parametrize("breach", BREACHES)
def test_reading_values_is_a_breach(breach: str) -> None:
    with pytest.raises(HostSync), no_host_sync():
        BREACHES[breach]()


def test_work_on_the_device_is_no_breach() -> None:
    with no_host_sync():
        x = torch.where(X > 1, X, 0.0)[torch.tensor([0, 3, 3])]
        x.index_put_((torch.tensor([1]),), torch.tensor(5.0))
        result = x.cumsum(0).argmax().expand(3) + X.repeat_interleave(2).sum()

    assert result.shape == (3,)


def test_persistent_tensor_allocated_anew_is_a_breach() -> None:
    held = {"tokens": torch.zeros(4), "lengths": torch.zeros(4)}

    def step() -> None:
        held["tokens"].add_(1)
        held["lengths"] = held["lengths"] + 1

    with pytest.raises(HostSync, match=r"anew: lengths$"), no_host_sync(lambda: held):
        step()
    with no_host_sync(lambda: held):
        held["tokens"].add_(1)


def _given() -> dict[str, tuple[tuple[Any, ...], dict[str, Any]]]:
    """A call of each op that goes through as much of it as one call can."""
    torch.manual_seed(3)
    cache = torch.randn(6, 2, 4, 8), torch.randn(6, 2, 4, 8)
    tables = torch.tensor([[1, 2], [3, 0]], dtype=torch.int32)
    lens = torch.tensor([7, 3], dtype=torch.int32)
    hot = torch.tensor([0.0, 0.7])
    probs = torch.softmax(torch.randn(2, 3, 16), dim=2)
    drafts = torch.randint(0, 16, (2, 3))
    logits = torch.randn(2, 4, 16)
    state = torch.randn(2, 3, 8, 8)
    rows = torch.randn(2, 4, 3, 8)
    small = torch.rand(2, 4, 3)
    return {
        "rms_norm": ((X[None], X), {"eps": 1e-5, "residual": X[None], "is_zero_centred": True}),
        "rope_kv_write": (
            (torch.randn(4, 64), torch.arange(4), torch.randn(9, 8), torch.arange(4), *cache),
            {"num_heads": 4, "rotary_dim": 8, "q_norm": torch.ones(8), "k_norm": torch.ones(8)},
        ),
        "paged_attention": (
            (torch.randn(6, 4, 8), *cache, tables, lens, lens - 3),
            {"query_len": 3, "scale": 0.3, "mask": "bits", "window": 4, "soft_cap": 20.0,
             "mask_bits": torch.tensor([[1, 3, 5], [1, 3, 7]])},
        ),
        "gated_mul": ((torch.randn(2, 8),), {"activation": "gelu_tanh"}),
        "linear_dense": ((torch.randn(3, 16), torch.randn(8, 16)), {"bias": torch.randn(8)}),
        "linear_int8": ((torch.randn(3, 16), quantize_int8(torch.randn(8, 16))), {}),
        "linear_fp8": (
            (torch.randn(3, 16), quantize_fp8(torch.randn(8, 16), torch.float8_e4m3fn)), {},
        ),
        "linear_weight_only": ((torch.randn(3, 64), quantize_int4(torch.randn(8, 64), 32)), {}),
        "dflash_context_kv": (
            (torch.randn(3, 16), torch.randn(2 * 2 * 2 * 8, 16), torch.arange(3),
             torch.randn(9, 8), torch.arange(3)),
            {"k_caches": torch.randn(2, 6, 2, 4, 8), "v_caches": torch.randn(2, 6, 2, 4, 8),
             "rotary_dim": 8, "k_norm": torch.ones(2, 8)},
        ),
        "markov_pick": (
            (logits, torch.tensor([3, 1]), torch.randn(16, 16), quantize_int8(torch.randn(16, 16))),
            {"offsets": torch.zeros(16, dtype=torch.long)},
        ),
        "row_stats": ((logits[0, :2],), {"temperature": hot}),
        "sample": (
            (logits[:, 0], torch.rand(2)),
            {"temperature": hot, "top_k": torch.tensor([0, 5]), "top_p": torch.tensor([1.0, 0.9]),
             "min_p": torch.tensor([0.0, 0.1])},
        ),
        "verify_rejection": (
            (logits, drafts, torch.tensor([3, 2]), torch.rand(2, 3)),
            {"temperature": hot, "draft_probs": probs},
        ),
        "residual_pick": (
            (logits, torch.tensor([3, 1]), torch.rand(2)),
            {"temperature": hot, "draft_ids": drafts, "draft_probs": probs},
        ),
        "moe_matmul": (
            (torch.randn(5, 8), torch.randn(4, 6, 8), torch.randint(0, 4, (5, 2)), small[0, 0:1, :2]
             .expand(5, 2)),
            {},
        ),
        "gated_delta": ((rows, rows, rows, -small, small, state), {"scale": 0.3}),
    }  # fmt: skip


@pytest.mark.parametrize("op", REFERENCE)
def test_reference_op_reads_no_value_on_the_host(op: str) -> None:
    args, kwargs = _given()[op]
    is_exact_on_cpu()  # asked once a process, before anything is captured

    with no_host_sync():
        first = getattr(select("cpu", "reference"), op)(*args, **kwargs)

    # Under a mode torch takes some composite ops apart, and rounds elsewhere.
    torch.testing.assert_close(first, REFERENCE[op](*args, **kwargs))


@pytest.mark.parametrize("op", ["verify_rejection", "residual_pick", "sample", "row_stats"])
def test_greedy_op_reads_no_value_on_the_host(op: str) -> None:
    args, _ = _given()[op]

    with no_host_sync():
        REFERENCE[op](*args)
