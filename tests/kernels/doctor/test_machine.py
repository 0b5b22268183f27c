"""What a verdict depends on, read off machines that are not at hand."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

import kernels
from kernels.doctor import machine

MI300X = SimpleNamespace(gcnArchName="gfx942:sramecc+:xnack-", warp_size=64)
H100 = SimpleNamespace(major=9, minor=0)


@pytest.fixture
def rocm(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """torch for ROCm on an MI300X; gives the file that holds the driver's version."""
    monkeypatch.setattr(torch.version, "hip", "7.1.25424")
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda device: MI300X)
    monkeypatch.setattr(machine, "AMD_DRIVER", tmp_path / "version")
    return tmp_path / "version"


def test_amds_chip_is_named_without_its_modes(rocm: Path) -> None:
    rocm.write_text("6.14.14\n")
    key = machine.key_of("cuda", None, "main", "bfloat16")

    assert (key.arch, key.driver) == ("gfx942", "amdgpu 6.14.14")
    assert key.shapes == "main cases bfloat16"
    assert key.torch == str(torch.__version__)
    assert "HIP 7.1.25424" in machine.host()


def test_driver_that_comes_with_the_kernel_has_its_version(rocm: Path) -> None:
    assert machine.driver_of("cuda").startswith("amdgpu of ")


def test_nvidias_chip_is_named_by_its_capability(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.version, "hip", None)
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda device: H100)

    assert machine.arch_of("cuda:1") == "sm_90"
    assert machine.driver_of("cuda:1").startswith("nvidia ")


def test_version_changes_with_a_kernel(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    root = tmp_path / "kernels"
    (root / "ops/tuned").mkdir(parents=True)
    for folder in ("reference", "cases", "tools", "native"):
        (root / folder).mkdir()
    for file in ("__init__.py", "interface.py", "targets.py"):
        (root / file).touch()
    monkeypatch.setattr(machine.kernels, "__file__", str(root / "__init__.py"))
    digests = set()
    changes = (
        *("ops/sample.py", "ops/tuned/gfx942.json", "reference/sample.py"),
        # What it was tried with, and how far off it might be.
        *("cases/sample.py", "tools/checking.py", "targets.py"),
    )
    for changed in changes:
        (root / changed).write_text(changed)
        digests.add(machine.sources_digest.__wrapped__())
    (root / "ops/notes.txt").write_text("no kernel")
    (root / "native/build.py").write_text("no GPU's")

    assert len(digests) == len(changes)
    assert machine.sources_digest.__wrapped__() in digests


def test_what_is_digested_exists() -> None:
    root = Path(str(kernels.__file__)).parent

    assert [name for name in machine.DIGESTED if not (root / name).exists()] == []
