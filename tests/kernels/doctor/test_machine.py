"""What a verdict depends on, read off machines that are not at hand."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

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
    for folder in machine.DIGESTED:
        (root / folder / "tuned").mkdir(parents=True)
    (root / "__init__.py").touch()
    monkeypatch.setattr(machine.kernels, "__file__", str(root / "__init__.py"))
    digests = set()
    for changed in ("ops/sample.py", "ops/tuned/gfx942.json", "reference/sample.py"):
        (root / changed).write_text(changed)
        digests.add(machine.sources_digest.__wrapped__())
    (root / "ops/notes.txt").write_text("no kernel")

    assert len(digests) == 3
    assert machine.sources_digest.__wrapped__() in digests
