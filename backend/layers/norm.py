"""RMS norm (Zhang and Sennrich 2019, arXiv 1910.07467), with the residual sum in the same pass."""

from __future__ import annotations

from torch import Tensor

from kernels.dispatch import Ops


class RmsNorm:
    """`weight` [H]. The mean of squares is taken in float32."""

    def __init__(self, weight: Tensor, eps: float, ops: Ops) -> None:
        self.weight = weight
        self.eps = eps
        self._rms_norm = ops.rms_norm

    def forward(self, x: Tensor, out: Tensor) -> None:
        """out [R, H] ← norm(x [R, H])."""
        self._rms_norm(x, self.weight, eps=self.eps, out=out)

    def copy_forward(self, x: Tensor, out: Tensor, copy: Tensor) -> None:
        """As `forward`, and copy [R, H] ← x: an op like any other, so that it can be captured."""
        self._rms_norm(x, self.weight, eps=self.eps, out=out, residual_out=copy)

    def add_forward(self, delta: Tensor, residual: Tensor, out: Tensor) -> None:
        """residual ← residual + delta, then out ← norm(residual); all [R, H]."""
        self._rms_norm(
            delta, self.weight, eps=self.eps, residual=residual, out=out, residual_out=residual
        )
