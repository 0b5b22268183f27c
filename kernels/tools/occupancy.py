"""How many waves of a kernel a SIMD can hold at once: by registers, by LDS, by its own limit.

The compiler prints a figure too, but knows nothing of the LDS that Triton asks for at the launch.
Rules of allocation: AMD's instruction set manuals (CDNA 3, CDNA 4, RDNA 4) and LLVM's AMDGPU usage
page.
"""

from __future__ import annotations

from dataclasses import dataclass

from kernels.targets import Target

# Registers and LDS are given out in whole granules.
_VGPR_GRANULE = {"gfx1201": 24}
_VGPR_GRANULE_CDNA = 8
_LDS_GRANULE_BYTES = {"gfx950": 1280}
_LDS_GRANULE_BYTES_OTHERS = 512
# A SIMD of CDNA has 800 scalar registers, given out so that more than 100 leave room for 7 waves.
_SGPRS_FOR_EIGHT_WAVES = 100


@dataclass(frozen=True, slots=True)
class Occupancy:
    """Waves a SIMD; a fraction where workgroups do not divide evenly among a unit's SIMDs."""

    waves: float
    by_registers: float
    by_lds: float

    @property
    def limited_by(self) -> str:
        if self.waves == 0:
            return "too large"
        if self.by_registers == self.by_lds:
            return "both"
        return "registers" if self.by_registers < self.by_lds else "LDS"


def occupancy(
    target: Target, *, vgprs: int, sgprs: int, lds_bytes: int, num_warps: int
) -> Occupancy:
    """`vgprs` with accumulation registers, which share one file. A workgroup of `num_warps` waves
    starts only where all of them find room. 0 waves: it cannot start at all.
    """
    granule = _VGPR_GRANULE.get(target.arch, _VGPR_GRANULE_CDNA)
    waves_a_simd = target.waves_a_simd_max
    if vgprs:
        waves_a_simd = min(waves_a_simd, target.vgprs_a_lane // _rounded_up(vgprs, granule))
    if sgprs > _SGPRS_FOR_EIGHT_WAVES and target.warp_size == 64:
        waves_a_simd = min(waves_a_simd, 7)
    groups_by_registers = _groups(waves_a_simd, target.simds_a_cu, num_warps)
    groups_at_most = _groups(target.waves_a_simd_max, target.simds_a_cu, num_warps)
    groups_by_lds = groups_at_most
    if lds_bytes:
        lds_granule = _LDS_GRANULE_BYTES.get(target.arch, _LDS_GRANULE_BYTES_OTHERS)
        given_bytes = _rounded_up(lds_bytes, lds_granule)
        groups_by_lds = min(groups_at_most, target.lds_bytes // given_bytes)
    waves_a_group = num_warps / target.simds_a_cu
    return Occupancy(
        waves=min(groups_by_registers, groups_by_lds) * waves_a_group,
        by_registers=groups_by_registers * waves_a_group,
        by_lds=groups_by_lds * waves_a_group,
    )


def _groups(waves_a_simd: int, num_simds: int, num_warps: int) -> int:
    """Workgroups a compute unit: waves go to the SIMDs in turn, so each takes its share."""
    if num_warps >= num_simds:
        return waves_a_simd // -(-num_warps // num_simds)
    return waves_a_simd * num_simds // num_warps


def _rounded_up(value: int, granule: int) -> int:
    return -(-value // granule) * granule
