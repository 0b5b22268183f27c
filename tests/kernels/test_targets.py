"""The table of GPUs: what is asked of each entry, and the refusal of others."""

from __future__ import annotations

import pytest
import torch

from kernels.targets import BY_ARCH, TARGETS, Target, find


def test_targets_are_those_that_are_promised() -> None:
    assert {target.arch for target in TARGETS if not target.is_compile_only} == {"gfx942", "gfx950"}
    assert {target.arch for target in TARGETS if target.is_compile_only} == {
        *("gfx90a", "gfx1201", "sm_90"),
    }
    assert len(BY_ARCH) == len(TARGETS)


@pytest.mark.parametrize("target", TARGETS, ids=lambda target: target.arch)
def test_every_target_is_whole(target: Target) -> None:
    assert {"bf16", "fp16", "int8", "fp32"} <= set(target.peaks)
    assert ("fp8" in target.peaks) == (target.fp8_dtype is not None)
    assert target.peaks["fp32"] < target.peaks["bf16"]
    assert target.lds_bytes >= 64 * 1024
    assert target.gpu_arch == (target.arch if target.is_hip else int(target.arch[3:]))


def test_fp8_of_each_generation_is_its_own() -> None:
    assert find("gfx942").fp8_dtype is torch.float8_e4m3fnuz
    assert find("gfx950").fp8_dtype is torch.float8_e4m3fn
    assert find("gfx90a").fp8_dtype is None


def test_unknown_target_is_refused_with_the_names_there_are() -> None:
    with pytest.raises(ValueError, match="no target 'gfx1100'; use one of gfx942, gfx950"):
        find("gfx1100")
