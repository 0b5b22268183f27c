"""F23: every install is hash-checked, a planted start-up file is found, a changed file is found."""

from __future__ import annotations

import base64
import hashlib
import re
import subprocess
import sys
import tomllib
import venv
import zipfile
from importlib import metadata
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from deploy.audit import (
    NOT_LOCKED,
    Locked,
    brought_by_torch,
    file_findings,
    hook_findings,
    lock_findings,
    read_lock,
    requirements_of,
)
from deploy.install_torch import CPU_INDEX, pinned, torch_source
from deploy.lock import BACKEND_MARK, EXTRAS, MARK, NEEDED_BY_TORCH, wanted
from deploy.set_up_backend import TESTS_MARK
from tests.support.source_tree import ROOT

LOCK = (ROOT / "requirements.lock").read_text()
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())


def test_f23_lock_pins_every_requirement_of_the_project_with_hashes() -> None:
    locked = read_lock(LOCK)
    requirements = wanted(PROJECT["project"], EXTRAS) + PROJECT["build-system"]["requires"]

    for text in requirements:
        requirement = Requirement(text)
        pin = locked[canonicalize_name(requirement.name)]
        assert requirement.specifier.contains(pin.version), text
        assert pin.hashes


@pytest.mark.parametrize("python", ["3.11.0", "3.11.9", "3.12.0", "3.13.0", "3.14.0"])
@pytest.mark.parametrize("system", ["Linux", "Darwin"])
def test_f23_lock_is_whole_on_every_python_and_system_we_support(python: str, system: str) -> None:
    # Hash checking refuses a requirement without a pin, so one that only another Python has
    # would stop the very first command there.
    locked = read_lock(LOCK)
    environment = {
        "python_version": python.rpartition(".")[0],
        "python_full_version": python,
        "implementation_version": python,
        "platform_system": system,
        "sys_platform": system.lower(),
        "extra": "",
    }
    missing = [
        f"{distribution.metadata['Name']} needs {text}"
        for distribution in metadata.distributions()
        if canonicalize_name(distribution.metadata["Name"]) in locked
        for text in distribution.requires or ()
        for requirement in [Requirement(text)]
        if canonicalize_name(requirement.name) not in locked
        and (requirement.marker is None or requirement.marker.evaluate(environment))
    ]

    assert not missing, ", ".join(missing)


def test_f23_torch_and_triton_are_pinned_by_version_and_not_in_the_lock() -> None:
    backend = [Requirement(each) for each in PROJECT["project"]["optional-dependencies"]["backend"]]
    pinned = {each.name: str(each.specifier) for each in backend if each.name in NOT_LOCKED}

    assert set(pinned) == {"torch", "triton"}
    assert all(re.fullmatch(r"==[\d.]+", specifier) for specifier in pinned.values())
    assert not NOT_LOCKED & set(read_lock(LOCK))


def test_f23_all_that_torch_needs_is_locked_so_that_it_can_be_installed_alone() -> None:
    needed = {
        canonicalize_name(requirement.name): requirement
        for text in metadata.requires("torch") or ()
        for requirement in [Requirement(text)]
        if requirement.marker is None and not requirement.name.startswith(("nvidia", "cuda"))
    }
    stated = {canonicalize_name(Requirement(text).name) for text in NEEDED_BY_TORCH}
    locked = read_lock(LOCK)

    assert needed.keys() - NOT_LOCKED <= stated
    for name in stated & needed.keys():
        assert needed[name].specifier.contains(locked[name].version)


