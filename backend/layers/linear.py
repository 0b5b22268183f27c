"""Matrix products with weights at rest: in the model's own type, or int8 with a scale a row."""

from __future__ import annotations

from typing import Protocol

from torch import Tensor

from kernels.dispatch import Ops
from kernels.interface import Int8Weight
from kernels.reference.linear_dense import linear_dense


class Linear(Protocol):
    """x [R, K] → [R, N]. Several projections of one input are one weight, stacked by rows."""

    def forward(self, x: Tensor, out: Tensor) -> Tensor:
        """Fills and returns `out`, [R, N]; float32 is allowed whatever the type of x is."""
        ...

    def weight_bytes(self) -> int: ...


class DenseLinear:
    """A weight [N, K] in the type of the activations. Without `ops` torch computes."""

    def __init__(self, weight: Tensor, ops: Ops | None = None) -> None:
        self._weight = weight
        self._linear_dense = linear_dense if ops is None else ops.linear_dense

    def forward(self, x: Tensor, out: Tensor) -> Tensor:
        return self._linear_dense(x, self._weight, out=out)

    def weight_bytes(self) -> int:
        return self._weight.nbytes


class Int8Linear:
    """A weight [N, K] in int8, one scale a row; a row's result is its own, whatever the others."""

    def __init__(self, weight: Int8Weight, ops: Ops) -> None:
        self.weight = weight
        self._linear_int8 = ops.linear_int8

    def forward(self, x: Tensor, out: Tensor) -> Tensor:
        return self._linear_int8(x, self.weight, out=out)

    def weight_bytes(self) -> int:
        return self.weight.qweight.nbytes + self.weight.scale.nbytes
