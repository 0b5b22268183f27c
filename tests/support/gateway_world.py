"""What tests of a running gateway share: keys made in-process, its books read straight from SQL."""

from __future__ import annotations

import asyncio
import http.client
import json
import sqlite3
import time
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import httpx
from click.testing import CliRunner

from gateway.cli import cli
from gateway.cli.support import open_current_store
from gateway.keys import service
from gateway.keys.tenants import ensure_tenant
from gateway.keys.wanted import Budget, NewKey
from gateway.ledger.verify import verify
from gateway.settings import Settings
from gateway.store.engine import Store

WAIT_S = 30.0
CHAT = "/v1/chat/completions"

T = TypeVar("T")


def wait_until(holds: Callable[[], bool], what: str, *, wait_s: float = WAIT_S) -> float:
    """Seconds until it held; fails the test when it does not in time."""
    began_s = time.monotonic()
    while not holds():
        assert time.monotonic() - began_s < wait_s, f"waited {wait_s} s for {what}"
        time.sleep(0.01)
    return time.monotonic() - began_s


def settings_of(home: Path, environ: Mapping[str, str] | None = None) -> Settings:
    """What a command started with this home and environment would read."""
    return Settings.from_environment({"LOOPROUTER_HOME": str(home), **(environ or {})})


def in_store(settings: Settings, work: Callable[[Store], Any]) -> Any:
    """The result of `await work(store)` in another process's shoes: an own engine, then closed."""

    async def main() -> Any:
        async with open_current_store(settings) as store:
            return await work(store)

    return asyncio.run(main())


def run_cli(*arguments: str, home: Path, environ: Mapping[str, str] | None = None) -> Any:
    """The JSON that `looprouter ARGUMENTS --json` prints, run here: a start costs a second."""
    done = CliRunner().invoke(
        cli,
        [*arguments, "--json"],
        env={"LOOPROUTER_HOME": str(home), **(environ or {})},
        catch_exceptions=False,
    )
    assert done.exit_code == 0, f"{arguments}: {done.output}"
    return json.loads(done.stdout)


def issue_keys(
    home: Path, wanted: Mapping[str, NewKey], environ: Mapping[str, str] | None = None
) -> dict[str, str]:
    """The text of a new key for each name, made as `looprouter keys create` makes it."""
    settings = settings_of(home, environ)

    async def work(store: Store) -> dict[str, str]:
        now = time.time()
        tenant_id = await ensure_tenant(store, "default", "default", now=now)
        pepper = settings.pepper()
        return {
            name: (await service.create_key(store, pepper, tenant_id, key, now=now)).key
            for name, key in wanted.items()
        }

    made: dict[str, str] = in_store(settings, work)
    return made


def issue_key(home: Path, environ: Mapping[str, str] | None = None, **wanted: Any) -> str:
    return issue_keys(home, {"key": NewKey(**wanted)}, environ)["key"]


def budget(dollars: float, period: str = "total") -> tuple[Budget, ...]:
    return (Budget(limit_nanos=round(dollars * 1_000_000_000), period=period),)


def problems_of(home: Path, environ: Mapping[str, str] | None = None) -> list[str]:
    """What `looprouter ledger verify` would say."""
    settings = settings_of(home, environ)
    found: list[str] = in_store(settings, lambda store: verify(store, home / "journal"))
    return found


def rows_of(home: Path, query: str) -> list[dict[str, Any]]:
    """Rows of the SQLite file, read beside the running server."""
    connection = sqlite3.connect(f"file:{home / 'looprouter.db'}?mode=ro", uri=True, timeout=10)
    try:
        connection.row_factory = sqlite3.Row
        return [dict(row) for row in connection.execute(query)]
    finally:
        connection.close()


def chat(content: str = "Hello", **fields: Any) -> dict[str, Any]:
    return {"model": "chat", "messages": [{"role": "user", "content": content}], **fields}


@dataclass(frozen=True, slots=True)
class Answered:
    """One answer, read to its end."""

    status: int
    headers: Mapping[str, str]  # lower-case names
    text: str

    @property
    def json(self) -> Any:
        return json.loads(self.text)

    @property
    def code(self) -> str:
        """The error's code."""
        return str(self.json["error"]["code"])


class Client:
    """One keep-alive connection of one thread; a tenth of the CPU of a full HTTP library."""

    def __init__(self, base_url: str, key: str) -> None:
        self._key = key
        self._connection = http.client.HTTPConnection(base_url.removeprefix("http://"), timeout=60)

    def ask(
        self, body: Any, headers: Mapping[str, str] | None = None, *, path: str = CHAT
    ) -> Answered:
        """POST JSON; raises OSError or HTTPException when the connection breaks."""
        given = {"content-type": "application/json", **bearer(self._key), **(headers or {})}
        self._connection.request("POST", path, json.dumps(body), given)
        answer = self._connection.getresponse()
        text = answer.read().decode()
        return Answered(
            answer.status, {name.lower(): value for name, value in answer.getheaders()}, text
        )

    def close(self) -> None:
        self._connection.close()


def in_threads(num_threads: int, work: Callable[[], T]) -> list[T]:
    """The results of as many threads that all run `work`; the first error is raised."""
    with ThreadPoolExecutor(num_threads) as pool:
        return [each.result() for each in [pool.submit(work) for _ in range(num_threads)]]


def bearer(key: str) -> dict[str, str]:
    return {"authorization": f"Bearer {key}"}


def texts_of(stream: str) -> tuple[str, list[Any]]:
    """(the whole text, every JSON event) of a chat stream, `[DONE]` left out."""
    events = [
        json.loads(line[6:])
        for line in stream.split("\n")
        if line.startswith("data: ") and line != "data: [DONE]"
    ]
    parts = [
        choice["delta"].get("content") or ""
        for event in events
        for choice in event.get("choices", ())
    ]
    return "".join(parts), events


def status_of(base_url: str) -> dict[str, Any]:
    found: dict[str, Any] = httpx.get(f"{base_url}/status.json").json()
    return found
