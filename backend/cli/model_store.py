"""Fetched models: one folder each under the home, with a record of where it came from."""

from __future__ import annotations

import os
import re
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import msgspec

from backend.errors import SetupError

RECORD = "looprouter.json"
NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,95}(/[A-Za-z0-9][A-Za-z0-9._-]{0,95})?")


class Record(msgspec.Struct, frozen=True, kw_only=True):
    """What was fetched. `file`: the one file to load; empty: the folder itself."""

    name: str
    served_name: str
    source: str
    licence: str
    size_bytes: int
    file: str = ""
    sha256: str = ""


@dataclass(frozen=True, slots=True)
class StoredModel:
    record: Record
    folder: Path

    @property
    def path(self) -> Path:
        """What the loader is given."""
        return self.folder / self.record.file if self.record.file else self.folder


@dataclass(frozen=True, slots=True)
class ModelChoice:
    """What `serve MODEL` means: files to load, and the name to answer to."""

    path: Path
    served_name: str


class ModelStore:
    """The folder `models` of the home."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def all(self) -> list[StoredModel]:
        """Every whole model, by name; folders without a record are not ours."""
        if not self.folder.is_dir():
            return []
        found = (self._read(path) for path in sorted(self.folder.iterdir()))
        return [each for each in found if each is not None]

    def find(self, name: str) -> StoredModel | None:
        if not NAME.fullmatch(name):
            return None
        return self._read(self.folder / folder_name(name))

    def _read(self, folder: Path) -> StoredModel | None:
        try:
            record = msgspec.json.decode((folder / RECORD).read_bytes(), type=Record)
        except (OSError, msgspec.DecodeError):
            return None
        model = StoredModel(record, folder)
        return model if model.path.exists() else None

    @contextmanager
    def placing(self, name: str) -> Iterator[Path]:
        """A folder to fill; at the end it becomes the model's in one rename, or nothing stays."""
        self._make_folder()
        draft = Path(tempfile.mkdtemp(prefix=".fetching-", dir=self.folder))
        try:
            made = draft / "model"
            made.mkdir()
            yield made
            self.put(name, made)
        finally:
            shutil.rmtree(draft, ignore_errors=True)

    def put(self, name: str, made: Path) -> None:
        """Give a filled folder the model's name; an older one goes away."""
        target = self.folder / folder_name(name)
        if target.exists():
            old = Path(tempfile.mkdtemp(prefix=".old-", dir=self.folder)) / "model"
            os.rename(target, old)
            os.rename(made, target)
            shutil.rmtree(old.parent, ignore_errors=True)
        else:
            os.rename(made, target)

    def partial(self, name: str, version: str) -> Path:
        """Where a long download goes on after a break."""
        self._make_folder()
        folder = self.folder / f".partial-{folder_name(name)}-{version}"
        folder.mkdir(exist_ok=True)
        return folder

    def check_room(self, size_bytes: int) -> None:
        """Raises SetupError when the disk would be full."""
        self._make_folder()
        free = shutil.disk_usage(self.folder).free
        if free < size_bytes * 1.02:
            raise SetupError(
                f"{shown_size(size_bytes)} are needed in {self.folder}, {shown_size(free)} are "
                "free; make room, or set LOOPROUTER_HOME to another disk"
            )

    def _make_folder(self) -> None:
        try:
            self.folder.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            self.folder.mkdir(exist_ok=True)
        except OSError as error:
            raise SetupError(
                f"cannot make {self.folder}: {error.strerror}; set LOOPROUTER_HOME to a "
                "folder that can be written"
            ) from error

    def choose(self, text: str) -> ModelChoice:
        """A fetched name, a model folder or a .gguf file. Raises SetupError for none of them."""
        stored = self.find(text)
        path = Path(os.path.expanduser(text))
        if stored is not None and not _is_path(text):
            return ModelChoice(stored.path, stored.record.served_name)
        if text and os.path.exists(path):
            return ModelChoice(path.absolute(), _served_name(path.absolute()))
        names = ", ".join(each.record.name for each in self.all()) or "none"
        raise SetupError(
            f"there is no model {text!r}: no fetched name (fetched: {names}), no folder and no "
            ".gguf file; `looprouter-backend models fetch smollm2` fetches a small one"
        )


def folder_name(name: str) -> str:
    return name.replace("/", "--")


def shown_size(size_bytes: float) -> str:
    """`93 MB`, `1.5 GB`: powers of ten, as disks are sold."""
    for unit, factor in (("GB", 1e9), ("MB", 1e6)):
        if size_bytes >= factor:
            value = size_bytes / factor
            return f"{value:.1f} {unit}" if value < 10 else f"{value:.0f} {unit}"
    return f"{size_bytes / 1e3:.0f} kB"


def write_record(folder: Path, record: Record) -> None:
    """Last of all: a folder with a record is whole."""
    path = folder / RECORD
    with path.open("wb") as file:
        file.write(msgspec.json.format(msgspec.json.encode(record), indent=2) + b"\n")
        file.flush()
        os.fsync(file.fileno())


def _is_path(text: str) -> bool:
    return text.startswith((".", "/", "~")) or text.endswith(".gguf")


def _served_name(path: Path) -> str:
    name = path.stem if path.suffix == ".gguf" else path.name
    return name.lower() or "model"
