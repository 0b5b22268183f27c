"""What a killed writer leaves in the folder of files, and who may take it away."""

from __future__ import annotations

import asyncio
import os
import time
from pathlib import Path

import pytest

from gateway.batch.storage import UNFINISHED_S, WRITE_BUFFER_BYTES, FileStorage, open_storage
from tests.support.lane_world import until

pytestmark = pytest.mark.anyio


def names(folder: Path) -> set[str]:
    return {path.name for path in folder.iterdir()}


def age(path: Path, seconds: float) -> None:
    at_s = time.time() - seconds
    os.utime(path, (at_s, at_s))


async def test_only_unfinished_parts_that_nobody_writes_on_are_swept(tmp_path: Path) -> None:
    storage, folder = open_storage("", tmp_path), tmp_path / "files"
    async with storage.writing("file-whole") as writing:
        await writing.write(b"whole")
    (folder / "somebody-elses#notes").write_text("kept")
    killed = storage.writing("file-killed")  # its block never ends
    writing = await killed.__aenter__()
    await writing.write(b"x" * (2 * WRITE_BUFFER_BYTES))
    (left,) = names(folder) - {"file-whole", "somebody-elses#notes"}

    async def is_written() -> bool:
        return (folder / left).stat().st_size >= WRITE_BUFFER_BYTES

    await until(is_written, "its bytes")
    await asyncio.sleep(0.05)
    (folder / "file-young#2").write_bytes(b"x")
    for name in (left, "file-whole", "somebody-elses#notes"):
        age(folder / name, UNFINISHED_S + 60.0)
    age(folder / "file-young#2", UNFINISHED_S - 60.0)

    assert await storage.sweep_unfinished(now=time.time()) == 1
    assert names(folder) == {"file-whole", "somebody-elses#notes", "file-young#2"}
    assert await storage.sweep_unfinished(now=time.time()) == 0


async def test_an_object_store_sweeps_its_own() -> None:
    from obstore.store import MemoryStore

    assert await FileStorage(MemoryStore(), "memory").sweep_unfinished(now=time.time()) == 0
