"""What the server of compiling children has loaded before it forks: triton, and every op.

Recording each main case once loads as well what torch loads at a first use of tensors on "meta",
and triton's own key, a digest of all its files, is kept once computed: seconds for each child
otherwise. What cannot be recorded is told by who asked for it.
"""

from __future__ import annotations

import triton.compiler
from triton.runtime.cache import triton_key

from kernels.tools.recipes import plan, recipes

COMPILER = triton.compiler
KEY = triton_key()
RECORDED = plan(recipes(["gfx942"], is_main_only=True))
