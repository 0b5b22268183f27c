"""Which implementation serves each op: chosen once, in one place, op by op.

"reference" is torch and is there for every op. "native" (compiled C++, for CPUs) and "triton" (for
GPUs) may offer a part of the table, or not load at all; the reference serves what they leave.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, replace
from importlib import import_module
from importlib.util import find_spec
from typing import Any, cast

from torch import Tensor

from kernels import interface, specs
from kernels.interface import Int8Weight
from kernels.ops.graphs import Graphs
from kernels.ops.launching import IS_INTERPRETED
from kernels.reference.dflash_context_kv import dflash_context_kv
from kernels.reference.gated_delta import gated_delta
from kernels.reference.gated_mul import gated_mul
from kernels.reference.linear_dense import linear_dense
from kernels.reference.linear_fp8 import linear_fp8
from kernels.reference.linear_int8 import linear_int8, pack_int8
from kernels.reference.linear_weight_only import linear_weight_only
from kernels.reference.markov_pick import markov_pick
from kernels.reference.moe_matmul import moe_matmul
from kernels.reference.paged_attention import paged_attention
from kernels.reference.residual_pick import residual_pick
from kernels.reference.rms_norm import rms_norm
from kernels.reference.rope_kv_write import rope_kv_write
from kernels.reference.row_stats import row_stats
from kernels.reference.sample import sample
from kernels.reference.verify_rejection import verify_rejection

# "triton-graphs": the same ops, and steps repeated as graphs. By name only: no GPU has run it yet.
GRAPHS = "triton-graphs"
IMPLEMENTATIONS = ("auto", "reference", "native", "triton", GRAPHS)
# A module of these has `load() -> Mapping[str, Callable] | None`: op names, `pack_int8` beside
# `linear_int8`, perhaps `capture`; None where it cannot work (no compiler, no device).
MODULES = {"native": "kernels.native", "triton": "kernels.ops"}

REFERENCE: Mapping[str, Callable[..., Any]] = {
    "rms_norm": rms_norm,
    "rope_kv_write": rope_kv_write,
    "paged_attention": paged_attention,
    "dflash_context_kv": dflash_context_kv,
    "gated_mul": gated_mul,
    "linear_dense": linear_dense,
    "linear_int8": linear_int8,
    "linear_fp8": linear_fp8,
    "linear_weight_only": linear_weight_only,
    "row_stats": row_stats,
    "sample": sample,
    "verify_rejection": verify_rejection,
    "residual_pick": residual_pick,
    "markov_pick": markov_pick,
    "moe_matmul": moe_matmul,
    "gated_delta": gated_delta,
}


def do_only(work: Callable[[], None]) -> None:
    """The `capture` of implementations that cannot repeat."""
    work()


@dataclass(frozen=True, slots=True)
class Ops:
    """One callable an op. `names` tells which implementation serves it."""

    rms_norm: interface.RmsNorm
    rope_kv_write: interface.RopeKvWrite
    paged_attention: interface.PagedAttention
    dflash_context_kv: interface.DflashContextKv
    gated_mul: interface.GatedMul
    linear_dense: interface.LinearDense
    linear_int8: interface.LinearInt8
    linear_fp8: interface.LinearFp8
    linear_weight_only: interface.LinearWeightOnly
    row_stats: interface.RowStats
    sample: interface.Sample
    verify_rejection: interface.VerifyRejection
    residual_pick: interface.ResidualPick
    markov_pick: interface.MarkovPick
    moe_matmul: interface.MoeMatmul
    gated_delta: interface.GatedDelta
    pack_int8: Callable[[Tensor], Int8Weight]
    names: Mapping[str, str]
    # Does work made of ops once, and gives what repeats it on the same memory, or None. Memory that
    # the work asks for is written anew by whatever is repeated next. The work may be called twice,
    # the second time to be recorded only.
    capture: Callable[[Callable[[], None]], Callable[[], bool] | None] = do_only

    def name_of(self, op: str) -> str:
        """The implementation that serves `op`. Raises ValueError if there is no such op."""
        if op not in self.names:
            raise ValueError(f"there is no op {op!r}; the table has {', '.join(self.names)}")
        return self.names[op]


def select(device: str, implementation: str = "auto", *, withheld: Collection[str] = ()) -> Ops:
    """The ops for a torch device ("cpu", "cuda:0"). "auto" takes the fastest that loads.

    `withheld`: ops that torch serves whatever is offered, as `kernels.doctor` found; with "capture"
    steps are launched op by op. Raises ValueError for an unknown implementation, one that this
    device cannot have, or one that is asked for by name and does not load.
    """
    if implementation not in IMPLEMENTATIONS:
        choices = ", ".join(IMPLEMENTATIONS)
        raise ValueError(f"kernels {implementation!r} are unknown; use one of {choices}")
    wanted = implementation
    is_cpu = device.split(":")[0] == "cpu"
    if wanted == "auto":
        wanted = "native" if is_cpu else "triton"
    if wanted == GRAPHS:
        if is_cpu:
            raise ValueError(f"{GRAPHS} records steps on a GPU, and {device} is none; use auto")
        ops = select(device, "triton", withheld=withheld)
        return ops if "capture" in withheld else replace(ops, capture=Graphs(device).capture)
    if wanted == "reference":
        return build({}, wanted)
    if wanted == "triton" and is_cpu and not IS_INTERPRETED:
        raise ValueError(
            f"triton kernels do not run on {device}: they need a GPU, or for tests the variable "
            "TRITON_INTERPRET=1 before the start; use auto or reference"
        )
    if wanted == "native" and not is_cpu:
        raise ValueError(f"native kernels do not run on {device}; use auto or reference")
    offered = _load(wanted)
    if offered is None and implementation != "auto":
        raise ValueError(f"{wanted} kernels do not load on this machine; use auto or reference")
    return build(offered or {}, wanted, withheld=withheld)


def build(
    offered: Mapping[str, Callable[..., Any]], name: str, *, withheld: Collection[str] = ()
) -> Ops:
    """`offered` ops but the `withheld` ones under `name`, and the reference's for the rest."""
    unknown = sorted(set(offered) - set(specs.BY_NAME) - {"pack_int8", "capture"})
    if unknown:
        raise ValueError(f"{name} kernels offer {', '.join(unknown)}, which kernels.specs lacks")
    if ("linear_int8" in offered) != ("pack_int8" in offered):
        raise ValueError(f"{name} kernels must offer linear_int8 and pack_int8 together")
    left_out = {*withheld, "pack_int8"} if "linear_int8" in withheld else set(withheld)
    offered = {op: function for op, function in offered.items() if op not in left_out}
    chosen = {op: offered.get(op, function) for op, function in REFERENCE.items()}
    pack = cast("Callable[[Tensor], Int8Weight]", offered.get("pack_int8", pack_int8))
    names = {op: name if op in offered else "reference" for op in REFERENCE}
    return Ops(**chosen, pack_int8=pack, names=names, capture=offered.get("capture", do_only))


def _load(name: str) -> Mapping[str, Callable[..., Any]] | None:
    module = MODULES[name]
    if find_spec(module) is None:
        return None
    loaded: Mapping[str, Callable[..., Any]] | None = import_module(module).load()
    return loaded