def test_f23_lock_has_three_parts_and_each_stands_alone() -> None:
    run, _, rest = LOCK.partition(BACKEND_MARK)
    backend, _, develop = rest.partition(MARK)
    parts = [read_lock(text) for text in (run, backend, develop)]

    assert all(parts)
    assert {"litestar", "httpx", "hatchling"} <= parts[0].keys()
    assert {"safetensors", "tokenizers", "gguf", "sympy"} <= parts[1].keys()
    assert {"pytest", "transformers", "ruff"} <= parts[2].keys()
    assert MARK.startswith(TESTS_MARK)
    # What the parts above need is above: pip with hashes would refuse the rest.
    for index, part in enumerate(parts):
        known = {name for above in parts[: index + 1] for name in above}
        for name in part:
            for text in requirements_of(name) or ():
                requirement = Requirement(text)
                is_needed = requirement.marker is None or requirement.marker.evaluate({"extra": ""})
                assert not is_needed or canonicalize_name(requirement.name) in known, (name, text)


@pytest.mark.parametrize(
    ("machine", "source"),
    [
        ({"is_linux": True, "has_gpu": False, "has_index": True}, f"--index-url {CPU_INDEX}"),
        ({"is_linux": True, "has_gpu": True, "has_index": True}, "torch=="),
        ({"is_linux": True, "has_gpu": False, "has_index": False}, "torch=="),
        ({"is_linux": False, "has_gpu": False, "has_index": True}, "torch=="),
    ],
)
def test_f23_torch_comes_from_the_cpu_index_only_on_linux_without_a_gpu(
    machine: dict[str, bool], source: str
) -> None:
    found = torch_source("", **machine)
    chosen = torch_source("torch==2.13.0 --index-url 'https://x/rocm'", **machine)

    assert found[0] == f"torch=={pinned('torch')}"
    assert ("--index-url" in found) == ("--index-url" in source)
    assert chosen == ["torch==2.13.0", "--index-url", "https://x/rocm"]


def test_f23_libraries_that_a_cuda_torch_brings_are_no_finding_and_strangers_are() -> None:
    needs = {
        "torch": ["filelock", "nvidia-cublas==13.1; platform_system == 'Linux'", "absent>=1"],
        "nvidia-cublas": ["nvidia-nvrtc", "numpy; extra == 'x'"],
        "nvidia-nvrtc": [],
        "filelock": [],
        "numpy": [],
    }
    of_torch = brought_by_torch(needs.get)
    locked = {"filelock": Locked("1.0", frozenset({"0" * 64}))}
    installed = {"filelock": "2.0", "nvidia-nvrtc": "13", "numpy": "2.0", "torch": "2.13.0+cu130"}

    assert of_torch == {"filelock", "nvidia-cublas", "nvidia-nvrtc"}
    assert list(lock_findings(locked, installed, of_torch=of_torch)) == [
        "filelock 2.0 is installed, the lock says 1.0",
        "numpy 2.0 is installed but not in requirements.lock",
    ]


def test_f23_nothing_locked_pulls_litellm_or_names_a_host() -> None:
    assert "litellm" not in LOCK
    assert "://" not in LOCK
    assert "--index-url" not in LOCK


def test_f23_package_outside_the_lock_or_in_another_version_is_found() -> None:
    locked = {"a": Locked("1.0", frozenset({"0" * 64}))}

    found = list(lock_findings(locked, {"a": "1.1", "b": "2.0", "looprouter": "0.1"}))

    assert found == [
        "a 1.1 is installed, the lock says 1.0",
        "b 2.0 is installed but not in requirements.lock",
    ]


def test_f23_lock_line_without_hash_is_refused() -> None:
    with pytest.raises(ValueError, match="a==1"):
        read_lock("a==1.0\n")


def _wheel(folder: Path) -> tuple[Path, str]:
    """A package of one module, made by hand; returns it and its true hash."""
    path = folder / "seeded-1.0-py3-none-any.whl"
    head = "Metadata-Version: 2.1\nName: seeded\nVersion: 1.0\n"
    tags = "Wheel-Version: 1.0\nGenerator: test\nRoot-Is-Purelib: true\nTag: py3-none-any\n"
    with zipfile.ZipFile(path, "w") as wheel:
        wheel.writestr("seeded.py", "")
        wheel.writestr("seeded-1.0.dist-info/METADATA", head)
        wheel.writestr("seeded-1.0.dist-info/WHEEL", tags)
        wheel.writestr("seeded-1.0.dist-info/RECORD", "seeded.py,,\n")
    return path, hashlib.sha256(path.read_bytes()).hexdigest()


