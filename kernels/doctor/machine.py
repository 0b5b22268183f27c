"""What a verdict depends on: the chip, its driver, the libraries, and our own kernels."""

from __future__ import annotations

import platform
from functools import cache
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

import torch

import kernels
from kernels.doctor.shapes import Geometry
from kernels.doctor.verdict import Key
from kernels.ops import launching
from kernels.ops.launching import IS_INTERPRETED
from kernels.tools.sources import digest_of

AMD_DRIVER = Path("/sys/module/amdgpu/version")
NVIDIA_DRIVER = Path("/sys/module/nvidia/version")
# Of this package: what is tried, with what, against what, and by which bounds.
DIGESTED = ("ops", "reference", "cases", "doctor", "tools", "interface.py", "targets.py")
NONE = "none"


def key_of(device: str, geometry: Geometry | None, size: str, dtype: str) -> Key:
    """Of this machine, with these shapes."""
    shapes = f"{size} cases" if geometry is None else f"{geometry.shown} {geometry.digest()}"
    return Key(
        arch=arch_of(device),
        driver=driver_of(device),
        torch=str(torch.__version__),
        triton=_version("triton"),
        version=f"{_version(kernels.__distribution__)}+{sources_digest()}",
        shapes=f"{shapes} {dtype}",
    )


def arch_of(device: str) -> str:
    """`gfx942`, `sm_90`, or what stands in for a GPU."""
    if torch.device(device).type == "cpu":
        return "cpu, interpreted" if IS_INTERPRETED else "cpu"
    return launching.arch_of(device)


def chip_of(device: str) -> str:
    if torch.device(device).type == "cpu":
        return platform.processor() or platform.machine()
    return torch.cuda.get_device_name(device)


def driver_of(device: str) -> str:
    """A driver that comes with the kernel has that one's version."""
    if torch.device(device).type == "cpu":
        return NONE
    name, file = ("amdgpu", AMD_DRIVER) if torch.version.hip else ("nvidia", NVIDIA_DRIVER)
    try:
        return f"{name} {file.read_text().strip()}"
    except OSError:
        return f"{name} of {platform.system()} {platform.release()}"


def host() -> str:
    hip = f", HIP {torch.version.hip}" if torch.version.hip else ""
    system = f"{platform.system()} {platform.release()} {platform.machine()}"
    return f"{system}, Python {platform.python_version()}{hip}"


@cache
def sources_digest() -> str:
    """Kernels differ in one version of the package while they are worked on. Taken once, as this
    process goes on with what it has loaded."""
    return digest_of(Path(kernels.__file__).parent, DIGESTED, (".py", ".json"))


def _version(package: str) -> str:
    try:
        return version(package)
    except PackageNotFoundError:
        return NONE
