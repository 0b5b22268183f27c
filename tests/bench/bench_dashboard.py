"""Measures the dashboard on a filled database: every page of the navigation, filters of the log.

Run: python tests/bench/make_request_rows.py URL, then python tests/bench/bench_dashboard.py URL

Pages are asked of a whole gateway in this process as a browser asks them. For each: server time
(median, 95th percentile and worst of the runs after one that is not counted; p95 ≤ 150 ms), the
median of this process's CPU time (on SQLite the database's too), which is what remains where other
work shares the machine; for a page of the navigation also what one load fetches: requests (≤ 12,
its event stream among them) and bytes as gzip has them (≤ 300 kB). Exit status 1 beyond a limit.
"""

from __future__ import annotations

import argparse
import asyncio
import gzip
import math
import re
import statistics
import tempfile
import time
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from functools import partial
from pathlib import Path
from urllib.parse import urlencode

import httpx
import sqlalchemy as sa

from gateway.api.app import build_litestar
from gateway.app.batching import running_batches
from gateway.app.compose import running_gateway, running_store
from gateway.app.policy_source import FilePolicySource
from gateway.batch.routes import serve_batch_path
from gateway.dashboard.accounts import create_admin
from gateway.dashboard.app import dashboard_routes
from gateway.dashboard.pages import PAGES
from gateway.dashboard.queries_requests import Filters, newest_lines, text_of
from gateway.dashboard.queries_spend import COLUMNS
from gateway.dashboard.requests import TAIL_BACK_S, TAIL_ROWS
from gateway.pipeline import Gateway
from gateway.settings import Settings
from gateway.store.rollup_tables import request_rollups
from gateway.store.tables import requests
from tests.bench.make_request_rows import ENDPOINTS, MODELS, RARE

LIMIT_MS = 150.0
REQUESTS_MAX = 12
GZIP_BYTES_MAX = 300_000
ORIGIN = "http://localhost"
PARTS = re.compile(r'<(?:script|link|img)[^>]*?(?:src|href)="(/admin/static/[^"]+)"')
IMPORTS = re.compile(r'from "\./([^"]+\.js)"')
EVENTS = re.compile(r'data-events="|data-stream="')


def urls_of(middle: float, request_id: str) -> dict[str, str]:
    """What is measured, by name."""
    found = {f"page {page.path}": f"/admin{page.path}" for page in PAGES}
    found["keys: all of a tenant"] = "/admin/keys?tenant=Tenant+1"
    found["keys: one opened"] = "/admin/keys/key1?tenant=Tenant+1"
    found["requests: one opened"] = f"/admin/requests/{request_id}"
    for name, query in {
        "from the middle": {"before": text_of((middle, ""))},
        "of a tenant": {"tenant": "tenant2"},
        "of a key, failed": {"key": "key1", "outcome": "failed"},
        "of a key and a model": {"key": "key39", "model": "code"},
        "of a model": {"model": "code"},
        "of a rare model": {"model": RARE},
        "of a rare model of one tenant, failed": {
            "tenant": "tenant4", "model": RARE, "outcome": "failed",
        },
        "of a model that nobody asked for": {"model": "none"},
        "failed, of an endpoint": {"endpoint": ENDPOINTS[-1], "outcome": "failed"},
        "a rare model at a rare endpoint": {"endpoint": ENDPOINTS[-1], "model": RARE},
        "a lane and tenant that never meet": {"tenant": "tenant1", "lane": "batch"},
        "a lane that a key never took": {"key": "key1", "lane": "batch"},
        "batch lane until the middle": {
            "lane": "batch", "until": time.strftime("%Y-%m-%dT%H:%M", time.gmtime(middle)),
        },
    }.items():  # fmt: skip
        found[f"requests: {name}"] = f"/admin/requests?{urlencode(query)}"
    for by in COLUMNS:
        found[f"spend: 30 days by {by}"] = f"/admin/spend?by={by}"
    return found


@asynccontextmanager
async def opened(url: str) -> AsyncIterator[tuple[Gateway, httpx.AsyncClient]]:
    """A gateway on that database, in a home of its own, and an owner's browser."""
    async with AsyncExitStack() as stack:
        home = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        (home / "policy.yaml").write_text(policy_text())
        environ = {
            "LOOPROUTER_HOME": str(home),
            "LOOPROUTER_DATABASE_URL": url,
            "LOOPROUTER_RETENTION": "requests=forever,hours=3650,minutes=31",
        }
        settings = Settings.from_environment(environ)
        store = await stack.enter_async_context(running_store(settings))
        source = FilePolicySource(home / "policy.yaml", settings.environ)
        gateway, _ = await stack.enter_async_context(running_gateway(settings, store, source))
        lane = await stack.enter_async_context(running_batches(gateway))
        beside = partial(serve_batch_path, lane)
        app = build_litestar(gateway, beside, dashboard_routes(gateway, lane))
        name = f"bench{time.time_ns()}"
        admin = await create_admin(store, name, "owner", now=time.time(), actor="bench")
        transport = httpx.ASGITransport(app, client=("127.0.0.1", 4711))
        http = httpx.AsyncClient(transport=transport, base_url=ORIGIN, headers={"origin": ORIGIN})
        await stack.enter_async_context(http)
        csrf = (await http.get("/admin/api/session")).json()["csrf"]
        answer = await http.post(
            "/admin/api/session",
            json={"name": name, "password": admin.password},
            headers={"x-csrf-token": csrf},
        )
        answer.raise_for_status()
        yield gateway, http


