"""How much memory a process of this machine has, and had at most since it was last asked."""

from __future__ import annotations

from pathlib import Path

KIBIBYTE = 1024


def _status(pid: int, name: str) -> int:
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith(f"{name}:"):
            return int(line.split()[1]) * KIBIBYTE
    raise AssertionError(f"/proc/{pid}/status has no {name}")


def resident_bytes(pid: int) -> int:
    return _status(pid, "VmRSS")


def peak_bytes(pid: int) -> int:
    """Since `reset_peak`, else since the process began."""
    return _status(pid, "VmHWM")


def reset_peak(pid: int) -> None:
    Path(f"/proc/{pid}/clear_refs").write_text("5")