def _install(folder: Path, digest: str) -> subprocess.CompletedProcess[str]:
    lock = folder / "seeded.lock"
    lock.write_text(f"seeded==1.0 --hash=sha256:{digest}\n")
    command = [
        *(sys.executable, "-m", "pip", "--isolated", "install", "--no-index", "--require-hashes"),
        *("--find-links", str(folder), "--target", str(folder / "site"), "-r", str(lock)),
    ]
    return subprocess.run(command, capture_output=True, text=True, check=False)


@pytest.mark.slow
def test_f23_seeded_bad_hash_stops_the_install(tmp_path: Path) -> None:
    _, digest = _wheel(tmp_path)
    wrong = digest[:-1] + ("0" if digest[-1] != "0" else "1")

    refused = _install(tmp_path, wrong)
    assert refused.returncode != 0
    assert "DO NOT MATCH" in refused.stderr
    assert not (tmp_path / "site").exists()

    assert _install(tmp_path, digest).returncode == 0
    assert (tmp_path / "site/seeded.py").exists()


def _site_packages(folder: Path) -> tuple[Path, Path]:
    """A fresh virtual environment: its interpreter and its site-packages."""
    venv.create(folder, with_pip=False)
    [site] = folder.glob("lib/python*/site-packages")
    return folder / "bin/python", site


def test_f23_planted_startup_file_runs_and_is_found(tmp_path: Path) -> None:
    python, site = _site_packages(tmp_path / "venv")
    assert list(hook_findings(site)) == []

    (site / "zz_helper.pth").write_text(
        f"import pathlib; pathlib.Path({str(tmp_path)!r}, 'ran').touch()\n"
    )
    subprocess.run([str(python), "-c", ""], check=True)

    assert (tmp_path / "ran").exists()  # it is the real thing: it ran at start
    [found] = hook_findings(site)
    assert found.startswith("start-up file zz_helper.pth runs code: import pathlib")


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("_editable_impl_looprouter.pth", "/some/where\nimport os\n"),
        ("distutils-precedence.pth", "import os; os.system('x')\n"),
        ("more.pth", "/some/where\n"),
        ("sitecustomize.py", ""),
        ("usercustomize.py", ""),
    ],
)
def test_f23_startup_file_behind_a_known_name_is_found(
    tmp_path: Path, name: str, text: str
) -> None:
    (tmp_path / name).write_text(text)

    assert len(list(hook_findings(tmp_path))) == 1


def test_f23_our_own_editable_install_and_setuptools_are_known(tmp_path: Path) -> None:
    (tmp_path / "_editable_impl_looprouter.pth").write_text("/some/where\n")
    (tmp_path / "distutils-precedence.pth").write_text(
        "import os; var = 'SETUPTOOLS_USE_DISTUTILS'; enabled = True\n"
    )

    assert list(hook_findings(tmp_path)) == []


def test_f23_file_changed_after_its_install_is_found(tmp_path: Path) -> None:
    info = tmp_path / "seeded-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: seeded\nVersion: 1.0\n")
    module = tmp_path / "seeded.py"
    module.write_text("x = 1\n")
    digest = base64.urlsafe_b64encode(hashlib.sha256(b"x = 1\n").digest()).rstrip(b"=").decode()
    (info / "RECORD").write_text(f"seeded.py,sha256={digest},6\nseeded-1.0.dist-info/RECORD,,\n")
    distribution = metadata.Distribution.at(info)
    assert list(file_findings(distribution)) == []

    module.write_text("x = 2\n")

    assert list(file_findings(distribution)) == [
        "seeded: seeded.py was changed after it was installed"
    ]
    module.unlink()
    assert list(file_findings(distribution)) == ["seeded: seeded.py is missing"]
