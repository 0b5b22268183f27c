"""The wheel: what is in it, and that it works alone in a fresh environment without torch."""

from __future__ import annotations

import os
import subprocess
import sys
import venv
import zipfile
from pathlib import Path

import pytest

from deploy.audit import read_lock
from deploy.build_assets import wanted_files
from tests.support.source_tree import ROOT

pytestmark = pytest.mark.slow

HELD = {"gateway", "backend", "kernels"}


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Built with the lock's own hatchling, without fetching anything."""
    target = tmp_path_factory.mktemp("wheel")
    command = [sys.executable, "-m", "build", "--wheel", "--no-isolation", "--outdir", str(target)]
    subprocess.run([*command, str(ROOT)], check=True, capture_output=True)
    [built] = target.glob("looprouter-*.whl")
    return built


def _names(wheel: Path) -> list[str]:
    with zipfile.ZipFile(wheel) as archive:
        return archive.namelist()


def test_wheel_holds_the_three_packages_and_nothing_else(wheel: Path) -> None:
    top = {name.split("/")[0] for name in _names(wheel)}

    assert {name for name in top if not name.endswith(".dist-info")} == HELD


def test_wheel_holds_every_module_and_the_migrations(wheel: Path) -> None:
    names = set(_names(wheel))
    modules = {
        path.relative_to(ROOT).as_posix() for tree in HELD for path in (ROOT / tree).rglob("*.py")
    }
    modules |= {
        path.relative_to(ROOT).as_posix() for path in (ROOT / "kernels/native/source").iterdir()
    }
    versions = {path.name for path in (ROOT / "migrations/versions").glob("*.py")}

    assert modules <= names
    assert versions
    assert {f"gateway/_migrations/versions/{name}" for name in versions} <= names
    assert "gateway/_migrations/env.py" in names


def test_wheel_holds_the_sources_of_the_native_kernels(wheel: Path) -> None:
    names = set(_names(wheel))
    sources = {
        path.relative_to(ROOT).as_posix()
        for suffix in ("*.cpp", "*.h")
        for path in (ROOT / "kernels").rglob(suffix)
    }

    assert len(sources) > 1
    assert sources <= names
    # Built on the machine that runs them, into its own cache: never shipped.
    assert not [name for name in names if name.endswith((".so", ".o", ".a", ".dylib"))]


def test_wheel_holds_the_browser_libraries_of_the_dashboard_with_their_licences(
    wheel: Path,
) -> None:
    folder = "gateway/dashboard/assets/"
    shipped = {name.removeprefix(folder) for name in _names(wheel) if name.startswith(folder)}

    assert shipped == wanted_files().keys()
    assert {name.split(".")[0] for name in shipped} == {
        name.split(".")[0] for name in shipped if name.endswith(".LICENSE.txt")
    }


def test_wheel_holds_no_tests_caches_or_deployment(wheel: Path) -> None:
    unwanted = ("tests/", "deploy/", "__pycache__", ".pyc", "migrations/versions/__")

    assert [n for n in _names(wheel) if n.startswith(unwanted[:2]) or "__pycache__" in n] == []


@pytest.mark.e2e
@pytest.mark.timeout(900)  # it downloads what the wheel needs
def test_wheel_works_in_a_fresh_environment_without_torch(wheel: Path, tmp_path: Path) -> None:
    venv.create(tmp_path / "venv", with_pip=True)
    python = tmp_path / "venv/bin/python"
    constraints = tmp_path / "constraints.txt"
    pins = read_lock((ROOT / "requirements.lock").read_text())
    constraints.write_text("".join(f"{name}=={pin.version}\n" for name, pin in pins.items()))
    install = [str(python), "-m", "pip", "install", "--quiet", "--only-binary", ":all:"]
    subprocess.run([*install, "-c", str(constraints), str(wheel)], check=True, cwd=tmp_path)

    def run(*command: str) -> str:
        environ = {
            "PATH": os.environ["PATH"],
            "LOOPROUTER_HOME": str(tmp_path / "home"),
            "HOME": str(tmp_path),
        }
        done = subprocess.run(
            command, cwd=tmp_path, env=environ, capture_output=True, text=True, check=False
        )
        assert done.returncode == 0, done.stderr
        return done.stdout

    looprouter = str(tmp_path / "venv/bin/looprouter")
    backend = str(tmp_path / "venv/bin/looprouter-backend")
    has_torch = "from importlib.util import find_spec; print(find_spec('torch'))"
    assert run(str(python), "-c", has_torch).strip() == "None"
    assert "serve" in run(looprouter, "--help")
    run(looprouter, "db", "upgrade")
    assert "lr-" in run(looprouter, "keys", "create", "--json")
    assert "serve" in run(backend, "--help")
    assert "not fetched" in run(backend, "models", "list")
    refused = subprocess.run(
        [backend, "serve", "smollm2"], cwd=tmp_path, capture_output=True, text=True, check=False
    )
    assert refused.returncode == 3
    assert "pip install 'looprouter[backend]'" in refused.stderr
    assert "Traceback" not in refused.stderr
