"""A linear with int8 weights and int8 activations whose rows do not depend on each other.

Torch's own dynamic quantization has one activation scale a tensor, so that one outlier changes all
rows. Here every row has its own, and products are summed as integers, which no order can change.

An activation is two int8 digits, the second for what rounding to the first left. With one digit the
perplexity of SmolLM2-135M rises by 3.0 %, with two by 0.6 %, which is the weights' own rounding
(2,048 tokens, beside float32). The second costs no memory traffic: weights are read once for both.

Three ways to the sums were measured (torch 2.13, one thread of a Xeon with VNNI, microseconds of
the product alone at 1, 5, 16 and 64 rows; K, N in brackets):

                      _int_mm                oneDNN qlinear         FBGEMM linear_dynamic
    (576, 960)        8    31    45    119   35    41    54    132  22    25    48    161
    (576, 3072)       32   107   158   425   76    84    149   420  51    72    147   488
    (1536, 576)       12   55    75    184   39    43    71    190  36    48    68    234
    (576, 49152)      1116 2817  5664  10k   1317  1533  2700  11k  1070  1195  2174  -
    (4096, 4096)      604  2518  2910  5267  742   783   1295  4281 not measured

FBGEMM needs rows divided by their absmax and two columns more (+1 and -1 with zero weights) to hold
its scale still, which costs more small calls than it saves, and its tensor types are deprecated. So
`_int_mm`, which wants only the plain weight, takes one row and small weights; oneDNN, which wants
a packed copy, takes several rows of larger ones.

On processors without VNNI one or both add pairs of products in 16 bits, which saturate: wrong, and
not by a little (an AMD Zen 3's `_int_mm` is right, its oneDNN is not). Each is asked by a probe.
Where oneDNN is wrong weights stay plain; where `_int_mm` is, they go in two parts small enough to
be exact.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache

import torch
from torch import Tensor
from torch.nn import functional

from kernels.interface import Int8Weight

QMAX = 127.0
ZERO_POINT = 128  # of the unsigned activations that oneDNN takes
PACKED_ELEMENTS_MIN = 800_000  # oneDNN is the faster one from here on, for several rows
PLAIN_ELEMENTS_MAX = 4_000_000  # above, only the packed form is kept: memory before 20 % at one row
ROWS_AT_ONCE = 4096  # bounds the float32 copy while a weight is quantized
LOW_DIGITS = 2.0 * QMAX  # steps of the second digit in one of the first: half a step is its largest
GPU_ROWS_MIN = 32  # torch._int_mm refuses 16 and fewer there

# Added to a float32 of small magnitude, it leaves the nearest integer (halves to even) in the low
# bits. NaN, of 0 / 0, leaves 0 there.
ROUNDING = 1.5 * 2.0**23


@dataclass(frozen=True, slots=True)
class _OneDnnWeight:
    prepacked: Tensor
    ones: Tensor  # [N] float32: oneDNN's own scale, so that the sums come out as they are
    zeros: Tensor  # [N] int64

    @staticmethod
    def of(qweight: Tensor) -> _OneDnnWeight:
        num_out, num_in = qweight.shape
        return _OneDnnWeight(
            prepacked=torch.ops.onednn.qlinear_prepack(qweight, [1, num_in]),
            ones=torch.ones(num_out),
            zeros=torch.zeros(num_out, dtype=torch.int64),
        )


@dataclass(frozen=True, slots=True)
class _SplitWeight:
    """qweight = 2 · high + low. Two products of a byte and -64..63 fit into 16 bits."""

    high_low: Tensor  # [2 N, K] int8

    @staticmethod
    def of(qweight: Tensor) -> _SplitWeight:
        return _SplitWeight(torch.cat((qweight >> 1, qweight & 1)))


def quantize_int8(weight: Tensor) -> Int8Weight:
    """A weight [N, K] of any float dtype: symmetric, scale = absmax / 127 an output row."""
    qweight = torch.empty(weight.shape, dtype=torch.int8, device=weight.device)
    scale = torch.empty(weight.shape[0], dtype=torch.float32, device=weight.device)
    for begin in range(0, weight.shape[0], ROWS_AT_ONCE):
        part = slice(begin, begin + ROWS_AT_ONCE)
        values = weight[part].detach().float()
        scale[part] = values.abs().amax(dim=1).clamp_min(torch.finfo(torch.float32).tiny) / QMAX
        qweight[part] = torch.round(values / scale[part, None]).clamp_(-QMAX, QMAX)
    return Int8Weight(qweight=qweight, scale=scale)


def pack_int8(weight: Tensor) -> Int8Weight:
    """`quantize_int8`, with the packed form that this `linear_int8` wants for larger weights.

    Where only the packed form is kept, `qweight` has its shape and dtype on the meta device.
    """
    quantized = quantize_int8(weight)
    qweight, scale = quantized.qweight, quantized.scale
    if weight.device.type != "cpu" or weight.shape[1] == 1:
        return quantized
    if not is_exact_on_cpu():
        split = _SplitWeight.of(qweight)
        return Int8Weight(qweight=qweight.to("meta"), scale=scale, packed=split)
    if weight.numel() < PACKED_ELEMENTS_MIN or not is_packed_exact_on_cpu():
        return quantized
    packed = _OneDnnWeight.of(qweight)
    if weight.numel() > PLAIN_ELEMENTS_MAX:
        qweight = qweight.to("meta")
    return Int8Weight(qweight=qweight, scale=scale, packed=packed)


@cache
def is_exact_on_cpu() -> bool:
    """Whether this processor's `_int_mm` holds the largest sums. Asked of it once."""
    return _holds_largest(lambda values, qweight: torch._int_mm(values, qweight.t()))


