"""A body that grows on disk: lines in, bytes out as often as they are wanted."""

from __future__ import annotations

import asyncio
import tempfile
from collections.abc import AsyncIterator
from typing import IO

BUFFER_BYTES = 1024 * 1024
READ_BYTES = 256 * 1024


class Spool:
    """A temporary file without a name; `close` (or the end of the process) makes it vanish.

    It is Content for a request: its bytes can be read from the start any number of times, by one
    reader at a time. Files are touched in threads, so that no other request waits for a disk.
    """

    def __init__(self) -> None:
        self.num_bytes = 0
        self._file: IO[bytes] = tempfile.TemporaryFile()  # noqa: SIM115 - closed by `close`
        self._buffer = bytearray()

    async def write(self, data: bytes) -> None:
        """Raises OSError when there is no room."""
        self._buffer += data
        self.num_bytes += len(data)
        if len(self._buffer) >= BUFFER_BYTES:
            await self._flush()

    async def _flush(self) -> None:
        data, self._buffer = self._buffer, bytearray()
        await asyncio.to_thread(self._append, data)

    def _append(self, data: bytearray) -> None:
        self._file.seek(0, 2)
        self._file.write(data)
        self._file.flush()

    async def __aiter__(self) -> AsyncIterator[bytes]:
        if self._buffer:
            await self._flush()
        at = 0
        while at < self.num_bytes:
            data = await asyncio.to_thread(self._read, at)
            at += len(data)
            yield data

    def _read(self, at: int) -> bytes:
        self._file.seek(at)
        data = self._file.read(READ_BYTES)
        if not data:
            raise OSError(f"the temporary file ends at byte {at} of {self.num_bytes}")
        return data

    def close(self) -> None:
        self._file.close()
