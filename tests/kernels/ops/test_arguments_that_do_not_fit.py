"""What a kernel would read or write beside its tensors is refused before it starts."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor

from kernels.interface import Int8Weight
from kernels.ops.gated_mul import gated_mul
from kernels.ops.linear_fp8 import linear_fp8, pack_fp8
from kernels.ops.linear_int8 import linear_int8, pack_int8
from kernels.ops.linear_weight_only import linear_weight_only
from kernels.ops.markov_pick import markov_pick
from kernels.ops.moe_matmul import moe_matmul
from kernels.ops.residual_pick import residual_pick
from kernels.ops.rms_norm import rms_norm
from kernels.ops.sample import sample
from kernels.ops.verify_rejection import verify_rejection
from kernels.reference.linear_weight_only import quantize_int4

X, WEIGHT = torch.ones(3, 40), torch.ones(9, 40)
NARROW = torch.ones(3, 39)
INT8 = pack_int8(WEIGHT)
IDS, FACTORS = torch.zeros(3, 2, dtype=torch.int64), torch.ones(3, 2)
LOGITS, JUDGED = torch.ones(3, 50), torch.ones(3, 3, 50)
ONES, DRAFTS = torch.ones(3), torch.zeros(3, 2, dtype=torch.int64)


def every_second(weight: Int8Weight) -> Int8Weight:
    return replace(weight, qweight=torch.ones(9, 80, dtype=torch.int8)[:, ::2])


REFUSED: dict[str, tuple[Callable[[], Any], str]] = {
    "norm, out": (lambda: rms_norm(X, ONES, eps=1e-6, out=NARROW), "must hold 120 values"),
    "norm, sum": (lambda: rms_norm(X, ONES, eps=1e-6, residual_out=X[:2]), "in rows of 40"),
    "gate, out": (lambda: gated_mul(X, out=X), "must hold 60 values in rows of 20"),
    "int8, x": (lambda: linear_int8(NARROW, INT8), "the weight has 40 inputs"),
    "int8, weight": (lambda: linear_int8(X, every_second(INT8)), "make it contiguous once"),
    "fp8, x": (lambda: linear_fp8(NARROW, pack_fp8(WEIGHT)), "the weight has 40 inputs"),
    "weight only, x": (lambda: linear_weight_only(NARROW, INT8), "the weight has 40 inputs"),
    "weight only, weight": (
        lambda: linear_weight_only(X, every_second(INT8)),
        "make it contiguous once",
    ),
    "int4, x": (
        lambda: linear_weight_only(NARROW, quantize_int4(WEIGHT, 32)),
        "the weight has 40 inputs",
    ),
    "experts, x": (
        lambda: moe_matmul(NARROW, WEIGHT[None], IDS, FACTORS),
        "the weight has 40 inputs",
    ),
    "experts, choices": (
        lambda: moe_matmul(X[:2], WEIGHT[None], IDS, FACTORS),
        "do not fit each other",
    ),
    "markov, table": (
        lambda: markov_pick(JUDGED[..., :9], IDS[:, 0], NARROW, INT8),
        "the weight has 40 inputs",
    ),
    "markov, logits": (
        lambda: markov_pick(JUDGED, IDS[:, 0], X, INT8),
        "a weight of 9 outputs do not fit",
    ),
    "sample, out": (lambda: sample(LOGITS, ONES, out=DRAFTS[:2, 0]), "it must be .3., one token"),
    "verify, out": (
        lambda: verify_rejection(JUDGED, DRAFTS, IDS[:, 0], FACTORS, out=IDS[:2, 0]),
        "it must be .3., one token a row",
    ),
    "pick, out": (
        lambda: residual_pick(JUDGED, IDS[:, 0], ONES, out=IDS),
        "it must be .3., one token a row",
    ),
}  # fmt: skip


@pytest.mark.parametrize("called", REFUSED)
def test_arguments_that_do_not_fit_are_refused(called: str) -> None:
    call, message = REFUSED[called]

    with pytest.raises(ValueError, match=message):
        call()


def test_the_same_arguments_that_fit_are_taken() -> None:
    """So that what is refused is refused for the one thing that is wrong with it."""
    results: list[Tensor] = [
        rms_norm(X, torch.ones(40), eps=1e-6, out=torch.empty(3, 40))[0],
        gated_mul(X, out=torch.empty(3, 20)),
        linear_int8(X, INT8),
        linear_fp8(X, pack_fp8(WEIGHT)),
        linear_weight_only(X, INT8),
        linear_weight_only(X, quantize_int4(WEIGHT, 32)),
        moe_matmul(X, WEIGHT[None], IDS, FACTORS),
        markov_pick(JUDGED[..., :9], IDS[:, 0], X, INT8),
        sample(LOGITS, ONES * 0.5, out=IDS[:, 0].clone()),
        verify_rejection(JUDGED, DRAFTS, IDS[:, 0], FACTORS, out=IDS[:, 0].clone()),
        residual_pick(JUDGED, IDS[:, 0], ONES, out=IDS[:, 0].clone()),
    ]

    assert all(bool(each.double().isfinite().all()) for each in results)