def policy_text() -> str:
    """The endpoints and models that the rows are of."""
    lines = ["version: 1", "providers:"]
    for provider in sorted({each.partition("/")[0] for each in ENDPOINTS}):
        lines.append(f'  {provider}: {{base_url: "http://127.0.0.1:9/v1", network: private}}')
    lines.append("models:")
    for model in MODELS:
        lines.append(f"  {model}:")
        for each in ENDPOINTS:
            provider, _, name = each.partition("/")
            lines.append(
                f"    - {{provider: {provider}, model: {name}, canonical: bench, "
                "price: {input: 0.59, output: 0.79}}"
            )
    return "\n".join(lines) + "\n"


class Times:
    """What some runs took, the first one not counted."""

    def __init__(self) -> None:
        self.ms: list[float] = []
        self.cpu_ms: list[float] = []
        self._begun = self._begun_cpu = 0.0

    def __enter__(self) -> None:
        self._begun, self._begun_cpu = time.perf_counter(), time.process_time()

    def __exit__(self, *_: object) -> None:
        self.ms.append((time.perf_counter() - self._begun) * 1000)
        self.cpu_ms.append((time.process_time() - self._begun_cpu) * 1000)

    def told(self, name: str) -> bool:
        first, *ms = self.ms
        p95 = sorted(ms)[math.ceil(0.95 * len(ms)) - 1]
        verdict = "" if p95 <= LIMIT_MS else "  OVER"
        print(
            f"{name:48} median {statistics.median(ms):6.1f} ms, p95 {p95:6.1f}, "
            f"worst {max(ms):6.1f}, first {first:6.1f}, "
            f"CPU {statistics.median(self.cpu_ms[1:]):5.1f}{verdict}",
            flush=True,
        )
        return p95 <= LIMIT_MS


async def load_of(http: httpx.AsyncClient, body: str) -> tuple[int, int]:
    """Requests of one load of a page by a browser that has nothing of it, and their bytes."""
    ahead = set(PARTS.findall(body))
    num_bytes, seen = len(gzip.compress(body.encode(), 6)), set(ahead)
    while ahead:
        answer = await http.get(ahead.pop())
        answer.raise_for_status()
        num_bytes += len(gzip.compress(answer.content, 6))
        imported = {f"/admin/static/{name}" for name in IMPORTS.findall(answer.text)} - seen
        ahead |= imported
        seen |= imported
    return 1 + len(seen) + len(EVENTS.findall(body)), num_bytes


async def measure(url: str, runs: int) -> bool:
    async with opened(url) as (gateway, http):
        async with gateway.store.read() as connection:
            c = requests.c.created_at
            first, last = (
                await connection.execute(sa.select(sa.func.min(c), sa.func.max(c)))
            ).one()
            # Counted from the roll-ups: to count the rows takes longer than a query may.
            of_days = request_rollups.c.grain == "day"
            counted = sa.select(sa.func.sum(request_rollups.c.num_requests)).where(of_days)
            num = int(await connection.scalar(counted))
            newest = await connection.scalar(sa.select(requests.c.id).where(c == last).limit(1))
        print(f"{num:,} requests on {gateway.store.dialect}; p95 at most {LIMIT_MS:.0f} ms")
        is_fine, loads = True, []
        for name, path in urls_of((first + last) / 2, newest).items():
            times = Times()
            for _ in range(runs + 1):
                with times:
                    answer = await http.get(path)
                assert answer.status_code == 200, (path, answer.text)
            is_fine &= times.told(name)
            if name.startswith("page "):
                loads.append((name, *await load_of(http, answer.text)))
        times = Times()
        for _ in range(runs + 1):
            with times:
                async with gateway.store.read() as connection:
                    asked = Filters(model=MODELS[0])
                    since = last - TAIL_BACK_S
                    await newest_lines(connection, asked, since=since, rows=TAIL_ROWS)
        is_fine &= times.told("requests: one look of the live tail")
        for name, num_requests, num_bytes in loads:
            fits = num_requests <= REQUESTS_MAX and num_bytes <= GZIP_BYTES_MAX
            is_fine &= fits
            verdict = "" if fits else "  OVER"
            print(f"{name:48} {num_requests:2} requests, {num_bytes / 1000:6.1f} kB gzip{verdict}")
    return is_fine


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("url")
    parser.add_argument("--runs", type=int, default=20)
    wanted = parser.parse_args()
    if not asyncio.run(measure(wanted.url, wanted.runs)):
        raise SystemExit(1)
