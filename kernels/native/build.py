"""Compile the C++ sources once on this machine, and keep the library in a cache folder.

The library's name is a hash of everything that decides what is in it: sources, compiler, options
and the processor's features. So a changed machine or version compiles anew, and two processes that
start together end with one and the same file.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import platform
import shutil
import stat
import subprocess
import tempfile
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

from kernels.cache_folder import cache_folder

SOURCES = Path(__file__).parent / "source"
COMPILERS = ("c++", "g++", "clang++")
COMPILERS_AT_ONCE = 2
LIBRARIES_KEPT = 4  # checkouts and compilers that take turns
COMPILE_TIMEOUT_S = 300.0
VERSION_TIMEOUT_S = 20.0

# No contraction: a fused product is written where it is meant, so that a row's result does not
# depend on how the compiler treats the tile it is in. No fast-math: NaN must stay NaN.
OPTIONS = (
    *("-O3", "-std=c++17", "-fPIC", "-pthread", "-w"),
    *("-ffp-contract=off", "-fno-math-errno", "-fvisibility=hidden"),
)


class BuildError(Exception):
    """There is no library, and the message says why."""


def default_cache_folder() -> Path:
    """The platform's own; a caller that reads the environment may give another one."""
    try:
        return cache_folder("native")
    except OSError as error:
        raise BuildError(f"the library cannot be kept: {error}") from error


def find_compiler(compiler: str | None = None) -> str:
    """The path of `compiler`, or of the first usual one that is installed."""
    names = (compiler,) if compiler else COMPILERS
    for name in names:
        found = shutil.which(name)
        if found:
            return found
    raise BuildError(f"no C++ compiler found (looked for {', '.join(names)})")


def library(
    folder: Path | None = None,
    *,
    compiler: str | None = None,
    machine_options: Sequence[str] | None = None,
) -> Path:
    """The compiled library, built now if it is not in the cache yet (a few seconds).

    `machine_options` replaces the options for this processor, such as ("-march=x86-64-v3",).
    Raises BuildError if there is no compiler, or it fails, or the folder cannot be used.
    """
    found = find_compiler(compiler)
    options = (*OPTIONS, *(_machine_options() if machine_options is None else machine_options))
    folder = folder or default_cache_folder()
    target = folder / f"ops-{_key(found, options)}.so"
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        _check_private(folder)
        if not target.exists():
            with _locked(folder / "lock"):
                if not target.exists():
                    _compile(found, options, target)
                    _forget_old(folder)
        os.utime(target)
    except OSError as error:
        raise BuildError(f"the cache folder {folder} cannot be used: {error}") from error
    return target


def _machine_options() -> tuple[str, ...]:
    # Compilers for Arm take the processor as -mcpu; -march=native came late to them.
    is_arm = platform.machine() in ("aarch64", "arm64")
    return ("-mcpu=native",) if is_arm else ("-march=native",)


def _key(compiler: str, options: Sequence[str]) -> str:
    digest = hashlib.sha256()
    for path in sorted(SOURCES.iterdir()):
        digest.update(path.name.encode() + b"\0" + path.read_bytes() + b"\0")
    digest.update("\0".join((compiler, _version(compiler), *options)).encode())
    digest.update(f"{platform.machine()} {platform.system()} {_processor_flags()}".encode())
    return digest.hexdigest()[:24]


def _version(compiler: str) -> str:
    return _run([compiler, "--version"], VERSION_TIMEOUT_S)


def _processor_flags() -> str:
    """What -march=native stands for, without asking the compiler."""
    try:
        described = Path("/proc/cpuinfo").read_text("utf-8", "replace")
    except OSError:
        return platform.processor()
    lines = described.splitlines()
    return next((line for line in lines if line.lower().startswith(("flags", "features"))), "")


def _check_private(folder: Path) -> None:
    """A library that others could have put there is not loaded."""
    found = folder.stat()
    if found.st_uid != os.getuid() or found.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
        raise BuildError(f"{folder} belongs to, or can be written by, other users: chmod 700 it")


@contextmanager
def _locked(path: Path) -> Iterator[None]:
    with path.open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def _compile(compiler: str, options: Sequence[str], target: Path) -> None:
    with tempfile.TemporaryDirectory(dir=target.parent) as work:

        def compile_one(source: Path) -> str:
            compiled = str(Path(work) / f"{source.stem}.o")
            _run([compiler, *options, "-c", str(source), "-o", compiled], COMPILE_TIMEOUT_S)
            return compiled

        with ThreadPoolExecutor(COMPILERS_AT_ONCE) as pool:
            objects = list(pool.map(compile_one, sorted(SOURCES.glob("*.cpp"))))
        built = Path(work) / target.name
        _run([compiler, *options, "-shared", *objects, "-o", str(built)], COMPILE_TIMEOUT_S)
        built.replace(target)


def _forget_old(folder: Path) -> None:
    """Libraries of earlier versions go; a process that has one loaded keeps it."""
    libraries = sorted(folder.glob("ops-*.so"), key=lambda path: path.stat().st_mtime)
    for path in libraries[:-LIBRARIES_KEPT]:
        path.unlink()


def _run(command: Sequence[str], timeout_s: float) -> str:
    try:
        done = subprocess.run(  # noqa: S603 - our own sources, by a compiler of the operator's
            command, capture_output=True, text=True, timeout=timeout_s, check=False
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise BuildError(f"{command[0]} does not run: {error}") from error
    if done.returncode != 0:
        lines = (done.stderr or done.stdout).strip().splitlines()
        first = next((line for line in lines if "error" in line), lines[0] if lines else "")
        raise BuildError(f"{command[0]} failed ({done.returncode}): {first[:300]}")
    return done.stdout
