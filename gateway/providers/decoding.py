"""Undo a content-encoding we did not ask for, piece by piece, with a limit on what may come out."""

from __future__ import annotations

import zlib

DECODED_RATIO_MAX = 100  # output bytes per input byte; real JSON and SSE stay below 30
DECODED_FREE_BYTES = 256 * 1024  # so much may come out before the ratio counts
_STEP_BYTES = 64 * 1024
_ZLIB_HEAD_BYTES = 2


class DecodingError(ValueError):
    """The body is not what its content-encoding says, or it is a bomb."""


class BodyDecoder:
    """gzip and deflate, incrementally; memory stays bounded whatever the input."""

    def __init__(self, encoding: str) -> None:
        """`encoding`: gzip, x-gzip or deflate; anything else raises DecodingError."""
        if encoding not in ("gzip", "x-gzip", "deflate"):
            raise DecodingError(
                f"the upstream sent content-encoding {encoding!r} although identity was asked for"
            )
        self._is_gzip = encoding != "deflate"
        self._inflater = self._fresh()
        self._head: bytes | None = None if self._is_gzip else b""  # until the framing is known
        self._bytes_in = 0
        self._bytes_out = 0

    def feed(self, data: bytes) -> list[bytes]:
        self._bytes_in += len(data)
        if self._head is not None:
            data = self._settle_framing(self._head + data)
        out: list[bytes] = []
        is_full = False  # the last step filled its buffer, so zlib may hold more without new input
        while data or is_full:
            if self._inflater.eof:
                if not self._is_gzip:
                    raise DecodingError("bytes follow the end of the deflate stream")
                self._inflater = self._fresh()  # the next gzip member
            part = self._inflate(data)
            data = self._inflater.unconsumed_tail or self._inflater.unused_data
            is_full = len(part) == _STEP_BYTES and not self._inflater.eof
            if part:
                self._bytes_out += len(part)
                self._check_ratio()
                out.append(part)
        return out

    def close(self) -> None:
        """Raise if the compressed stream was cut off."""
        if not self._inflater.eof and self._bytes_in:
            raise DecodingError("the compressed body ends in the middle")

    def _fresh(self) -> zlib._Decompress:
        return zlib.decompressobj(16 + zlib.MAX_WBITS if self._is_gzip else zlib.MAX_WBITS)

    def _settle_framing(self, head: bytes) -> bytes:
        """ "deflate" means zlib framing, but many servers send it raw: its first two bytes tell
        (RFC 1950, 2.2). Returns what may be inflated now.
        """
        if len(head) < _ZLIB_HEAD_BYTES:
            self._head = head
            return b""
        self._head = None
        is_framed = head[0] & 0x0F == zlib.DEFLATED and int.from_bytes(head[:2]) % 31 == 0
        if not is_framed:
            self._inflater = zlib.decompressobj(-zlib.MAX_WBITS)
        return head

    def _inflate(self, data: bytes) -> bytes:
        try:
            return self._inflater.decompress(data, _STEP_BYTES)
        except zlib.error as error:
            raise DecodingError(f"broken compressed body: {error}") from error

    def _check_ratio(self) -> None:
        allowed = max(DECODED_FREE_BYTES, DECODED_RATIO_MAX * self._bytes_in)
        if self._bytes_out > allowed:
            raise DecodingError(
                f"a compressed body grew more than {DECODED_RATIO_MAX} times: refused as a bomb"
            )
