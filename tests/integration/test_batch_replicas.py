"""Two serving processes on one PostgreSQL and one folder: they share a batch, and one is killed."""

from __future__ import annotations

import asyncio
import secrets
import signal
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import pytest

from gateway.simulator.native_profile import BatchProfile
from gateway.simulator.profile import ProviderProfile, SimulatedPrice
from tests.support.batch_books import assert_each_once, compared, lines_of, question_lines
from tests.support.batch_world import ENDED, joined_lines
from tests.support.gateway_process import RunningGateway, start_gateway
from tests.support.gateway_world import issue_key, problems_of, wait_until
from tests.support.postgres_database import scratch_database
from tests.support.redis_server import own_redis
from tests.support.simulator_process import (
    SimulatorProcess,
    policy_over,
    simulator_processes,
)

pytestmark = [pytest.mark.e2e, pytest.mark.slow, pytest.mark.postgres, pytest.mark.redis]

NUM_LINES = 400
STEADY: dict[str, Any] = {
    "ttft_base_s": 0.2,
    "ttft_sigma": 0.1,
    "tokens_per_s": 60.0,
    "answer_tokens_median": 60,
}
PROFILES = (
    ProviderProfile(
        name="at-once", model="sim", price=SimulatedPrice(input=137_000, output=593_000), **STEADY
    ),
    ProviderProfile(
        name="has-batch",
        model="sim",
        price=SimulatedPrice(input=333_333, output=777_777),
        batch=BatchProfile(turnaround_median_s=15.0, turnaround_sigma=0.1),
        **STEADY,
    ),
)
MODELS = {"sync": ("at-once",), "native": ("has-batch",)}
# A process is taken for dead after a minute, as are its claims.
WAIT_S = 180.0


@dataclass(frozen=True, slots=True)
class Two:
    gateways: list[RunningGateway]
    providers: dict[str, SimulatorProcess]
    database_url: str

    def rows(self, query: str) -> list[dict[str, Any]]:
        return asyncio.run(_rows(self.database_url, query))


async def _rows(url: str, query: str) -> list[dict[str, Any]]:
    import asyncpg

    connection = await asyncpg.connect(url)
    try:
        return [dict(row) for row in await connection.fetch(query)]
    finally:
        await connection.close()


@contextmanager
def two_gateways(folder: Path) -> Iterator[Two]:
    with ExitStack() as stack:
        database_url = stack.enter_context(scratch_database())
        redis = stack.enter_context(own_redis(folder))
        environ = {
            "LOOPROUTER_PEPPER": secrets.token_urlsafe(32),
            "LOOPROUTER_DATABASE_URL": database_url,
            "LOOPROUTER_REDIS_URL": redis.url,
            "LOOPROUTER_REPLICAS": "2",
            "LOOPROUTER_FILES_URL": f"file://{folder}/files",
        }
        providers = stack.enter_context(simulator_processes(PROFILES, folder / "providers"))
        text = policy_over(providers, MODELS)
        policy = "".join(
            line.replace("simulated: true", "simulated: true, quirks: [native_batch]")
            if line.startswith("  has-batch: ")
            else line
            for line in text.splitlines(keepends=True)
        )
        homes = [folder / name for name in ("left", "right")]
        for home in homes:
            home.mkdir()
        key = issue_key(homes[0], environ)
        gateways = []
        for home in homes:
            gateway = start_gateway(policy, home, environ=environ, key=key)
            stack.callback(gateway.stop)
            gateways.append(gateway)
        yield Two(gateways, providers, database_url)


def test_both_work_on_a_batch_and_the_living_one_ends_it(tmp_path: Path) -> None:
    with two_gateways(tmp_path) as two:
        left, right = two.gateways
        with httpx.Client(base_url=right.v1, headers=right.headers, timeout=60.0) as client:
            batch_id = make_batch(left)

            def owners() -> Counter[str]:
                rows = two.rows("SELECT lease_owner FROM batch_lines WHERE state = 'leased'")
                return Counter(row["lease_owner"] for row in rows)

            wait_until(lambda: len(owners()) == 2, "both to work on it")
            wait_until(
                lambda: bool(two.rows("SELECT 1 FROM native_batches WHERE state = 'running'")),
                "the provider's batch",
            )
            victim, survivor = native_owner_first(two, left, right)
            victim.process.send_signal(signal.SIGKILL)
            victim.process.wait(10)
            killed_s = time.monotonic()
            client.base_url = survivor.v1
            batch = client.get(f"/batches/{batch_id}").json()
            while batch["status"] not in ENDED:
                assert time.monotonic() - killed_s < WAIT_S, batch["looprouter"]["lines"]
                time.sleep(0.5)
                batch = client.get(f"/batches/{batch_id}").json()
            print(f"\n{NUM_LINES} lines, ended {time.monotonic() - killed_s:.0f} s after the kill")
            assert batch["looprouter"]["lines"] == {"succeeded": NUM_LINES}
            assert_each_once(lines_of(client, batch), NUM_LINES)
        # What only the dead one's journal knows is booked when its machine comes back.
        back = start_gateway(
            (victim.home / "policy.yaml").read_text(),
            victim.home,
            environ=victim.environ,
            key=victim.key,
        )
        for gateway in (back, survivor):
            assert gateway.stop() == 0, gateway.log()[-4_000:]
            assert "own fault" not in gateway.log()
        assert problems_of(victim.home, victim.environ) == []
        check_books(two)


def native_owner_first(
    two: Two, left: RunningGateway, right: RunningGateway
) -> tuple[RunningGateway, RunningGateway]:
    """The process that has the provider's batch is the one to kill: its log says so."""
    (row,) = two.rows("SELECT id FROM native_batches")
    return (left, right) if row["id"] in left.log() else (right, left)


def make_batch(gateway: RunningGateway) -> str:
    data = joined_lines(question_lines(NUM_LINES, tuple(MODELS)))
    with httpx.Client(base_url=gateway.v1, headers=gateway.headers, timeout=60.0) as client:
        file = client.post("/files", files={"file": ("in.jsonl", data)}, data={"purpose": "batch"})
        assert file.status_code == 200, file.text
        made = client.post("/batches", json={"input_file_id": file.json()["id"]})
        assert made.status_code == 200, made.text
        return str(made.json()["id"])


def check_books(two: Two) -> None:
    """Native lines are exact even though their process died; the killed sync ones are estimates."""
    books = compared(
        two.rows("SELECT * FROM attempts"),
        two.rows("SELECT * FROM corrections"),
        [line for each in two.providers.values() for line in each.invoice()["lines"]],
    )
    print(f"{books.num_exact} exact, {books.num_estimated} estimated, {books.above:+.3%}")
    assert books.num_exact + books.num_estimated >= NUM_LINES
    assert 0.0 <= books.above < 0.05
    native = [
        row["attempt_id"]
        for row in two.rows("SELECT attempt_id, is_estimated FROM attempts")
        if row["attempt_id"].startswith("att_nb_") and row["is_estimated"]
    ]
    corrected = {row["attempt_id"] for row in two.rows("SELECT attempt_id FROM corrections")}
    assert native
    assert set(native) <= corrected
