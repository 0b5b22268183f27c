"""F16: hundreds of clients that ask for megabytes and do not read: bounded memory, others unharmed.

Scaled to this machine by the number of files a process may have open: each reader is two sockets
of the gateway.
"""

from __future__ import annotations

import json
import resource
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest

from tests.support import flood_provider
from tests.support.gateway_process import RunningGateway, looprouter, running_gateway
from tests.support.guarded_world import wait_until
from tests.support.process_memory import resident_bytes

pytestmark = [pytest.mark.e2e, pytest.mark.slow]

MEBIBYTE = 1024 * 1024
READERS_WANTED = 500
FILES_SPARE = 250
GROWTH_MAX = 200 * MEBIBYTE
P99_RATIO, LOOSER = 1.5, 10.0
CLIENT_WAIT_S = 20  # the policy's limit on one write to a client
ENDPOINTS = 12  # each is believed to carry 64 requests until it has said otherwise
PROBES = 80


def num_readers() -> int:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = 2 * READERS_WANTED + FILES_SPARE
    if soft < wanted:
        soft = min(wanted, hard)
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))  # the gateway inherits it
    return min(READERS_WANTED, (soft - FILES_SPARE) // 2)


@dataclass(frozen=True, slots=True)
class World:
    gateway: RunningGateway
    flood_port: int
    http: httpx.Client

    def stats(self) -> Mapping[str, int]:
        found: Mapping[str, int] = self.http.get(f"http://127.0.0.1:{self.flood_port}/stats").json()
        return found

    def p99_s(self) -> float:
        took: list[float] = []
        body = {"model": "quick", "messages": [{"role": "user", "content": "hi"}]}
        for _ in range(PROBES):
            began_s = time.monotonic()
            answer = self.http.post(
                f"{self.gateway.v1}/chat/completions", json=body, headers=self.gateway.headers
            )
            took.append(time.monotonic() - began_s)
            assert answer.status_code == 200, answer.text
        return float(np.quantile(took, 0.99))


@contextmanager
def flood() -> Iterator[int]:
    process = subprocess.Popen(
        [sys.executable, str(Path(flood_provider.__file__))],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    )
    assert process.stdout is not None
    assert process.stdin is not None

    try:
        yield int(process.stdout.readline())
    finally:
        process.stdin.close()
        process.wait(10)


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    num_readers()
    with flood() as port, httpx.Client(timeout=60) as http:
        lines = ["version: 1", f"timeouts: {{client: {CLIENT_WAIT_S}s}}", "providers:"]
        names = [*(f"wide{idx}" for idx in range(ENDPOINTS)), "swift"]
        for name in names:
            lines.append(f'  {name}: {{base_url: "http://127.0.0.1:{port}/{name}/v1", '
                         "network: private}")  # fmt: skip
        price = "price: {input: 1, output: 2}"
        lines += ["models:", "  large:"]
        lines += [f"    - {{provider: {name}, model: m, {price}}}" for name in names[:-1]]
        lines += ["  quick:", f"    - {{provider: swift, model: m, {price}}}"]
        home = tmp_path_factory.mktemp("f16") / "home"
        with running_gateway("\n".join(lines) + "\n", home) as gateway:
            yield World(gateway, port, http)


def stalled_reader(world: World) -> socket.socket:
    """A client with a small window that asks for a long stream, and reads nothing."""
    body = json.dumps(
        {"model": "large", "stream": True, "messages": [{"role": "user", "content": "hi"}]}
    ).encode()
    sock = socket.socket()
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4_096)
    sock.connect(("127.0.0.1", world.gateway.port))
    head = (
        "POST /v1/chat/completions HTTP/1.1\r\nHost: localhost\r\n"
        f"Authorization: Bearer {world.gateway.key}\r\nContent-Length: {len(body)}\r\n\r\n"
    )
    sock.sendall(head.encode() + body)
    return sock


def booked(world: World) -> list[dict[str, Any]]:
    said = looprouter("ledger", "report", "--by", "model", "--json", home=world.gateway.home)
    rows: list[dict[str, Any]] = json.loads(said)
    return rows


def test_f16_stalled_readers_cost_bounded_memory_and_do_not_slow_others(world: World) -> None:
    pid, wanted = world.gateway.process.pid, num_readers()
    assert wanted >= 100
    world.p99_s()  # what the process takes once and keeps
    alone_s, before = world.p99_s(), resident_bytes(pid)
    socks = [stalled_reader(world) for _ in range(wanted)]
    try:
        wait_until(lambda: world.stats()["num_streams"] >= wanted, f"{wanted} streams", wait_s=60)
        began_s = time.monotonic()
        beside_s = world.p99_s()
        growth = resident_bytes(pid) - before
        stats = world.stats()
        # They are stalled, and so is the provider: what was sent lies in the sockets between.
        assert stats["num_open"] == wanted
        assert stats["bytes_sent"] < wanted * flood_provider.STREAM_MEBIBYTES * MEBIBYTE
        assert growth <= GROWTH_MAX
        assert beside_s < max(P99_RATIO * LOOSER * alone_s, 0.5)
        # Whoever does not read within the policy's time is given up, and upstream with it.
        wait_until(
            lambda: world.stats()["num_open"] == 0,
            "the streams of stalled readers to be closed",
            wait_s=CLIENT_WAIT_S + 40,
        )
        assert time.monotonic() - began_s > CLIENT_WAIT_S / 2
    finally:
        for sock in socks:
            sock.close()
    wait_until(
        lambda: all(row["in_flight"] == 0 for row in booked(world)), "all attempts to be settled"
    )
    [row] = [row for row in booked(world) if row["model"] == "large"]
    assert row["attempts"] >= wanted
    assert float(row["cost_usd"]) > 0
    looprouter("ledger", "verify", home=world.gateway.home)


def test_f16_slow_but_steady_reader_gets_everything(world: World) -> None:
    """Back-pressure is no loss: every byte comes, though the buffers between are small."""
    sock = stalled_reader(world)
    received = bytearray()
    deadline_s = time.monotonic() + 120
    while not received.endswith(b"0\r\n\r\n"):
        assert time.monotonic() < deadline_s
        received += sock.recv(65_536)
        if len(received) < 200_000:
            time.sleep(0.01)
    sock.close()

    frames = flood_provider.STREAM_MEBIBYTES * MEBIBYTE // flood_provider.FRAME_CHARS
    assert received.count(b'"content": "word word') == frames
    assert received.count(b"data: [DONE]") == 1
