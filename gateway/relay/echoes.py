"""What a provider says in an error or a header, without our key: some echo what they are sent.

Its words about a request may hold the request's text as well. They go to the caller, who sent it,
and nowhere else: logs and stored outcomes have the summary without them.
"""

from __future__ import annotations

import re

import msgspec

from gateway.wire.pieces import WireError

SECRET_CHARS_MIN = 8  # shorter ones are placeholders, and would redact ordinary words
REDACTED = "[redacted]"
# A code is a word for programs. Free text there would end up in logs, metrics and tables.
_CODE = re.compile(r"[A-Za-z0-9_.:/-]{1,64}")
_ID = re.compile(rb"[A-Za-z0-9_.:/+=,-]{1,128}")


class Echoes:
    """Cleans what one attempt's provider says; `secret` is the key it was sent."""

    def __init__(self, secret: str | None = None) -> None:
        has_secret = secret is not None and len(secret) >= SECRET_CHARS_MIN
        self._secret = secret if has_secret and secret is not None else ""

    def text(self, text: str) -> str:
        return text.replace(self._secret, REDACTED) if self._secret else text

    def raw(self, data: bytes) -> bytes:
        """The same object where there is nothing to take out."""
        secret = self._secret.encode("latin-1")
        if not secret or secret not in data:
            return data
        return data.replace(secret, REDACTED.encode())

    def error(self, error: WireError) -> WireError:
        message = self.text(error.message)
        code = error.code if _CODE.fullmatch(error.code) and self._is_clean(error.code) else ""
        kind = error.type if _CODE.fullmatch(error.type) and self._is_clean(error.type) else ""
        if (message, code, kind) == (error.message, error.code, error.type):
            return error
        return msgspec.structs.replace(error, message=message, code=code, type=kind)

    def header(self, value: bytes) -> bytes | None:
        """An id or a number that may be passed on; None for anything else."""
        is_plain = _ID.fullmatch(value) is not None
        return value if is_plain and self.raw(value) is value else None

    def _is_clean(self, text: str) -> bool:
        return not self._secret or self._secret not in text
