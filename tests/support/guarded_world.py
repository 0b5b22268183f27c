"""A gateway before one simulated provider a dialect, and proof that a request touched neither."""

from __future__ import annotations

import json
import sqlite3
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx

from gateway.simulator.profile import ProviderProfile
from gateway.wire.pieces import Dialect
from tests.support.gateway_process import RunningGateway, running_gateway
from tests.support.simulator_process import (
    BRISK,
    SimulatorProcess,
    policy_over,
    simulator_processes,
)

WAIT_S = 20.0
OPENAI_SECRET = "sk-canary-openai-provider-key-0123456789"
ANTHROPIC_SECRET = "sk-ant-canary-provider-key-0123456789"
PROFILES = (
    ProviderProfile(name="open-sim", model="gpt-sim", api_key=OPENAI_SECRET, **BRISK),
    ProviderProfile(name="anth-sim", model="claude-sim", api_key=ANTHROPIC_SECRET, **BRISK),
)
MODELS = {"gpt": ("open-sim",), "claude": ("anth-sim",)}
KEY_ENVS = {"open-sim": "OPEN_SIM_KEY", "anth-sim": "ANTH_SIM_KEY"}
ENVIRON = {"OPEN_SIM_KEY": OPENAI_SECRET, "ANTH_SIM_KEY": ANTHROPIC_SECRET}

# A good request of every surface that takes one.
GOOD: dict[str, dict[str, Any]] = {
    "/v1/chat/completions": {
        "model": "gpt", "messages": [{"role": "user", "content": "hi"}], "max_tokens": 8,
    },
    "/v1/completions": {"model": "gpt", "prompt": "hi", "max_tokens": 8},
    "/v1/responses": {"model": "gpt", "input": "hi", "max_output_tokens": 16},
    "/v1/embeddings": {"model": "gpt", "input": "hi"},
    "/v1/messages": {
        "model": "claude", "messages": [{"role": "user", "content": "hi"}], "max_tokens": 8,
    },
    "/v1/messages/count_tokens": {
        "model": "claude", "messages": [{"role": "user", "content": "hi"}],
    },
}  # fmt: skip


@dataclass(slots=True)
class GuardedWorld:
    """Requests go through `http`; `untouched` proves that nothing came of one."""

    gateway: RunningGateway
    providers: Mapping[str, SimulatorProcess]
    http: httpx.Client = field(default_factory=lambda: httpx.Client(timeout=30))

    def url(self, path: str) -> str:
        return f"{self.gateway.base_url}{path}"

    def num_seen(self) -> int:
        """Requests that any provider received."""
        return sum(int(each.stats()["requests_seen"]) for each in self.providers.values())

    def booked(self) -> tuple[int, ...]:
        """What the ledger holds: attempts, entries, their sums, what budgets have spent."""
        rows = self.sql(
            "SELECT (SELECT count(*) FROM attempts), (SELECT count(*) FROM entries), "
            "(SELECT coalesce(sum(cost_nanos), 0) FROM attempts), "
            "(SELECT coalesce(sum(spent_nanos + unattributed_nanos), 0) FROM budget_windows)"
        )
        return tuple(rows[0])

    def sql(self, statement: str, *values: object) -> list[Any]:
        path = self.gateway.home / "looprouter.db"
        connection = sqlite3.connect(f"file:{path}?mode=ro", uri=True, timeout=10)
        try:
            return connection.execute(statement, values).fetchall()
        finally:
            connection.close()

    def serve_all(self) -> None:
        """A good request on every surface, and its booking."""
        for path in GOOD:
            answer = self.post(path)
            assert answer.status_code == 200, (path, answer.text)
        self.wait_booked()

    def wait_booked(self) -> None:
        """Until the ledger has settled every request that any provider received."""
        wait_until(lambda: self._num_settled() == self.num_seen(), "the ledger")

    def _num_settled(self) -> int:
        return int(self.sql("SELECT count(*) FROM attempts WHERE state != 'sent'")[0][0])

    @contextmanager
    def untouched(self) -> Iterator[None]:
        """Nothing in here is sent upstream, nothing is charged."""
        seen, booked = self.num_seen(), self.booked()
        yield
        assert self.num_seen() == seen, "something was sent upstream"
        assert self.booked() == booked, "something was booked"

    def post(self, path: str, body: Any = None, **headers: str) -> httpx.Response:
        """With the world's key, unless a credential is among `headers` (_ stands for -)."""
        named = {name.replace("_", "-"): value for name, value in headers.items()}
        content = body if isinstance(body, bytes) else json.dumps(body or GOOD[path]).encode()
        return self.http.post(
            self.url(path),
            content=content,
            headers={"content-type": "application/json", **self.gateway.headers, **named},
        )


@contextmanager
def guarded_world(
    home: Path, *, more: str = "", environ: Mapping[str, str] | None = None, **options: Any
) -> Iterator[GuardedWorld]:
    """One for a file of tests. At the end the ledger has exactly what the providers were sent."""
    with simulator_processes(PROFILES, home / "simulator") as providers:
        policy = policy_over(
            providers, MODELS, anthropic=("anth-sim",), key_envs=KEY_ENVS, more=more
        )
        with running_gateway(
            policy, home / "home", environ={**ENVIRON, **(environ or {})}, **options
        ) as gateway:
            world = GuardedWorld(gateway, providers)
            try:
                yield world
                seen = world.num_seen()
                gateway.stop()
                assert world.booked()[0] == seen, "attempts booked are not requests received"
                assert "unexpected error" not in gateway.log(), gateway.log()[-4000:]
            finally:
                world.http.close()


def wait_until(holds: Callable[[], bool], what: str, *, wait_s: float = WAIT_S) -> None:
    deadline_s = time.monotonic() + wait_s
    while not holds():
        assert time.monotonic() < deadline_s, f"waited {wait_s} s for {what}"
        time.sleep(0.02)


def dialect_of(path: str) -> Dialect:
    return Dialect.ANTHROPIC if path.startswith("/v1/messages") else Dialect.OPENAI


def checked_error(answer: httpx.Response, dialect: Dialect, status: int) -> dict[str, Any]:
    """The error object of an answer, once it is in the shape that the dialect's SDK reads."""
    assert answer.status_code == status, (answer.status_code, answer.text[:500])
    assert answer.headers["content-type"] == "application/json"
    body = answer.json()
    error: dict[str, Any] = body["error"]
    assert isinstance(error["message"], str)
    assert len(error["message"]) > 10
    if dialect is Dialect.ANTHROPIC:
        assert body["type"] == "error"
        assert isinstance(error["type"], str)
        assert body["request_id"] == answer.headers["request-id"]
    else:
        assert set(error) >= {"message", "type", "param", "code"}
        assert answer.headers["x-request-id"]
    assert answer.headers["x-looprouter-request-id"].startswith("req_")
    return error
