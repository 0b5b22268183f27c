"""Where the bytes of files lie: a folder under the state directory, or an object store (obstore).

What is being written is not there until it is whole: a cut upload leaves nothing.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import re
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gateway.errors import ServiceError, SetupError

if TYPE_CHECKING:
    from obstore.store import ObjectStore

WRITE_BUFFER_BYTES = 4 * 1024 * 1024  # a part of an upload to an object store
READ_BYTES_MIN = 256 * 1024
UNFINISHED_S = 3_600.0  # of silence: nobody writes on it any more
_KEY = re.compile(r"[A-Za-z0-9_-]{1,80}(?:\.[a-z]{1,16})?")
_UNFINISHED = re.compile(rf"{_KEY.pattern}#\d+")  # as obstore names it in a folder
_NO_SPACE = re.compile(r"os error (?:28|122|27)\b|No space left|quota exceeded", re.IGNORECASE)


class StorageFull(ServiceError):
    """507: nothing of the file was kept."""

    status = 507
    code = "storage_full"
    should_retry = False


class StorageFailed(ServiceError):
    status = 503
    code = "storage_unavailable"


class FileStorage:
    """Objects by key. Keys are ours (ids), never a client's words.

    Every method raises StorageFull where there is no room and StorageFailed where the storage
    does not answer; a key that is not there is FileNotFoundError.
    """

    def __init__(self, store: ObjectStore, where: str, folder: Path | None = None) -> None:
        self._store = store
        self._folder = folder
        self.where = where

    @asynccontextmanager
    async def writing(self, key: str) -> AsyncIterator[Writing]:
        """Write an object in parts; it exists from the end of the block on, or not at all."""
        import obstore

        with _told(self.where):
            writer = obstore.open_writer_async(
                self._store, _checked(key), buffer_size=WRITE_BUFFER_BYTES
            )
            async with writer:
                yield Writing(writer, self.where)

    async def read_range(self, key: str, offset_bytes: int, num_bytes: int) -> bytes:
        import obstore

        if num_bytes == 0:
            return b""
        with _told(self.where):
            found = await obstore.get_range_async(
                self._store, _checked(key), start=offset_bytes, length=num_bytes
            )
            return bytes(found)

    async def read_ranges(
        self, key: str, offsets_bytes: Sequence[int], nums_bytes: Sequence[int]
    ) -> list[bytes]:
        """Several parts; those that lie near each other are read together."""
        import obstore

        with _told(self.where):
            found = await obstore.get_ranges_async(
                self._store, _checked(key), starts=offsets_bytes, lengths=nums_bytes
            )
            return [bytes(each) for each in found]

    async def read(self, key: str) -> AsyncIterator[bytes]:
        """The whole object in parts."""
        import obstore

        with _told(self.where):
            found = await obstore.get_async(self._store, _checked(key))
            async for part in found.stream(min_chunk_size=READ_BYTES_MIN):
                yield bytes(part)

    async def delete(self, key: str) -> None:
        """Harmless where there is no such object."""
        import obstore

        with _told(self.where):
            try:
                await obstore.delete_async(self._store, _checked(key))
            except FileNotFoundError:
                return

    async def sweep_unfinished(self, *, now: float) -> int:
        """
        Take what killed writers left out of the folder; how many. Young ones are left to theirs.

        An object store shows them to nobody but its own lifecycle rules, which end them.
        """
        if self._folder is None:
            return 0
        with _told(self.where):
            return await asyncio.to_thread(_sweep_folder, self._folder, now - UNFINISHED_S)


class Writing:
    """An object under way."""

    def __init__(self, writer: Any, where: str) -> None:
        self._writer = writer
        self._where = where
        self.num_bytes = 0

    async def write(self, data: bytes) -> None:
        with _told(self._where):
            await self._writer.write(data)
        self.num_bytes += len(data)


def open_storage(url: str, home: Path) -> FileStorage:
    """`url` empty: the folder `files` in `home`. Else s3://, gs://, az:// with a bucket, or file://.

    Credentials of object stores come from their usual variables (AWS_ACCESS_KEY_ID, …). Raises
    SetupError, which says what is wrong with the URL or the folder.
    """
    from obstore.exceptions import BaseError
    from obstore.store import LocalStore, from_url

    folder = home / "files" if not url else None
    if url.startswith("file://"):
        folder = Path(url.removeprefix("file://"))
    try:
        if folder is not None:
            folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            return FileStorage(LocalStore(folder), str(folder), folder)
        return FileStorage(from_url(url), url)
    except (BaseError, OSError, ValueError) as error:
        reason = str(error).splitlines()[0][:200]
        raise SetupError(
            f"LOOPROUTER_FILES_URL {url[:80]!r} cannot be used: {reason}; use s3://bucket/prefix, "
            "gs://…, az://… or file:///absolute/folder that can be written"
        ) from error


class _told:
    """Turns the storage's errors into ours; a context manager without a frame of its own."""

    def __init__(self, where: str) -> None:
        self._where = where

    def __enter__(self) -> None:
        return None

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        if error is None or isinstance(error, FileNotFoundError | ServiceError):
            return
        is_of_storage = type(error).__module__.startswith("obstore")
        if not is_of_storage and not isinstance(error, OSError):
            return
        is_full = isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EDQUOT)
        if is_full or _NO_SPACE.search(str(error)):
            raise StorageFull(
                "there is no room left for files; nothing of this one was kept. Delete files that "
                "are no longer needed, or tell the operator"
            ) from error
        raise StorageFailed(
            "the storage of files does not answer; send the request again", retry_after_s=5.0
        ) from error


def _sweep_folder(folder: Path, written_before: float) -> int:
    num_swept = 0
    for path in folder.iterdir():
        if _UNFINISHED.fullmatch(path.name) is None:
            continue
        with contextlib.suppress(FileNotFoundError):  # another process sweeps it too
            if path.stat().st_mtime < written_before:
                path.unlink()
                num_swept += 1
    return num_swept


def _checked(key: str) -> str:
    assert _KEY.fullmatch(key), key
    return key
