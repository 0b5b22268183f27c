"""The target's states of all texts: computed once, kept on disk while they fit.

A head sees every text a few times, and so does each further head of the same target; computing the
states is as dear as training on them. What does not fit into the limit is computed each time.
"""

from __future__ import annotations

import fcntl
import hashlib
import json
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import torch
from torch import Tensor

from backend.train.corpus import States, Text
from backend.train.teacher import Teacher


class StateStore:
    """`states.bin` holds whole texts one after the other; `states.jsonl` says where."""

    def __init__(self, directory: Path, teacher: Teacher, key: str, bytes_max: int) -> None:
        """`key`: everything that the states depend on but the text; another key starts anew."""
        self._teacher = teacher
        self._bytes_max = bytes_max
        self._places: dict[str, tuple[int, int, int]] = {}  # digest → offset, positions, columns
        self._size = 0
        folder = directory / hashlib.sha256(key.encode()).hexdigest()[:16]
        folder.mkdir(parents=True, exist_ok=True)
        self._data, self._index = folder / "states.bin", folder / "states.jsonl"
        self._data.touch()
        self._index.touch()
        self._read_to = 0  # of the index, in bytes
        with self._locked():
            self._read_index()

    def of(self, text: Text) -> States:
        digest = _digest(text.token_ids)
        if digest not in self._places:
            # Another head's training may have come by here meanwhile.
            with self._locked():
                self._read_index()
        place = self._places.get(digest)
        if place is not None:
            return self._read(place)
        states = self._teacher.read(text.token_ids)
        with self._locked():
            self._read_index()
            if digest not in self._places:
                self._keep(digest, states)
        return states

    def of_all(self, texts: Sequence[Text]) -> list[States]:
        return [self.of(each) for each in texts]

    def _keep(self, digest: str, states: States) -> None:
        """To be called with the lock, when all that the index says is known."""
        whole = torch.cat((states.features, states.last), 1).cpu().contiguous()
        content = whole.view(torch.uint8).numpy().tobytes()
        if self._size + len(content) > self._bytes_max:
            return
        place = (self._size, whole.shape[0], states.last.shape[1])
        with self._data.open("r+b") as file:
            # A run that was killed may have left half a text behind what the index knows.
            file.truncate(self._size)
            file.seek(self._size)
            file.write(content)
        line = [digest, *place, whole.shape[1], str(whole.dtype).removeprefix("torch.")]
        encoded = json.dumps(line).encode() + b"\n"
        with self._index.open("r+b") as file:
            file.truncate(self._read_to)
            file.seek(self._read_to)
            file.write(encoded)
        self._read_to += len(encoded)
        self._places[digest] = place
        self._size += len(content)

    @contextmanager
    def _locked(self) -> Iterator[None]:
        """Trainings of several heads may share the folder."""
        with self._index.open("rb") as file:
            fcntl.flock(file, fcntl.LOCK_EX)
            yield

    def _read(self, place: tuple[int, int, int]) -> States:
        offset, length, size = place
        columns = self._columns
        with self._data.open("rb") as file:
            file.seek(offset)
            content = bytearray(file.read(length * columns * self._dtype.itemsize))
        whole = torch.frombuffer(content, dtype=self._dtype).view(length, columns)
        whole = whole.to(self._teacher.device)
        return States(whole[:, :-size], whole[:, -size:])

    @property
    def _columns(self) -> int:
        return self._teacher.columns

    @property
    def _dtype(self) -> torch.dtype:
        return self._teacher.dtype

    def _read_index(self) -> None:
        """What was added since; whatever stands behind the last whole line is written over."""
        if self._index.stat().st_size == self._read_to:
            return
        held = self._data.stat().st_size
        with self._index.open("rb") as file:
            file.seek(self._read_to)
            lines = file.read().split(b"\n")[:-1]
        for line in lines:
            try:
                digest, offset, length, size, columns, dtype = json.loads(line)
            except ValueError:
                break
            end = offset + length * columns * self._dtype.itemsize
            if columns != self._columns or f"torch.{dtype}" != str(self._dtype) or end > held:
                break
            self._places[digest] = (offset, length, size)
            self._size = end
            self._read_to += len(line) + 1


def _digest(token_ids: Sequence[int]) -> str:
    return hashlib.sha256(",".join(map(str, token_ids)).encode()).hexdigest()[:32]


def token_counts(texts: Sequence[Text], vocab_size: int) -> Tensor:
    """[V]: how often the target wrote each token."""
    written = torch.tensor([each for text in texts for each in text.answer], dtype=torch.int64)
    return torch.bincount(written, minlength=vocab_size)