@cache
def is_packed_exact_on_cpu() -> bool:
    """Whether its oneDNN, which takes another kernel, holds them. Asked of it once."""
    return _holds_largest(
        lambda values, qweight: _packed_sums(values.float(), _OneDnnWeight.of(qweight))
    )


def _holds_largest(product: Callable[[Tensor, Tensor], Tensor]) -> bool:
    largest = torch.full((GPU_ROWS_MIN, GPU_ROWS_MIN * 2), int(QMAX), dtype=torch.int8)
    products = [product(largest[:rows], largest) for rows in (1, GPU_ROWS_MIN)]
    return all(bool((each == QMAX * QMAX * largest.shape[1]).all()) for each in products)


def linear_int8(
    x: Tensor,  # [R, K]
    weight: Int8Weight,  # [N, K]
    *,
    bias: Tensor | None = None,  # [N]
    out: Tensor | None = None,
) -> Tensor:
    """[R, N] in the dtype of `out`, or of x.

    With the row's own s = absmax / 127: high = round(x / s), low = round((x / s - high) · 254);
    result = (Σ low · qweight / 254 + Σ high · qweight) · s · scale + bias, in float32 and in that
    order. A row's result is the same alone or among others, to the bit, also where its neighbours
    choose another kernel. Raises ValueError if `weight` was packed by another implementation that
    kept no plain form.
    """
    values = x.float()
    row_scale = values.abs().amax(dim=1, keepdim=True).div_(QMAX)
    steps = values / row_scale
    high = torch.round(steps)
    low = (steps - high).mul_(LOW_DIGITS)
    high_sums, low_sums = _sums(torch.cat((high, low)), weight).chunk(2)
    result = (low_sums * (1.0 / LOW_DIGITS) + high_sums).mul_(row_scale).mul_(weight.scale)
    if bias is not None:
        result += bias
    return result.to(x.dtype) if out is None else out.copy_(result)


def _sums(values: Tensor, weight: Int8Weight) -> Tensor:
    """Σ round(value) · qweight as float32 [R, N]."""
    qweight, packed = weight.qweight, weight.packed
    if isinstance(packed, _OneDnnWeight) and (values.shape[0] > 1 or qweight.is_meta):
        return _packed_sums(values, packed)
    quantized = _rounded(values, ROUNDING).to(torch.int8)
    if isinstance(packed, _SplitWeight):
        return _split_sums(quantized, packed)
    if qweight.is_meta:
        raise ValueError(
            "this weight is packed for another implementation; pack it with the pack_int8 of the "
            "Ops whose linear_int8 is called"
        )
    if values.device.type != "cpu":
        num_missing = max(0, GPU_ROWS_MIN - values.shape[0])
        padded = functional.pad(quantized, (0, 0, 0, num_missing))
        return torch._int_mm(padded, qweight.t())[: values.shape[0]].float()
    if qweight.shape[1] == 1:  # torch 2.13's _int_mm gives wrong sums for a single column
        return quantized.float() * qweight.t().float()
    if not is_exact_on_cpu():
        return _split_sums(quantized, _SplitWeight.of(qweight))
    return torch._int_mm(quantized, qweight.t()).float()


def _packed_sums(values: Tensor, packed: _OneDnnWeight) -> Tensor:
    quantized = _rounded(values, ROUNDING + ZERO_POINT).to(torch.uint8)
    sums: Tensor = torch.ops.onednn.qlinear_pointwise(
        *(quantized, 1.0, ZERO_POINT),
        *(packed.prepacked, packed.ones, packed.zeros, None),
        *(1.0, 0, torch.float32, "none", [], ""),
    )
    return sums


def _split_sums(quantized: Tensor, split: _SplitWeight) -> Tensor:
    high, low = torch._int_mm(quantized, split.high_low.t()).chunk(2, dim=1)
    return (high * 2 + low).float()


def _rounded(values: Tensor, rounding: float) -> Tensor:
    """int32 whose low byte is round(values) plus what `rounding` adds."""
    return (values + rounding).view(torch.int32)
