"""What the server of compiling children has loaded before it forks: triton and every op."""

from __future__ import annotations

import triton.compiler

from kernels.cases import table

for _op in table.ops():
    table.function(_op)

COMPILER = triton.compiler
