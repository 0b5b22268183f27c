"""What a figure rests on: the processor, its memory's speed in the same run, the versions."""

from __future__ import annotations

import importlib.metadata
import os
import platform
import time
from pathlib import Path

import msgspec

SAMPLE_BYTES = 256 * 1024 * 1024
NUM_SAMPLES = 7


class Bandwidth(msgspec.Struct, frozen=True, kw_only=True):
    """Bytes a second of reading memory far larger than a cache: the median and the best."""

    num_threads: int
    median_bytes_per_s: float
    best_bytes_per_s: float
    num_samples: int


class Machine(msgspec.Struct, frozen=True, kw_only=True):
    cpu: str
    num_cores: int  # that this process may use
    memory_bytes: int
    python: str
    torch: str
    system: str


def describe_machine() -> Machine:
    return Machine(
        cpu=cpu_name(),
        num_cores=len(os.sched_getaffinity(0))
        if hasattr(os, "sched_getaffinity")
        else (os.cpu_count() or 1),
        memory_bytes=os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"),
        python=platform.python_version(),
        torch=_version("torch"),
        system=f"{platform.system()} {platform.release()} {platform.machine()}",
    )


def cpu_name() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text("utf-8", "replace").splitlines()
    except OSError:
        lines = []
    for line in lines:
        if line.startswith("model name"):
            return line.partition(":")[2].strip()
    return platform.processor() or platform.machine()


def measure_bandwidth(num_threads: int, size_bytes: int = SAMPLE_BYTES) -> Bandwidth:
    """Sums an array that no cache holds, with so many threads of torch."""
    import torch

    before = torch.get_num_threads()
    torch.set_num_threads(num_threads)
    try:
        values = torch.ones(size_bytes // 4, dtype=torch.float32)
        speeds = []
        for _ in range(NUM_SAMPLES):
            began_s = time.perf_counter()
            values.sum()
            speeds.append(size_bytes / (time.perf_counter() - began_s))
    finally:
        torch.set_num_threads(before)
    speeds.sort()
    return Bandwidth(
        num_threads=num_threads,
        median_bytes_per_s=speeds[NUM_SAMPLES // 2],
        best_bytes_per_s=speeds[-1],
        num_samples=NUM_SAMPLES,
    )


def load_average() -> float:
    """Programs that ran or wanted to, over the last minute: above the cores, somebody waited."""
    return os.getloadavg()[0]


def _version(distribution: str) -> str:
    try:
        return importlib.metadata.version(distribution)
    except importlib.metadata.PackageNotFoundError:
        return "not installed"
