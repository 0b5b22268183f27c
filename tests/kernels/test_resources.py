"""What a kernel takes of a chip: occupancy counted by hand, figures read from compilers' texts."""

from __future__ import annotations

import pytest

from kernels.targets import BY_ARCH, find
from kernels.tools.occupancy import occupancy
from kernels.tools.resources import of_amd, of_nvidia

KIB = 1024

# arch, VGPRs, SGPRs, LDS bytes, warps → waves a SIMD, and what limits them. By hand:
#   gfx942: 512 registers a lane in eights; 4 SIMDs; 64 KiB in 512 bytes; at most 8 waves a SIMD.
COUNTED = [
    # 78 → 80; 512 // 80 = 6 waves; 16 KiB: 4 workgroups of 4 waves = 16 waves on 4 SIMDs = 4
    ("gfx942", 78, 20, 16 * KIB, 4, 4.0, "LDS"),
    # 141 → 144; 512 // 144 = 3; LDS allows 4
    ("gfx942", 141, 20, 16 * KIB, 4, 3.0, "registers"),
    # 168 → 168; 3 waves; 32 KiB: 2 workgroups
    ("gfx942", 168, 20, 32 * KIB, 4, 2.0, "LDS"),
    # the same on gfx950: 160 KiB hold 32 KiB (26 granules of 1280) 4 times, above 3
    ("gfx950", 168, 20, 32 * KIB, 4, 3.0, "registers"),
    # 40 KiB: 65536 // 40960 = 1 workgroup of 8 waves = 2 a SIMD; 120 registers allow 4 // 2 · 2 = 4
    ("gfx942", 120, 20, 40 * KIB, 8, 2.0, "LDS"),
    # 3 waves by registers hold one workgroup of 8 waves, which takes 2 a SIMD; the third stays idle
    ("gfx942", 168, 20, 0, 8, 2.0, "registers"),
    # 2 waves a workgroup: 233 → 240 → 2 waves · 4 SIMDs / 2 = 4 workgroups; 32 KiB: 2 → 1 a SIMD
    ("gfx942", 233, 20, 32 * KIB, 2, 1.0, "LDS"),
    # one wave a workgroup, 12 KiB: 5 workgroups on 4 SIMDs
    ("gfx942", 30, 20, 12 * KIB, 1, 1.25, "LDS"),
    # few registers: 8 at most, 7 beyond 100 scalar ones
    ("gfx942", 10, 20, 0, 4, 8.0, "both"),
    ("gfx942", 10, 101, 0, 4, 7.0, "registers"),
    # more LDS than there is: it cannot start
    ("gfx942", 64, 20, 65 * KIB, 4, 0.0, "too large"),
    # gfx1201: 1536 registers in 24s; 126 → 144: 10 waves; 2 SIMDs; 16 KiB: 4 · 4 / 2 = 8
    ("gfx1201", 126, 16, 16 * KIB, 4, 8.0, "LDS"),
    ("gfx1201", 126, 16, 0, 4, 10.0, "registers"),
]


@pytest.mark.parametrize(
    ("arch", "vgprs", "sgprs", "lds_bytes", "num_warps", "waves", "limited_by"), COUNTED
)
def test_occupancy_is_what_was_counted_by_hand(
    arch: str,
    vgprs: int,
    sgprs: int,
    lds_bytes: int,
    num_warps: int,
    waves: float,
    limited_by: str,
) -> None:
    found = occupancy(
        find(arch), vgprs=vgprs, sgprs=sgprs, lds_bytes=lds_bytes, num_warps=num_warps
    )

    assert found.waves == waves
    assert found.limited_by == limited_by


AMD_TEXT = """
	buffer_load_dwordx4 v[2:5], v1, s[0:3], 0 offen
	buffer_load_dwordx4 v[6:9], v1, s[0:3], 0 offen
	global_load_dword v1, v[2:3], off
	v_mfma_f32_16x16x16_bf16 v[0:3], v[4:5], v[6:7], v[0:3]
	v_mfma_f32_16x16x16_bf16 v[0:3], v[8:9], v[6:7], v[0:3]
; codeLenInByte = 1908
; ScratchSize: 24
; Occupancy: 3
  - .agpr_count:     8
    .sgpr_count:     20
    .sgpr_spill_count: 2
    .vgpr_count:     150
    .vgpr_spill_count: 6
"""


def test_figures_are_read_from_the_compilers_text() -> None:
    found = of_amd(AMD_TEXT, BY_ARCH["gfx942"], lds_bytes=32 * KIB, num_warps=4)

    assert (found.vgprs, found.agprs, found.sgprs) == (150, 8, 20)
    assert (found.vgpr_spills, found.sgpr_spills, found.scratch_bytes) == (6, 2, 24)
    assert (found.code_bytes, found.compilers_waves) == (1908, 3)
    assert (found.num_buffer_loads, found.num_global_loads) == (2, 1)
    assert found.matrix == ("v_mfma_f32_16x16x16_bf16",)
    assert found.waves is not None
    # 150 → 152 registers: 3 waves; 32 KiB: 2
    assert (found.waves.by_registers, found.waves.by_lds, found.waves.waves) == (3.0, 2.0, 2.0)


@pytest.mark.parametrize(
    "missing", [".vgpr_count", ".vgpr_spill_count", "; ScratchSize", "; codeLenInByte"]
)
def test_figure_that_is_missing_is_an_error_and_not_zero(missing: str) -> None:
    text = "\n".join(line for line in AMD_TEXT.splitlines() if missing not in line)

    with pytest.raises(ValueError, match="has the compiler changed its form"):
        of_amd(text, BY_ARCH["gfx942"], lds_bytes=0, num_warps=4)


def test_text_of_nvidia_tells_the_matrix_instructions_only() -> None:
    text = (
        "wgmma.mma_async.sync.aligned.m64n64k16.f32.bf16.bf16 {%r1}, %rd15, 1;\nmma.sync.aligned.m"
    )

    found = of_nvidia(text, lds_bytes=512, num_warps=4)

    assert found.matrix == ("mma.sync", "wgmma.mma_async.sync")
    assert found.lds_bytes == 512
    assert found.vgprs is None
    assert found.waves is None
