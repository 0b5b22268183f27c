"""Writes requirements.lock: every package with version and hashes, torch and triton excepted.

Those two are pinned by version in pyproject.toml, because each machine takes its own build of them
(CPU, ROCm, CUDA). Pins already in the lock are kept; `--upgrade` moves all to the newest.
"""

from __future__ import annotations

import contextlib
import re
import sys
import tempfile
import tomllib
from collections.abc import Iterable
from pathlib import Path

from pip._internal.models.link import Link
from piptools.repositories.pypi import PyPIRepository
from piptools.scripts.compile import cli as pip_compile

ROOT = Path(__file__).resolve().parents[1]
LOCK = ROOT / "requirements.lock"
EXTRAS = ("dev", "backend")
NOT_LOCKED = ("torch", "triton")

# pip-compile sees only the Python it runs on. What another supported one needs besides, so that
# the lock installs there too: redis wants this below 3.11.3. A test finds what is missing here.
OTHER_PYTHONS = ("async-timeout>=4.0.3",)
# What installing the checkout itself in place takes, beside the build system.
EDITABLE = ("editables",)
# What torch needs (a test compares it with torch's own word): locked, so that torch alone is not.
NEEDED_BY_TORCH = (
    *("filelock", "fsspec>=0.8.5", "jinja2", "networkx>=2.5.1", "setuptools>=77.0.3"),
    *("sympy>=1.13.3", "typing-extensions>=4.10"),
)

HEADER = """\
# Every package that `make run` and `make test` install, with its hashes. Written by `make lock`.
# Install with: pip install --require-hashes -r requirements.lock
# `make run LITE=1` installs only what is above the first mark, `make run` what is above the second,
# so that a newcomer need not wait for the tests'. torch and triton: deploy/install_torch.py.
"""
BACKEND_MARK = "# --- below: only for the backend, beside torch ---"
MARK = "# --- below: only for tests and development ---"


def requirement_name(requirement: str) -> str:
    return re.split(r"[\s\[<>=!~;]", requirement, maxsplit=1)[0].lower().replace("_", "-")


def wanted(project: dict[str, object], extras: tuple[str, ...]) -> list[str]:
    """The project's requirements with its extras, our own name in them resolved."""
    groups = project["optional-dependencies"]
    assert isinstance(groups, dict)
    found = list(project["dependencies"])  # type: ignore[call-overload]  # a list in the schema
    for extra in extras:
        for requirement in groups[extra]:
            inner = re.fullmatch(r"looprouter\[([\w,-]+)\]", requirement)
            if inner is not None:
                found += wanted({**project, "dependencies": []}, tuple(inner[1].split(",")))
            elif requirement_name(requirement) not in NOT_LOCKED:
                found.append(requirement)
    return sorted(set(found))


def compiled(requirements: list[str], current: str, *, upgrade: bool) -> str:
    """What pip-compile makes of them. It runs in an empty folder, so that no path gets in."""
    with tempfile.TemporaryDirectory() as folder:
        Path(folder, "pyproject.in").write_text("\n".join(requirements) + "\n")
        Path(folder, "requirements.lock").write_text(current)
        arguments = [
            *("--quiet", "--generate-hashes", "--allow-unsafe", "--strip-extras", "--no-header"),
            *("--no-emit-index-url", "--no-emit-find-links", "--no-emit-trusted-host"),
            *("--no-emit-options", "--annotation-style", "line", "--resolver", "backtracking"),
            *("--output-file", "requirements.lock", *(["--upgrade"] if upgrade else [])),
            "pyproject.in",
        ]
        with contextlib.chdir(folder):
            pip_compile(arguments, standalone_mode=False)
        return Path(folder, "requirements.lock").read_text()


def trust_announced_hashes() -> None:
    """Take each file's hash from the index page it was found on instead of downloading it.

    pip-compile would fetch every wheel of every platform (gigabytes) to hash it. pip checks each
    download against the very same announced hash, so nothing is lost.
    """
    downloaded = PyPIRepository._get_file_hash

    def announced(repository: PyPIRepository, link: Link) -> str:
        if link.hash_name == "sha256" and link.hash:
            return f"sha256:{link.hash}"
        return downloaded(repository, link)

    PyPIRepository._get_file_hash = announced


def split(body: str, *needed: set[str]) -> list[list[str]]:
    """
    The lock's entries in parts: what the first of `needed` needs, all levels down, what the next
    needs beside that, and so on; last of all the rest.
    """
    lines = [line for line in body.splitlines() if not line.startswith("#")]
    entries = re.split(r"\n(?=[a-z0-9])", "\n".join(lines).strip("\n"))
    parents: dict[str, set[str]] = {}
    for entry in entries:
        via = re.search(r"# via (.*)", entry)
        parents[requirement_name(entry)] = set(via[1].split(", ")) if via is not None else set()
    parts, kept = [], set[str]()
    for names in needed:
        before = set(kept)
        kept |= parents.keys() & names
        while grown := {name for name, via in parents.items() if via & kept} - kept:
            kept |= grown
        parts.append([each for each in entries if requirement_name(each) in kept - before])
    return [*parts, [each for each in entries if requirement_name(each) not in kept]]


def names_of(requirements: Iterable[str]) -> set[str]:
    return {requirement_name(each) for each in requirements}


def main() -> int:
    trust_announced_hashes()
    with (ROOT / "pyproject.toml").open("rb") as file:
        described = tomllib.load(file)
    project, build = described["project"], described["build-system"]["requires"]
    requirements = [*wanted(project, EXTRAS), *build, *OTHER_PYTHONS, *NEEDED_BY_TORCH]
    current = LOCK.read_text() if LOCK.exists() else ""
    body = compiled(sorted(set(requirements)), current, upgrade="--upgrade" in sys.argv[1:])
    to_serve = [*wanted({**project, "dependencies": []}, ("backend",)), *NEEDED_BY_TORCH]
    run, backend, rest = split(
        body,
        names_of([*project["dependencies"], *build, *EDITABLE, *OTHER_PYTHONS]),
        names_of(to_serve),
    )
    LOCK.write_text(HEADER + "\n".join([*run, BACKEND_MARK, *backend, MARK, *rest]) + "\n")
    print(
        f"requirements.lock: {len(run)} packages to run, {len(backend)} more to serve a model, "
        f"{len(rest)} more to develop"
    )
    return 0


if __name__ == "__main__":
    sys.exit(main())
