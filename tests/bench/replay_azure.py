"""Replays a slice of the Azure conversation trace through a running gateway and checks the money.

Open loop: requests are sent when the trace says so, whatever the gateway does. The simulated
providers drift, fail, die and rate-limit; at the end the ledger is compared with their invoices.

    python tests/bench/replay_azure.py                       # ten minutes of trace at 4x
    python tests/bench/replay_azure.py --minutes 2 --speed 8 # a quick look
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import subprocess
import sys
import tempfile
import time
from collections import Counter, defaultdict
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))

from gateway.simulator.demo import demo_policy_yaml  # noqa: E402 - the path above comes first
from tests.bench.replay_world import (  # noqa: E402 - as above
    Arrival,
    dead_from_s,
    fetch,
    profiles,
    read_trace,
    start_providers,
    synthetic_trace,
)
from tests.support.gateway_process import (  # noqa: E402 - as above
    RunningGateway,
    looprouter,
    start_gateway,
)

TRACE = ROOT.parent / "shared/data/traces/azure-llm-2023/AzureLLMInferenceTrace_conv.csv"
DEAD_GRACE_S = 30.0
FILLER = "the quick brown fox jumps over the lazy dog while rain falls on the old town "


@dataclass(slots=True)
class Result:
    at_s: float
    status: int = 0
    ttft_s: float | None = None
    duration_s: float = 0.0
    has_done: bool = False
    has_error: bool = False
    characters: int = 0
    note: str = ""


async def send_one(
    gateway: RunningGateway, arrival: Arrival, number: int, began_s: float
) -> Result:
    """One streaming request over a connection of its own."""
    words = f"request {number} " + FILLER * (arrival.prompt_tokens * 4 // len(FILLER) + 1)
    text = f"{words[: arrival.prompt_tokens * 4]} [[sim tokens={arrival.output_tokens}]]"
    body = json.dumps(
        {
            "model": "chat",
            "stream": True,
            "stream_options": {"include_usage": True},
            "max_tokens": arrival.output_tokens,
            "messages": [{"role": "user", "content": text}],
        }
    ).encode()
    sent_s = time.monotonic()
    result = Result(at_s=sent_s - began_s)
    try:
        async with asyncio.timeout(300):
            reader, writer = await asyncio.open_connection("127.0.0.1", gateway.port, limit=2**20)
            writer.write(
                b"POST /v1/chat/completions HTTP/1.1\r\nhost: 127.0.0.1\r\nconnection: close\r\n"
                b"content-type: application/json\r\nauthorization: Bearer "
                + gateway.key.encode()
                + b"\r\ncontent-length: "
                + str(len(body)).encode()
                + b"\r\n\r\n"
                + body
            )
            head = await reader.readuntil(b"\r\n\r\n")
            result.status = int(head[9:12])
            result.note = "" if result.status == 200 else f"status {result.status}"
            await read_stream(reader, result, sent_s)
            writer.close()
    except (OSError, TimeoutError, asyncio.IncompleteReadError) as error:
        result.note = type(error).__name__
    result.duration_s = time.monotonic() - sent_s
    return result


async def read_stream(reader: asyncio.StreamReader, result: Result, sent_s: float) -> None:
    rest = b""
    while chunk := await reader.read(65_536):
        rest += chunk
        *lines, rest = rest.split(b"\n")
        for line in lines:
            if line.startswith(b"data: [DONE]"):
                result.has_done = True
            elif line.startswith(b'data: {"error"') or b'"error":{' in line:
                result.has_error = True
                result.note = line[:200].decode(errors="replace")
            elif result.ttft_s is None and line.startswith(b"data: ") and is_visible(line):
                result.ttft_s = time.monotonic() - sent_s
                result.characters += len(line)


def is_visible(line: bytes) -> bool:
    return b'"content":"' in line and b'"content":""' not in line


async def replay(gateway: RunningGateway, arrivals: list[Arrival]) -> list[Result]:
    began_s = time.monotonic()
    tasks: list[asyncio.Task[Result]] = []
    for number, arrival in enumerate(arrivals):
        wait_s = began_s + arrival.at_s - time.monotonic()
        if wait_s > 0:
            await asyncio.sleep(wait_s)
        tasks.append(asyncio.create_task(send_one(gateway, arrival, number, began_s)))
        if number % 200 == 0:
            print(f"\r{number}/{len(arrivals)} sent", end="", file=sys.stderr, flush=True)
    results = await asyncio.gather(*tasks)
    print(f"\r{len(arrivals)}/{len(arrivals)} sent", file=sys.stderr)
    return list(results)


def cpu_seconds(pid: int) -> float:
    """User and system time of a running process so far (Linux)."""
    fields = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def quantile(values: list[float], share: float) -> float:
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(share * len(ordered)))] if ordered else float("nan")


def first_attempts(home: Path, began_unix_s: float) -> dict[str, list[tuple[float, str]]]:
    """Request id → its attempts (seconds since the start, endpoint) in the order they were sent."""
    import sqlite3

    with sqlite3.connect(home / "looprouter.db") as connection:
        rows = connection.execute(
            "SELECT request_id, sent_at, endpoint_id FROM attempts ORDER BY sent_at, attempt_id"
        ).fetchall()
    by_request: dict[str, list[tuple[float, str]]] = defaultdict(list)
    for request_id, sent_at, endpoint_id in rows:
        by_request[request_id].append((sent_at - began_unix_s, endpoint_id))
    return by_request


def compare_money(
    gateway: RunningGateway, ports: dict[str, int]
) -> tuple[list[tuple[str, int, int, int]], list[str]]:
    """Per provider: invoice lines and nanos, nanos of our ledger; and what does not balance."""
    import sqlite3

    verify = subprocess.run(
        [sys.executable, "-m", "gateway", "ledger", "verify"],
        env={**os.environ, "LOOPROUTER_HOME": str(gateway.home)},
        capture_output=True,
        text=True,
        check=False,
    )
    problems = [] if verify.returncode == 0 else [verify.stdout + verify.stderr]
    with sqlite3.connect(gateway.home / "looprouter.db") as connection:
        ours = dict(connection.execute("SELECT attempt_id, cost_nanos FROM attempts").fetchall())
        by_provider = dict(
            connection.execute("SELECT provider, SUM(cost_nanos) FROM attempts GROUP BY provider")
        )
    rows = []
    for name, port in ports.items():
        invoice = fetch(port, "/sim/invoice")
        lines = invoice["lines"]
        assert isinstance(lines, list)
        for line in lines:
            booked = ours.get(line["client_request_id"])
            if booked is None:
                problems.append(f"{name}: no attempt {line['client_request_id']!r} in the ledger")
            elif booked != line["cost_nanos"]:
                problems.append(
                    f"{name}: {line['client_request_id']} ({line['ended']}): "
                    f"invoice {line['cost_nanos']}, ledger {booked}"
                )
        rows.append((name, len(lines), int(str(invoice["total_nanos"])), by_provider.get(name, 0)))
    return rows, problems


def print_report(
    results: list[Result],
    attempts: dict[str, list[tuple[float, str]]],
    money: tuple[list[tuple[str, int, int, int]], list[str]],
    died_at_s: float,
) -> bool:
    """Print the table; True when every line that must hold holds."""
    served = [r for r in results if r.ttft_s is not None]
    complete = [r for r in served if r.has_done and not r.has_error]
    success = len(served) / len(results)
    ttfts = [r.ttft_s for r in served if r.ttft_s is not None]
    firsts = [tries[0] for tries in attempts.values()]
    late = Counter(e for at_s, e in firsts if at_s >= died_at_s + DEAD_GRACE_S)
    dead_share = late["dies/replay-model"] / max(1, sum(late.values()))
    rows, problems = money
    imbalance = sum(abs(invoice - ledger) for _, _, invoice, ledger in rows)
    print("\n| figure | seen | must be |\n|---|---|---|")
    print(f"| requests | {len(results)} | |")
    print(f"| success before the first token | {success:.4%} | ≥ 99.95 % |")
    print(f"| streams complete | {len(complete) / len(results):.4%} | |")
    print(f"| TTFT p50 / p95 | {quantile(ttfts, 0.5):.2f} / {quantile(ttfts, 0.95):.2f} s | |")
    durations = [r.duration_s for r in complete]
    print(
        f"| completion p50 / p95 | {quantile(durations, 0.5):.2f} / "
        f"{quantile(durations, 0.95):.2f} s | |"
    )
    print(
        f"| attempts a request | {sum(map(len, attempts.values())) / max(1, len(attempts)):.3f} | |"
    )
    print(
        f"| dead endpoint's share of first attempts, from onset + 30 s | {dead_share:.2%} "
        f"({late['dies/replay-model']} of {sum(late.values())}) | < 5 % |"
    )
    print(f"| ledger against invoices | {imbalance} nano-dollars apart | 0 |")
    print(
        "\n| provider | first attempts | invoice lines | invoice $ | ledger $ |"
        "\n|---|---|---|---|---|"
    )
    shares = Counter(e.split("/")[0] for _, e in firsts)
    for name, lines, invoice, ledger in rows:
        print(f"| {name} | {shares[name]} | {lines} | {invoice / 1e9:.6f} | {ledger / 1e9:.6f} |")
    for problem in problems[:20]:
        print("  not balanced:", problem)
    notes = Counter(r.note[:110] for r in results if r.ttft_s is None or r.has_error)
    for note, count in notes.most_common(8):
        print(f"  {count} × {note}")
    return success >= 0.9995 and dead_share < 0.05 and imbalance == 0 and not problems


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--trace", type=Path, default=TRACE)
    parser.add_argument("--start-minute", type=float, default=10.0)
    parser.add_argument("--minutes", type=float, default=10.0)
    parser.add_argument("--speed", type=float, default=4.0)
    options = parser.parse_args()
    length_s = options.minutes * 60 / options.speed
    if options.trace.is_file():
        arrivals = read_trace(
            options.trace,
            start_minute=options.start_minute,
            minutes=options.minutes,
            speed=options.speed,
        )
    else:
        print(f"{options.trace} is not here: a synthetic trace is used", file=sys.stderr)
        arrivals = synthetic_trace(minutes=options.minutes, speed=options.speed)
    found = profiles(length_s)
    with tempfile.TemporaryDirectory() as folder:
        home = Path(folder) / "home"
        providers, ports = start_providers(found, Path(folder))
        gateway = start_gateway(demo_policy_yaml(ports, found), home)
        try:
            for port in ports.values():
                fetch(port, "/sim/control", {"restart_clock": True})
            began_unix_s = time.time()
            results = asyncio.run(replay(gateway, arrivals))
            cpu_s = (cpu_seconds(gateway.process.pid), cpu_seconds(providers.pid))
            gateway.stop()
            looprouter("db", "upgrade", home=home)
            money = compare_money(gateway, ports)
            each_ms = 1000 * cpu_s[0] / len(results)
            print(
                f"CPU: gateway {cpu_s[0]:.1f} s ({each_ms:.1f} ms a request), "
                f"providers {cpu_s[1]:.1f} s, in {length_s:.0f} s of arrivals",
                file=sys.stderr,
            )
            holds = print_report(
                results, first_attempts(home, began_unix_s), money, dead_from_s(length_s)
            )
        finally:
            gateway.stop()
            providers.terminate()
    return 0 if holds else 1


if __name__ == "__main__":
    sys.exit(main())
