"""What kernels of several ops share."""

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def neighbours_together(program, num_programs, NUM_XCDS: tl.constexpr):
    """The place in the order of work of a program; each place is given once.

    Programs are dealt to the XCDs in turn, each with an L2 cache of its own. So that neighbours in
    the order of work, which share inputs, share a cache, each XCD gets an unbroken run of places.
    """
    xcd = program % NUM_XCDS
    num_longer = num_programs % NUM_XCDS
    return xcd * (num_programs // NUM_XCDS) + tl.minimum(xcd, num_longer) + program // NUM_XCDS
