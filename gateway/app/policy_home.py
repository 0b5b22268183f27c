"""Writes a policy to where it lives: the file that is watched, or the database."""

from __future__ import annotations

import asyncio
import contextlib
import os
import secrets
import stat
from abc import ABC, abstractmethod
from collections.abc import Callable
from pathlib import Path
from typing import Literal

from sqlalchemy.ext.asyncio import AsyncConnection

from gateway.app.policy_source import FilePolicySource, StorePolicySource, read_policy_file
from gateway.errors import Conflict
from gateway.policy.home import Change, Held
from gateway.policy.load import version_of
from gateway.store.engine import Store
from gateway.store.policies import activate_policy, active_policy, lock_policies

LOOK_EVERY_S = 0.02
LOOKS_MAX = 250  # from written to in force; later is not waited for
OTHER_LOOKS_MAX = 50  # for another's text, which may never load
STORED = "store"  # what rows say of where a text came from


class _Keeper(ABC):
    """What both homes have in common: one publication at a time, and the wait for its effect."""

    def __init__(
        self,
        source: FilePolicySource | StorePolicySource,
        store: Store,
        *,
        wall_clock: Callable[[], float],
        reload: asyncio.Event,
    ) -> None:
        self._source = source
        self._store = store
        self._wall_clock = wall_clock
        self._reload = reload
        self._turn = asyncio.Lock()

    @property
    def text(self) -> bytes:
        return self._source.text

    async def _activate(self, connection: AsyncConnection, change: Change, source: str) -> None:
        await activate_policy(
            connection,
            version=change.version,
            text=change.text.decode(),
            source=source,
            now=self._wall_clock(),
            actor=change.actor,
            action=change.action,
            note=change.note,
        )

    async def publish(self, change: Change) -> None:
        """Conflict where it was changed since, and where it cannot be written."""
        try:
            await self._put(change)
        except Conflict as error:
            if isinstance(error.detail, dict) and (version := error.detail.get("version")):
                # Whoever compares the two is to see what is there now.
                await self._in_force(version, OTHER_LOOKS_MAX)
            raise
        await self._in_force(change.version)

    @abstractmethod
    async def _put(self, change: Change) -> None:
        """Checks what it was made from and writes it."""

    async def _in_force(self, version: str, looks_max: int = LOOKS_MAX) -> None:
        """Whoever follows the home adopts it, and nobody else: there is one way into force."""
        self._reload.set()
        for _ in range(looks_max):
            if self._source.current.version == version:
                return
            await asyncio.sleep(LOOK_EVERY_S)


class FileHome(_Keeper):
    """The file given with `--policy`. Behind a symlink its target is written."""

    kind: Literal["file", "store"] = "file"

    def __init__(
        self,
        source: FilePolicySource,
        store: Store,
        *,
        wall_clock: Callable[[], float],
        reload: asyncio.Event,
    ) -> None:
        super().__init__(source, store, wall_clock=wall_clock, reload=reload)
        self._path = source.path

    @property
    def place(self) -> str:
        return str(self._path)

    async def held(self) -> Held:
        text = await asyncio.to_thread(read_policy_file, self._path)
        version = version_of(text)
        is_in_force = version == self._source.current.version
        return Held(
            text=text, version=version, fault="" if is_in_force else self._source.last_error
        )

    async def locked(self) -> str:
        return await asyncio.to_thread(why_not_writable, self._path)

    async def _put(self, change: Change) -> None:
        async with self._turn:
            target = self._path.resolve()
            try:
                draft = await asyncio.to_thread(write_draft, target, change.text)
            except OSError as error:
                raise _not_written(target, error) from error
            try:
                async with self._store.begin() as connection:
                    await lock_policies(connection)
                    _refuse_other(change.base, (await self.held()).version)
                    # Told before the file is seen to change: who follows it finds it told.
                    await self._activate(connection, change, str(self._path))
                    await asyncio.to_thread(os.replace, draft, target)
            except OSError as error:
                raise _not_written(target, error) from error
            finally:
                draft.unlink(missing_ok=True)


class StoreHome(_Keeper):
    """The newest version in SQL."""

    kind: Literal["file", "store"] = "store"
    place = ""

    async def held(self) -> Held:
        async with self._store.read() as connection:
            row = await active_policy(connection)
        assert row is not None  # the gateway serves it

        is_in_force = row.version == self._source.current.version
        fault = "" if is_in_force else self._source.last_error
        return Held(text=row.text.encode(), version=row.version, fault=fault)

    async def locked(self) -> str:
        return ""

    async def _put(self, change: Change) -> None:
        async with self._turn, self._store.begin() as connection:
            await lock_policies(connection)
            row = await active_policy(connection)
            _refuse_other(change.base, row.version if row is not None else "")
            await self._activate(connection, change, STORED)


def policy_home(
    source: FilePolicySource | StorePolicySource,
    store: Store,
    wall_clock: Callable[[], float],
    reload: asyncio.Event,
) -> FileHome | StoreHome:
    """The home of a source; `reload` wakes who follows it."""
    if isinstance(source, FilePolicySource):
        return FileHome(source, store, wall_clock=wall_clock, reload=reload)
    return StoreHome(source, store, wall_clock=wall_clock, reload=reload)


def why_not_writable(path: Path) -> str:
    """A sentence; "" where a file may be replaced there. The last word has the file system."""
    target = path.resolve()
    try:
        mode = target.stat().st_mode
    except OSError as error:
        return f"{target}: {error.strerror}"
    # Root may write what says that nobody shall; then nobody means us too.
    if not mode & (stat.S_IWUSR | stat.S_IWGRP | stat.S_IWOTH) or not os.access(target, os.W_OK):
        return f"{target} is read-only"
    if not os.access(target.parent, os.W_OK | os.X_OK):
        return f"{target.parent} is read-only"
    return ""


def write_draft(target: Path, text: bytes) -> Path:
    """The text on disk beside `target`, with its mode and owner, ready to take its place."""
    if why := why_not_writable(target):
        raise PermissionError(0, why)
    status = target.stat()
    draft = target.with_name(f".{target.name}.{secrets.token_hex(6)}.draft")
    descriptor = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    try:
        with os.fdopen(descriptor, "wb") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        draft.chmod(stat.S_IMODE(status.st_mode))
        with contextlib.suppress(PermissionError):  # only root may give files away
            os.chown(draft, status.st_uid, status.st_gid)
    except OSError:
        draft.unlink(missing_ok=True)
        raise
    return draft


def _refuse_other(base: str, version: str) -> None:
    if base != version:
        raise Conflict(
            f"the policy is another than the one you began with: version {version}, not "
            f"{base or 'none'}; compare the two, then publish on {version}",
            code="policy_changed",
            detail={"version": version},
        )


def _not_written(target: Path, error: OSError) -> Conflict:
    return Conflict(
        f"the policy file cannot be written ({error.strerror or error}): change {target} where it "
        "comes from, or serve the policy from the database (looprouter policy import, then "
        "--policy store)",
        code="policy_not_writable",
    )
