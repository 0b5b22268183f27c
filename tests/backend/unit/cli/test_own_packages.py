"""Another project's `kernels`, `gateway` or `backend` is named with its path and the way out."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from backend.cli.own_packages import NAMES, check_own_packages, foreign_package

FOREIGN = "import sys\nsys.stderr.write('foreign code ran')\n"


def _run(folder: Path, *, pythonpath: Path | None = None) -> subprocess.CompletedProcess[str]:
    environ = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    if pythonpath is not None:
        environ["PYTHONPATH"] = str(pythonpath)
    command = [sys.executable, "-m", "backend", "models", "list"]
    environ["LOOPROUTER_HOME"] = str(folder / "home")
    return subprocess.run(
        command, cwd=folder, env=environ, capture_output=True, text=True, timeout=60, check=False
    )


def _shadow(folder: Path, name: str) -> Path:
    (folder / name).mkdir(parents=True)
    (folder / name / "__init__.py").write_text(FOREIGN)
    return folder


def test_our_own_packages_are_ours() -> None:
    check_own_packages()

    assert [foreign_package(name) for name in NAMES] == [None, None, None]


@pytest.mark.parametrize("name", ["kernels", "gateway"])
def test_package_on_the_search_path_that_hides_ours_stops_the_command(
    tmp_path: Path, name: str
) -> None:
    shadow = _shadow(tmp_path / "shadow", name)

    done = _run(tmp_path, pythonpath=shadow)

    assert done.returncode == 3
    assert done.stdout == ""
    assert f"`{name}` is another project's package here, {shadow / name}" in done.stderr
    assert "PYTHONPATH" in done.stderr
    assert "Traceback" not in done.stderr
    assert "foreign code ran" not in done.stderr


def test_package_in_the_folder_one_stands_in_says_to_start_elsewhere(tmp_path: Path) -> None:
    done = _run(_shadow(tmp_path, "kernels"))

    assert done.returncode == 3
    assert "start in another folder" in done.stderr


def test_package_installed_over_ours_says_how_to_get_ours_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # As `pip install kernels` leaves it: the folder is right, what is in it is not.
    site = _shadow(tmp_path / "site", "kernels")
    monkeypatch.setattr("backend.cli.own_packages._HERE", site.resolve())
    monkeypatch.setattr(sys, "path", [str(site)])
    monkeypatch.delitem(sys.modules, "kernels", raising=False)

    found = foreign_package("kernels")

    assert found is not None
    assert "pip uninstall kernels" in str(found)
    assert "--force-reinstall --no-deps looprouter" in str(found)


def test_package_that_is_not_there_at_all_is_missed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "path", [])
    monkeypatch.setattr(sys, "meta_path", sys.meta_path[:2])  # built-in and frozen modules only
    monkeypatch.delitem(sys.modules, "kernels", raising=False)

    assert "`kernels` is missing" in str(foreign_package("kernels"))
