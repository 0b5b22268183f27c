"""What who waits for an answer notices of a batch that fills a machine of one's own.

    looprouter-backend models fetch smollm2
    python tests/bench/bench_batch_fill.py

Times to the first token through the gateway, alone and beside a running batch, in turns. They may
grow by one step of that batch: its decoding sequences and the prompt rows that one step may hold.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import httpx
from openai import OpenAI

from backend.config import EngineConfig
from gateway.app.own_backend import PARAMETERS
from tests.support.backend_process import RunningBackend, running_backend
from tests.support.batch_books import question
from tests.support.batch_world import chat_line, joined_lines, wait_for_end
from tests.support.gateway_process import running_gateway
from tests.support.gateway_world import status_of, wait_until
from tests.support.text_models import smollm2_file

KEY = "a-key-of-the-backend"
LINES = 400
POLICY = """
version: 1
providers:
  own:
    api: openai
    base_url: "{base_url}"
    network: private
    key_env: OWN_KEY
    self_hosted: {{billing: owned, watts: 30, usd_per_kwh: 0.20, tokens_per_hour: 100000}}
models:
  small:
    - {{provider: own, model: {model}, context: 8192, surfaces: [chat, completions],
        parameters: [{parameters}]}}
"""


def ttft_s(client: OpenAI) -> float:
    """Of one short streamed answer."""
    began_s = time.monotonic()
    stream = client.chat.completions.create(
        model="small",
        messages=[{"role": "user", "content": "Name a colour."}],
        max_tokens=4,
        stream=True,
    )
    first_s = 0.0
    for chunk in stream:
        if not first_s and chunk.choices and chunk.choices[0].delta.content:
            first_s = time.monotonic() - began_s
    assert first_s
    return first_s


def load_of(backend: RunningBackend) -> dict[str, Any]:
    headers = {"authorization": f"Bearer {KEY}"}
    return dict(httpx.get(f"{backend.v1}/load", headers=headers, timeout=10.0).json())


def step_s(load: dict[str, Any], num_running: int) -> float:
    """Of so many sequences, with as many prompt rows as batch may put into one step."""
    table = {int(size): float(seconds) for size, seconds in load["decode_step_s"].items()}
    decode_s = table[min((size for size in table if size >= num_running), default=max(table))]
    return decode_s + EngineConfig().batch_rows * float(load["prefill_token_s"])


def has_load(base_url: str) -> bool:
    (row,) = status_of(base_url)["endpoints"]
    return row["measured"]["machine"] is not None


def measure(client: OpenAI, backend: RunningBackend, probes: int) -> None:
    for _ in range(3):
        ttft_s(client)
    alone = [ttft_s(client) for _ in range(probes)]
    lines = [chat_line(f"fill-{at}", "small", question(at), max_tokens=96) for at in range(LINES)]
    file = client.files.create(file=("in.jsonl", joined_lines(lines)), purpose="batch")
    made = client.batches.create(
        input_file_id=file.id, endpoint="/v1/chat/completions", completion_window="24h"
    )
    sizes: list[int] = []

    def is_filled() -> bool:
        """Before each probe: the lane gives way to who waits, and comes back."""
        sizes.append(int(load_of(backend)["num_running"]))
        return len(sizes) >= 20 and min(sizes[-3:]) >= 2

    beside = []
    for _ in range(probes):
        wait_until(is_filled, "the batch to fill the machine", wait_s=180.0)
        beside.append((ttft_s(client), sizes[-1]))
    client.batches.cancel(made.id)
    wait_for_end(lambda: client.batches.retrieve(made.id), wait_s=300.0)
    typical = round(statistics.median(size for _, size in beside))
    step = step_s(load_of(backend), typical)
    beside_s = statistics.median(time_s for time_s, _ in beside)
    grew_s = beside_s - statistics.median(alone)
    print(
        f"TTFT p50 {statistics.median(alone) * 1e3:.0f} ms alone, "
        f"{beside_s * 1e3:.0f} ms beside a batch of {typical} sequences; "
        f"one step of it takes {step * 1e3:.0f} ms: grew by {grew_s / step:.2f} steps"
    )


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--probes", type=int, default=15)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        home = Path(folder)
        with running_backend(smollm2_file(), home / "backend", key=KEY) as backend:
            policy = POLICY.format(
                base_url=backend.v1, model=backend.model, parameters=", ".join(PARAMETERS)
            )
            with running_gateway(policy, home / "gateway", environ={"OWN_KEY": KEY}) as gateway:
                wait_until(lambda: has_load(gateway.base_url), "its load")
                with OpenAI(base_url=gateway.v1, api_key=gateway.key, max_retries=0) as client:
                    measure(client, backend, options.probes)
    return 0


if __name__ == "__main__":
    sys.exit(main())
