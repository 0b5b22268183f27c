"""The interpreter of these tests: as triton's own, with less done twice."""

from __future__ import annotations

import pytest
import torch
import triton
import triton.language as tl
from triton.runtime import interpreter

OWN_RANGE = tl.range


@triton.jit
def doubled(x):
    return tl.sum(x, 0) * 2


@triton.jit
def sums(given, out, N: tl.constexpr):
    total = 0.0
    for begin in range(0, N, 8):
        total += doubled(tl.load(given + begin + tl.arange(0, 8)))
    tl.store(out, total)


def test_calls_in_a_kernel_lay_nothing_over_the_language_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    laid_over: list[object] = []
    builtin = interpreter._patch_builtin

    def counted(lang: object, *rest: object) -> None:
        laid_over.append(lang)
        builtin(lang, *rest)

    monkeypatch.setattr(interpreter, "_patch_builtin", counted)
    out, times = torch.ones(1), []
    for size in (8, 8, 80):  # the first launch of all looks at functions not yet rewritten
        laid_over.clear()
        sums[(1,)](torch.arange(float(size)), out, N=size)
        times.append(len(laid_over))

    assert out.item() == 2 * 3160.0
    assert times[2] == times[1] > 0
    # What a launch lays over the language it takes off again.
    assert tl.range is OWN_RANGE
