"""Where the policy comes from: a watched file or the store. A bad one never replaces a good one."""

from __future__ import annotations

import asyncio
import contextlib
import os
from collections.abc import Awaitable, Callable, Mapping
from pathlib import Path

import structlog

from gateway.errors import PolicyError, SetupError
from gateway.policy.load import Policy, load_policy

log = structlog.get_logger()

POLL_S = 0.5
SETTLED_S = 0.05  # a file that changes within it is still being written
POLICY_BYTES_MAX = 256 * 1024

OnChange = Callable[[Policy], Awaitable[None]]
ReadStore = Callable[[], Awaitable[tuple[bytes, str] | None]]


class FilePolicySource:
    """Follows one path by content, so that editors' renames and swapped symlinks are seen too."""

    def __init__(self, path: Path, environ: Mapping[str, str]) -> None:
        self._path = path
        self._environ = environ
        self._stat: tuple[int, int, int] | None = None
        self.text = b""  # of the policy in force
        self._seen = b""  # what was read last, good or bad
        self._fault = ""  # of what was read last
        self.last_error = ""
        self.current = self._load_first()

    def _load_first(self) -> Policy:
        try:
            self._stat = self._fingerprint()
            text = read_policy_file(self._path)
        except OSError as error:
            raise SetupError(
                f"cannot read the policy {self._path}: {error.strerror}; "
                "pass --policy FILE, or start from deploy/policy.example.yaml"
            ) from error
        self.text = self._seen = text
        return load_policy(text, environ=self._environ, source=str(self._path))

    def _fingerprint(self) -> tuple[int, int, int]:
        # stat() follows links: a swapped target changes inode or time.
        status = self._path.stat()
        return (status.st_ino, status.st_mtime_ns, status.st_size)

    @property
    def path(self) -> Path:
        return self._path

    def owner(self) -> str:
        """Whose file it is: the nearest there is to who changed it by hand; "" = unknown."""
        with contextlib.suppress(OSError, KeyError, NotImplementedError):
            return self._path.owner()
        return ""

    async def reload(self, on_change: OnChange, *, force: bool = False) -> bool:
        """Read again if the file changed. A policy that does not load leaves the last good one."""
        try:
            stat = self._fingerprint()
            if stat == self._stat and not force:
                return False
            await asyncio.sleep(SETTLED_S)
            if self._fingerprint() != stat and not force:
                return False  # half of a policy may be a policy too
            text = await asyncio.to_thread(read_policy_file, self._path)
        except OSError as error:
            self._stat = None  # it is read again once it is back
            self._complain(f"{self._path}: {error.strerror}")
            return False
        self._stat = stat
        if text == self._seen and not force:
            self._complain(self._fault)
            return False
        self._seen = text
        try:
            policy = load_policy(text, environ=self._environ, source=str(self._path))
        except PolicyError as error:
            self._fault = str(error)
            self._complain(self._fault)
            return False
        self._fault = self.last_error = ""
        self.text = text
        changed = policy.version != self.current.version
        self.current = policy
        if changed:
            await on_change(policy)
            log.info("policy loaded", version=policy.version, source=str(self._path))
        return changed

    def _complain(self, fault: str) -> None:
        """Show what is wrong, and log it once; "" = nothing any more."""
        message = f"{fault}; the last good policy stays in force" if fault else ""
        if message and message != self.last_error:
            log.error("policy not loaded", error=message)
        self.last_error = message

    async def follow(self, on_change: OnChange, wake: asyncio.Event) -> None:
        """Poll until cancelled; `wake` (SIGHUP) forces a reload at once."""
        while True:
            forced = False
            try:
                await asyncio.wait_for(wake.wait(), POLL_S)
                wake.clear()
                forced = True
            except TimeoutError:
                pass
            await self.reload(on_change, force=forced)


class StorePolicySource:
    """The newest version in SQL (`--policy store`); a file was imported into it once."""

    def __init__(
        self, policy: Policy, text: bytes, read: ReadStore, environ: Mapping[str, str]
    ) -> None:
        self.current = policy
        self.text = text
        self.last_error = ""
        self._read = read
        self._environ = environ

    async def reload(self, on_change: OnChange, *, force: bool = False) -> bool:
        found = await self._read()
        if found is None:
            return False
        text, version = found
        if version == self.current.version and not force:
            self.last_error = ""
            return False
        try:
            policy = load_policy(text, environ=self._environ, source="store")
        except PolicyError as error:
            message = f"{error}; the last good policy stays in force"
            if message != self.last_error:
                log.error("policy not loaded", error=message)
            self.last_error = message
            return False
        self.last_error = ""
        changed = policy.version != self.current.version
        self.current, self.text = policy, text
        if changed:
            await on_change(policy)
        return changed

    async def follow(self, on_change: OnChange, wake: asyncio.Event) -> None:
        while True:
            try:
                await asyncio.wait_for(wake.wait(), POLL_S * 2)
                wake.clear()
            except TimeoutError:
                pass
            await self.reload(on_change)


PolicySource = FilePolicySource | StorePolicySource


def read_policy_file(path: Path) -> bytes:
    """At most POLICY_BYTES_MAX + 1 bytes, so that a wrong path cannot fill the memory."""
    descriptor = os.open(path, os.O_RDONLY)
    with os.fdopen(descriptor, "rb") as handle:
        return handle.read(POLICY_BYTES_MAX + 1)
