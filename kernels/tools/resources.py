"""What a compiled kernel takes of a chip, read from the compiler's own text."""

from __future__ import annotations

import re
from dataclasses import dataclass

from kernels.targets import Target
from kernels.tools.occupancy import Occupancy, occupancy

_MATRIX_AMD = re.compile(r"\bv_(?:mfma|smfmac|wmma|swmmac)_\w+")
_MATRIX_NVIDIA = re.compile(r"\b(?:wgmma\.mma_async|mma\.sync|tcgen05\.mma)[\w.:]*")


@dataclass(frozen=True, slots=True)
class Resources:
    """Counts a wave, bytes a workgroup. What NVIDIA's text does not say is None: compile-only."""

    lds_bytes: int
    matrix: tuple[str, ...]  # the matrix instructions seen, each once
    num_warps: int
    vgprs: int | None = None  # accumulation registers among them
    agprs: int | None = None
    sgprs: int | None = None
    vgpr_spills: int | None = None
    sgpr_spills: int | None = None
    scratch_bytes: int | None = None  # a lane
    code_bytes: int | None = None
    num_buffer_loads: int | None = None
    num_global_loads: int | None = None
    waves: Occupancy | None = None
    compilers_waves: int | None = None  # by registers alone


def of_amd(text: str, target: Target, *, lds_bytes: int, num_warps: int) -> Resources:
    """From an "amdgcn" text and the launch's metadata. Raises ValueError if a figure is missing,
    as after a change of the compiler's comments.
    """
    vgprs = _number(text, r"\.vgpr_count:\s*(\d+)")
    sgprs = _number(text, r"\.sgpr_count:\s*(\d+)")
    has_agprs = ".agpr_count" in text
    return Resources(
        lds_bytes=lds_bytes,
        matrix=tuple(sorted(set(_MATRIX_AMD.findall(text)))),
        num_warps=num_warps,
        vgprs=vgprs,
        agprs=_number(text, r"\.agpr_count:\s*(\d+)") if has_agprs else 0,
        sgprs=sgprs,
        vgpr_spills=_number(text, r"\.vgpr_spill_count:\s*(\d+)"),
        sgpr_spills=_number(text, r"\.sgpr_spill_count:\s*(\d+)"),
        scratch_bytes=_number(text, r"; ScratchSize: (\d+)"),
        code_bytes=_number(text, r"; codeLenInByte = (\d+)"),
        num_buffer_loads=len(re.findall(r"\bbuffer_load_\w+", text)),
        num_global_loads=len(re.findall(r"\bglobal_load_\w+", text)),
        waves=occupancy(target, vgprs=vgprs, sgprs=sgprs, lds_bytes=lds_bytes, num_warps=num_warps),
        compilers_waves=_number(text, r"; Occupancy: (\d+)"),
    )


def of_nvidia(text: str, *, lds_bytes: int, num_warps: int) -> Resources:
    """From a "ptx" text; its registers are virtual, so they say nothing."""
    matrix = {each.split(".aligned")[0] for each in _MATRIX_NVIDIA.findall(text)}
    return Resources(lds_bytes=lds_bytes, matrix=tuple(sorted(matrix)), num_warps=num_warps)


def _number(text: str, pattern: str) -> int:
    found = re.search(pattern, text)
    if found is None:
        raise ValueError(
            f"the compiled text has no {pattern!r}; has the compiler changed its form?"
        )
    return int(found[1])
