"""What kernels of several ops share."""

from __future__ import annotations

import triton
import triton.language as tl
from torch import Tensor


@triton.jit
def neighbours_together(program, num_programs, NUM_XCDS: tl.constexpr):
    """The place in the order of work of a program; each place is given once.

    Programs are dealt to the XCDs in turn, each with an L2 cache of its own. So that neighbours in
    the order of work, which share inputs, share a cache, each XCD gets an unbroken run of places.
    """
    xcd = program % NUM_XCDS
    num_longer = num_programs % NUM_XCDS
    return xcd * (num_programs // NUM_XCDS) + tl.minimum(xcd, num_longer) + program // NUM_XCDS


def power_of_two(number: int) -> int:
    """The smallest that is not below `number`; 1 for 0."""
    return 1 << max(0, number - 1).bit_length()


def head_stride(scale: Tensor | None) -> int:
    """Of a cache's scales [] or [KH]: from one key head's to the next one's."""
    return 0 if scale is None or scale.numel() == 1 else 1
