"""Memory in huge pages behaves as torch.zeros does, whatever its size."""

from __future__ import annotations

import mmap
from pathlib import Path

import pytest
import torch

from kernels import memory
from kernels.memory import ALIGNMENT, CHUNK_BYTES, zeros

SHAPES = ((0,), (1,), (3, 5), (64, 64), (CHUNK_BYTES // 2 + 1,), (CHUNK_BYTES + 7,))


@pytest.mark.parametrize("dtype", [torch.int8, torch.bfloat16, torch.int64])
@pytest.mark.parametrize("shape", SHAPES)
def test_it_is_zero_and_can_be_written(shape: tuple[int, ...], dtype: torch.dtype) -> None:
    made = zeros(shape, dtype)

    assert made.shape == shape
    assert made.dtype is dtype
    assert made.is_contiguous()
    assert made.numel() == 0 or made.data_ptr() % ALIGNMENT == 0
    assert not made.any()
    assert bool(made.fill_(1).all())


def test_tensors_do_not_overlap() -> None:
    sizes = (*(1, 63, 64, 65, 1 << 20, 5) * 8, CHUNK_BYTES, 1, 1 << 20)
    made = [zeros((size,), torch.uint8) for size in sizes]
    for value, tensor in enumerate(made):
        tensor.fill_(value)

    assert all(bool((tensor == value).all()) for value, tensor in enumerate(made))


def test_a_mapping_goes_with_its_last_tensor() -> None:
    before = _mapped_bytes()
    made = [zeros((CHUNK_BYTES,), torch.uint8) for _ in range(8)]
    assert _mapped_bytes() >= before + 8 * CHUNK_BYTES

    made.clear()

    assert _mapped_bytes() < before + CHUNK_BYTES


def test_a_system_without_huge_pages_has_ordinary_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(mmap, "MADV_HUGEPAGE", raising=False)
    before = memory._rest

    assert not zeros((4096,), torch.int8).any()
    assert memory._rest is before


def _mapped_bytes() -> int:
    pages = int(Path("/proc/self/statm").read_text().split()[0])
    return pages * mmap.PAGESIZE
