"""The gated feed-forward block (SwiGLU; Shazeer 2020, arXiv 2002.05202)."""

from __future__ import annotations

from backend.layers.linear import Linear
from backend.layers.workspace import Activations
from kernels.dispatch import Ops
from kernels.interface import Activation


class GatedMlp:
    """`gate_up` [2 I, H]: the gate's rows first; `down` [H, I]."""

    def __init__(
        self, ops: Ops, *, gate_up: Linear, down: Linear, activation: Activation = "silu"
    ) -> None:
        self._gated_mul = ops.gated_mul
        self._gate_up = gate_up
        self._down = down
        self._activation = activation

    def forward(self, given: Activations) -> None:
        """delta ← down(act(gate(normed)) · up(normed))."""
        self._gate_up.forward(given.normed, given.gate_up)
        self._gated_mul(given.gate_up, activation=self._activation, out=given.gated)
        self._down.forward(given.gated, given.delta)
