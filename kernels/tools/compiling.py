"""One launch, compiled for an architecture without a GPU of it."""

from __future__ import annotations

import os
import tempfile
from importlib.metadata import version

from kernels.ops.launching import IS_INTERPRETED, Launch
from kernels.targets import Target, find
from kernels.tools.recipes import Job, launches_of
from kernels.tools.resources import Resources, of_amd, of_nvidia

PRELOAD = ("kernels.tools.preloaded",)


def triton_version() -> str:
    return version("triton")


def check_compiles_here() -> None:
    """Raises RuntimeError where this process cannot compile at all."""
    if IS_INTERPRETED:
        raise RuntimeError(
            "TRITON_INTERPRET=1 is set, so kernels are interpreted here; unset it to compile"
        )


def compile_job(job: Job) -> Resources:
    """For a process that does nothing else: settles triton's environment, with a cache of its own
    that goes with it.
    """
    os.environ["TRITON_DEFAULT_FP_FUSION"] = "1"  # the default today, said so that it stays
    with tempfile.TemporaryDirectory(prefix="looprouter-aot-") as folder:
        os.environ["TRITON_CACHE_DIR"] = folder
        return compiled(launches_of(job.recipe)[job.index], find(job.recipe.arch))


def compiled(launch: Launch, target: Target) -> Resources:
    import triton
    from triton.backends.compiler import GPUTarget
    from triton.compiler import ASTSource

    source = ASTSource(
        launch.kernel,
        signature=dict(launch.signature),
        constexprs=dict(launch.constexprs),
        attrs=dict(launch.attrs),
    )
    gpu = GPUTarget(target.backend, target.gpu_arch, target.warp_size)
    kernel = triton.compile(source, target=gpu, options=dict(launch.options))
    lds_bytes, num_warps = kernel.metadata.shared, kernel.metadata.num_warps
    if target.is_hip:
        return of_amd(kernel.asm["amdgcn"], target, lds_bytes=lds_bytes, num_warps=num_warps)
    return of_nvidia(kernel.asm["ptx"], lds_bytes=lds_bytes, num_warps=num_warps)
