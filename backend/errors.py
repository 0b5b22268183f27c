"""Everything the backend refuses, as one tree; each says what, where and how to mend it.

BackendError
├── SetupError            the server cannot start: model files, memory, another package's name
│   ├── UnsafeFormat      pickle, remote code, a template outside the sandbox
│   ├── BadCheckpoint     a tensor or a config value that does not fit its family
│   └── OutOfMemory       not even one sequence fits
├── BadRequest            the caller can mend it (HTTP 400)
│   └── ContextOverflow   prompt and answer do not fit the context
├── Overloaded            too much waits already (HTTP 429 with Retry-After)
├── Unavailable           loading, draining, or the engine has stopped (HTTP 503)
├── RequestTimedOut       no first token, or no end, within the limit (HTTP 504)
└── RequestFailed         this one request met an error in the engine (HTTP 500); others go on
"""

from __future__ import annotations


class BackendError(Exception):
    """The base of all of them."""


class SetupError(BackendError):
    """The server or a command cannot start."""


class UnsafeFormat(SetupError):
    """A file that could run code when it is read."""


class BadCheckpoint(SetupError):
    """Model files that are not what their family says."""


class OutOfMemory(SetupError):
    """The key-value cache would not hold one sequence."""


class BadRequest(BackendError):
    """`param` names the field of the request, if one is to blame."""

    def __init__(self, message: str, *, param: str | None = None, code: str | None = None) -> None:
        super().__init__(message)
        self.message = message
        self.param = param
        self.code = code


class ContextOverflow(BadRequest):
    """Prompt and answer are longer than the context."""

    def __init__(self, message: str) -> None:
        super().__init__(message, param="messages", code="context_length_exceeded")


class Overloaded(BackendError):
    """`retry_after_s`: when there will probably be room."""

    def __init__(self, message: str, *, retry_after_s: float) -> None:
        super().__init__(message)
        self.retry_after_s = retry_after_s


class Unavailable(BackendError):
    """Nothing can be answered now; `retry_after_s` None: not by this process any more."""

    def __init__(self, message: str, *, retry_after_s: float | None = None) -> None:
        super().__init__(message)
        self.retry_after_s = retry_after_s


class RequestTimedOut(BackendError):
    """One request took longer than the server allows; it was cancelled."""


class RequestFailed(BackendError):
    """One request's own failure."""
