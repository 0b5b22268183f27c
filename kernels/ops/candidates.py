"""What `python -m kernels tune` tries instead of an op's defaults: a few values, one step away.

AMD's practice bounds them: one or two stages, `waves_per_eu` 0 or 2, 4 or 8 warps to a wide tile,
the matrix unit's 16x16 tile, a power of two everywhere. Each one here compiles for gfx942 and
gfx950 within the budgets (`make aot ARGS=--candidates`): no spill, no scratch, LDS that fits.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from kernels.ops.configs import Question, Values


@dataclass(frozen=True, slots=True)
class Candidate:
    """`values` over the default, where the default's `only` values are among those named."""

    values: Values
    only: Mapping[str, Sequence[int]] = field(default_factory=dict)

    def suits(self, default: Values) -> bool:
        """Whether the question has these values, is one of `only`, and would change at all."""
        return (
            set(self.values) <= set(default)
            and all(default.get(name) in those for name, those in self.only.items())
            and any(default[name] != value for name, value in self.values.items())
        )


_FEW_ROWS = {"block_m": (16, 32)}
_MATMUL = (
    Candidate({"num_stages": 1}),
    Candidate({"waves_per_eu": 2}),
    Candidate({"block_n": 32}, _FEW_ROWS),
    Candidate({"block_n": 128, "num_warps": 8}, _FEW_ROWS),
    Candidate({"num_warps": 8}, {"num_warps": (4,)}),
    Candidate({"block_m": 128, "block_n": 64, "num_warps": 8}, {"block_m": (64, 128)}),
    # Of a weight's sums over K.
    Candidate({"num_parts": 1}),
    Candidate({"num_parts": 2}),
    Candidate({"num_parts": 4}),
    Candidate({"num_parts": 8}),
)
# int4 unpacked to few rows spills with more waves asked for, small groups with more of them there.
_WEIGHT_ONLY = (
    *(each for each in _MATMUL if set(each.values) not in ({"waves_per_eu"}, {"num_warps"})),
    Candidate({"waves_per_eu": 2}, {"block_m": (32, 64, 128)}),
    Candidate({"num_warps": 8}, {"num_warps": (4,), "block_m": (32, 64)}),
)
CANDIDATES: Mapping[str, Sequence[Candidate]] = {
    "rms_norm": (
        Candidate({"num_warps": 2}),
        Candidate({"num_warps": 8}),
        Candidate({"rows": 4}, {"rows": (16,)}),
        Candidate({"rows": 2}, {"rows": (1,)}),
    ),
    "gated_mul": (
        Candidate({"block": 512}),
        Candidate({"block": 2048}),
        Candidate({"block": 2048, "num_warps": 8}),
        Candidate({"num_warps": 2}),
    ),
    "paged_attention": (
        Candidate({"num_stages": 1}),
        Candidate({"num_stages": 2}, {"block_m": (16,)}),
        # With 32 rows and fp8 keys two waves a SIMD are left, with a tile of 64 and more rows too.
        Candidate({"waves_per_eu": 2}, {"block_m": (16, 64, 128)}),
        Candidate({"tile": 16}),
        Candidate({"tile": 32}),
        Candidate({"tile": 64, "num_stages": 1}, {"block_m": (16,)}),
        Candidate({"num_warps": 8}),
    ),
    "dflash_context_kv": (
        Candidate({"num_stages": 1}),
        Candidate({"waves_per_eu": 2}),
        Candidate({"block_k": 32}),
        Candidate({"block_k": 128}, {"block_m": (16, 128)}),  # heads of 256 leave no LDS for it
        Candidate({"block_m": 64, "num_warps": 4}, {"block_m": (128,)}),
    ),
    "linear_int8": _MATMUL,
    "linear_fp8": _MATMUL,
    "linear_weight_only": _WEIGHT_ONLY,
    "moe_matmul": (*_MATMUL, Candidate({"block_k": 64}), Candidate({"block_k": 128})),
    "markov_pick": (
        Candidate({"num_stages": 1}),
        Candidate({"waves_per_eu": 2}),
        Candidate({"block_n": 64}),
        Candidate({"block_k": 64}),
        Candidate({"num_warps": 4}, _FEW_ROWS),
    ),
    "gated_delta": (
        Candidate({"width": 16}),
        Candidate({"width": 64}),
        Candidate({"part": 32}),
        Candidate({"num_warps": 8}),
        Candidate({"num_warps": 2, "width": 16}),
        Candidate({"waves_per_eu": 2}),
    ),
}


def candidates(question: Question) -> list[Values]:
    """In the order of the table, each once; none for an op that has no values to choose."""
    found: list[Values] = []
    for candidate in CANDIDATES.get(question.op, ()):
        changed = {
            name: value
            for name, value in candidate.values.items()
            if question.default.get(name) != value
        }
        if candidate.suits(question.default) and changed not in found:
            found.append(changed)
    return found
