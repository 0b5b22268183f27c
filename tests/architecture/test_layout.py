"""The top level, the import contracts, and names that must resolve to our own packages."""

from __future__ import annotations

import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from tests.support.source_tree import ROOT, SHIPPED

TOP_LEVEL = {
    *("pyproject.toml", "gateway", "backend", "kernels", "migrations", "tests", "deploy"),
    *("docs", "README.md", "README.zh-CN.md", "CHANGELOG.md", "CONTRIBUTING.md"),
    *("Makefile", "LICENSE", ".ci", "requirements.lock", ".gitignore"),
}
MAKE_TARGETS_MAX = 12


def tracked() -> list[str]:
    """Files git knows or would add; a source archive without git is taken whole."""
    command = ["git", "ls-files", "--cached", "--others", "--exclude-standard"]
    listed = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True)
    return [each for each in listed.stdout.splitlines() if (ROOT / each).exists()]


def test_top_level_is_exactly_the_agreed_one() -> None:
    assert {path.split("/")[0] for path in tracked()} == TOP_LEVEL


def test_ci_runs_the_test_command_of_the_readme() -> None:
    script = ROOT / ".ci/run"

    assert script.stat().st_mode & 0o111
    assert "make test" in script.read_text()


def test_import_contracts_hold() -> None:
    command = [str(Path(sys.executable).parent / "lint-imports"), "--no-cache"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)

    assert done.returncode == 0, done.stdout


@pytest.mark.parametrize("container", ["gateway", "backend"])
def test_layers_name_every_package_of_both_servers(container: str) -> None:
    described = tomllib.loads((ROOT / "pyproject.toml").read_text())
    contracts = described["tool"]["importlinter"]["contracts"]
    [layers] = [each for each in contracts if each.get("containers") == [container]]
    named = {
        part.strip(" ()") for line in layers["layers"] for part in line.replace(":", "|").split("|")
    }
    present = {
        path.stem if path.is_file() else path.name
        for path in (ROOT / container).iterdir()
        if path.suffix == ".py" or (path / "__init__.py").exists()
    } - {"__init__"}

    assert layers["type"] == "layers"
    assert layers["exhaustive"] is True
    assert present <= named


def test_package_names_resolve_to_us() -> None:
    # `kernels` and `backend` are names others publish too; from outside the checkout the
    # installed project must still win.
    code = (
        "import gateway as g, backend as b, kernels as k; print(*(m.__file__ for m in (g, b, k)))"
    )
    done = subprocess.run(
        [sys.executable, "-I", "-c", code], cwd="/", capture_output=True, text=True, check=True
    )

    for name, file in zip(SHIPPED, done.stdout.split(), strict=False):
        assert Path(file).resolve() == (ROOT / name / "__init__.py").resolve()


def test_make_help_lists_at_most_twelve_targets_and_all_of_them() -> None:
    done = subprocess.run(["make", "help"], cwd=ROOT, capture_output=True, text=True, check=True)
    listed = {line.split()[1] for line in done.stdout.splitlines() if line.startswith("  make ")}
    phony = next(
        line for line in (ROOT / "Makefile").read_text().splitlines() if line.startswith(".PHONY")
    )

    assert listed == set(phony.split(":")[1].split())
    assert {"run", "test", "check", "help"} <= listed
    assert len(listed) <= MAKE_TARGETS_MAX
