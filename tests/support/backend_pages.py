"""Our backend's own pages as a test writes them, and a gateway that has it in its policy."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Mapping
from typing import Any

from gateway.pipeline import Gateway
from gateway.policy.load import load_policy
from tests.support.edge_world import SECRET
from tests.support.scripted_server import Connection, Script

OWN = "self_hosted: {billing: owned, watts: 30, usd_per_kwh: 0.20, tokens_per_hour: 100000}"
FIGURES = {
    "workload": "chat/greedy", "num_drafts": 100, "num_draft_tokens": 300,
    "num_accepted_tokens": 120, "num_at_risk": [100, 70, 30], "num_accepted": [70, 30, 20],
    "num_timed_rounds": 90, "round_s": 1.8, "round_plain_s": 0.9,
    "num_timed_steps": 100, "step_s": 2.0, "step_plain_s": 2.2,
}  # fmt: skip
SPECULATION = {
    "method": "dspark+ngram", "num_drafts_max": 3, "num_drafts_now": 3, "why_now": "full",
    "num_steps_by_why": {"full": 90, "ending": 10},
    "step_s": {"1": {"0": 0.01, "3": 0.02}, "4": {"0": 0.02}},
    "num_steps": {"1": {"0": 8, "3": 90}, "4": {"0": 8}},
    "figures": [FIGURES], "acceptance_checks": [],
    "decisions": [
        {"at_unix_s": 1e9, "what": "method", "method": "dspark+ngram", "num_drafts": 3, "why": "w"},
        {"at_unix_s": 1e9, "what": "drafts", "method": "dspark+ngram", "num_drafts": 3, "why": "d"},
    ],
}  # fmt: skip
LOAD = {
    "model": "m", "version": "1.0", "status": "ready", "num_running": 1, "num_waiting": 2,
    "kv_blocks_total": 100, "kv_blocks_used": 25, "waiting_prompt_tokens": 7, "sequences_max": 8,
    "waiting_max": 16, "tokens_per_s": 80.0, "prompt_tokens_per_s": 400.0,
    "decode_step_s": {"1": 0.01}, "prefill_token_s": 0.001, "speculation": SPECULATION,
}  # fmt: skip
HEALTH = {"status": "ready", "model": "m", "device": "cpu", "kernels": {"doctor": "all 11 right"}}


def with_speculation(**changes: Any) -> dict[str, Any]:
    return {**LOAD, "speculation": {**SPECULATION, **changes}}


def pages(
    load: object = LOAD, health: object = HEALTH, *, status: int = 200, wait_s: float = 0.0
) -> Script:
    """A server with these two pages; bytes are sent as they are."""

    async def script(connection: Connection) -> None:
        while (request := await connection.read_request()) is not None:
            await asyncio.sleep(wait_s)
            body = load if request.target == "/v1/load" else health
            sent = body if isinstance(body, bytes) else json.dumps(body).encode()
            await connection.send_answer(sent, status)

    return script


def policy_text(base_urls: Mapping[str, str], *, own: str = OWN, key_env: str = "KEY") -> bytes:
    """One provider a name, each with one endpoint of the public model `words`."""
    lines = ["version: 1", "providers:"]
    for name, url in base_urls.items():
        lines.append(f"  {name}: {{api: openai, base_url: {json.dumps(url)}, network: private,")
        lines.append(f"    key_env: {key_env}{', ' + own if own else ''}}}")
    lines += ["models:", "  words:"]
    lines += [
        f"    - {{provider: {name}, model: m, canonical: m, surfaces: [chat, completions]}}"
        for name in base_urls
    ]
    return "\n".join(lines).encode()


def use_policy(gateway: Gateway, text: bytes) -> None:
    """Put a policy in force in a gateway whose file is another one."""
    policy = load_policy(text, environ={"KEY": SECRET}, source="a test")
    gateway.policy = lambda: policy
    gateway.fleet.replace_endpoints(policy.endpoints.values())
