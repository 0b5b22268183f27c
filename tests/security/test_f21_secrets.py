"""F21: canaries in every input; then every sink is searched for them, byte by byte.

Keys, ours and the providers', may be nowhere but where they were made; the pepper only in its own
file; prompt text in nothing that stays and in no answer to anybody else.
"""

from __future__ import annotations

import asyncio
import base64
import json
import os
import stat
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx
import pytest

from gateway.app.up import KEY_FILE, first_key
from gateway.cli.support import open_current_store
from gateway.keys.virtual_key import parse
from gateway.settings import Settings
from tests.support.echo_provider import MODES, echo_provider
from tests.support.gateway_process import RunningGateway, looprouter, start_gateway

pytestmark = pytest.mark.e2e

PROVIDER_SECRET = "sk-canary-provider-7f3a9c1e5b8d2f6a"
PEPPER = "canary-pepper-4e8b1d7a9c3f6e2b5d8a1c4f7e0b3d6a"
PROMPT = "canary-prompt-"  # each place adds its own name, so that a find says where it came in
DENIED = "canary-denied-"  # in requests that are refused before they are understood

POLICY_HEAD = """
version: 1
retry: {max: 0}
providers:
"""


@dataclass(slots=True)
class Spill:
    """Everything that came out of the gateway, by the name of the sink."""

    stored: dict[str, bytes] = field(default_factory=dict)  # stays, or is shown to others
    answered: dict[str, bytes] = field(default_factory=dict)  # to the caller who sent it
    keys: list[str] = field(default_factory=list)


def policy(port: int) -> str:
    lines = [POLICY_HEAD.strip()]
    for mode in MODES:
        lines.append(
            f'  {mode}: {{base_url: "http://127.0.0.1:{port}/{mode}/v1", network: private, '
            "key_env: CANARY_KEY, surfaces: [chat, completions, responses, embeddings]}"
        )
    lines.append("models:")
    for mode in MODES:
        lines.append(f"  {mode}: [{{provider: {mode}, model: m, price: {{input: 1, output: 2}}}}]")
    return "\n".join(lines) + "\n"


def told(place: str) -> str:
    return f"{PROMPT}{place}"


def chat_body(model: str, *, stream: bool) -> dict[str, Any]:
    """Text in every field that can hold some."""
    png = base64.b64encode(told("image-bytes").encode()).decode()
    return {
        "model": model,
        "stream": stream,
        "max_tokens": 16,
        "messages": [
            {"role": "system", "content": told("system"), "name": "canary"},
            {"role": "user", "content": [
                {"type": "text", "text": told("user") + " word" * 1_200},
                {"type": "image_url", "image_url": {"url": f"data:image/png;base64,{png}"}},
            ]},
            {"role": "assistant", "content": told("assistant"), "tool_calls": [
                {"id": told("call-id"), "type": "function",
                 "function": {"name": "f", "arguments": json.dumps({"a": told("arguments")})}},
            ]},
            {"role": "tool", "tool_call_id": told("call-id"), "content": told("tool-result")},
        ],
        "tools": [{"type": "function", "function": {
            "name": "f", "description": told("tool"), "parameters": {"title": told("schema")}}}],
        "stop": [told("stop")],
        "user": told("user-id"),
        "prompt_cache_key": told("cache-key"),
        "metadata": {"a": told("metadata")},
        "x_unknown": told("unknown-field"),
        told("field-name"): 1,
    }  # fmt: skip


OTHER_BODIES: dict[str, dict[str, Any]] = {
    "/v1/completions": {"prompt": told("prompt"), "suffix": told("suffix")},
    "/v1/responses": {"input": told("input"), "instructions": told("instructions")},
    "/v1/embeddings": {"input": [told("embedding")]},
    "/v1/messages": {
        "max_tokens": 8, "system": told("anthropic-system"),
        "messages": [{"role": "user", "content": told("anthropic-user")}],
        "metadata": {"user_id": told("anthropic-user-id")},
    },
}  # fmt: skip
SESSION_HEADERS = {
    "x-session-id": told("session"),
    "x-session-affinity": told("affinity"),
    "x-claude-code-session-id": told("claude-session"),
    "user-agent": told("user-agent"),
    "cookie": told("cookie"),
    "referer": f"http://x/{told('referer')}",
    "x-custom": told("custom-header"),
}
BROKEN_BODIES = [
    f'{{"model": "{DENIED}cut", "messages": [',
    f'{{"model": "status400", "messages": "{DENIED}type"}}',
    f'{{"{DENIED}name": 1, "{DENIED}name": 2}}',
    # A model's name is no secret: the operator sees which unknown ones are asked for.
    f'{{"model": "unknown", "messages": [{{"content": "{DENIED}content"}}]}}',
    f'{{"model": "status400", "messages": [], "provider": {{"{DENIED}provider": 1}}}}',
    f'{{"model": "status400", "messages": [], "stream": "{DENIED}stream"}}',
    f"{DENIED}no-json",
]


@pytest.fixture(scope="module")
def spill(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Spill]:
    home = tmp_path_factory.mktemp("f21") / "home"
    environ = {
        "CANARY_KEY": PROVIDER_SECRET,
        "LOOPROUTER_PEPPER": PEPPER,
        "LOOPROUTER_LOG_LEVEL": "debug",
    }
    found = Spill()
    with echo_provider() as port:
        gateway = start_gateway(policy(port), home, environ=environ)
        try:
            found.keys = [gateway.key, gateway.create_key("--budget-usd", "5")]
            pour(gateway, found)
            read_shown(gateway, found)
            read_files(home, found, "while it runs")
        finally:
            gateway.stop()
        read_commands(gateway, found)
        read_files(home, found, "at the end")
    for kind in ("looprouter.db", ".journal", "gateway.log"):
        assert any(kind in name for name, data in found.stored.items() if data), kind
    return found  # type: ignore[return-value]  # nothing to tear down


def pour(gateway: RunningGateway, found: Spill) -> None:
    """Send canaries every way there is."""
    with httpx.Client(timeout=30) as http:
        for key in found.keys:
            headers = {"authorization": f"Bearer {key}", **SESSION_HEADERS}
            for mode in MODES:
                for stream in (False, True):
                    answer = http.post(
                        f"{gateway.v1}/chat/completions",
                        json=chat_body(mode, stream=stream),
                        headers=headers,
                    )
                    found.answered[f"{mode} {stream} {key[:6]}"] = whole(answer)
            for path, body in OTHER_BODIES.items():
                for mode in ("status400", "status500", "error200"):
                    answer = http.post(
                        f"{gateway.base_url}{path}?q={told('query')}",
                        json={"model": mode, **body},
                        headers={**headers, "idempotency-key": f"{mode}{path}{key[3:6]}"},
                    )
                    found.answered[f"{path} {mode} {key[:6]}"] = whole(answer)
        for idx, text in enumerate(BROKEN_BODIES):
            answer = http.post(
                f"{gateway.v1}/chat/completions",
                content=text.encode(),
                headers={"authorization": f"Bearer {found.keys[0]}"},
            )
            found.answered[f"broken {idx}"] = whole(answer)
        for idx, credential in enumerate(wrong_credentials(found.keys[0])):
            for headers in ({"authorization": f"Bearer {credential}"}, {"x-api-key": credential}):
                answer = http.get(f"{gateway.v1}/models", headers=headers)
                assert answer.status_code in (400, 401)
                found.stored[f"answer to a wrong key {idx} {len(headers)}"] = whole(answer)


def wrong_credentials(key: str) -> list[str]:
    return [
        key[:-1] + ("a" if key[-1] != "a" else "b"), key + "x", key[:40], key[3:], PROVIDER_SECRET,
        key.upper(), f"{key}, {PROVIDER_SECRET}", PEPPER,
    ]  # fmt: skip


def whole(answer: httpx.Response) -> bytes:
    return json.dumps(dict(answer.headers)).encode() + answer.content


def read_shown(gateway: RunningGateway, found: Spill) -> None:
    """Pages, metrics and records: they show one caller's requests to others."""
    with httpx.Client(timeout=30, headers=gateway.headers) as http:
        for path in ("/", "/status.json", "/metrics", "/healthz", "/readyz", "/v1/models"):
            found.stored[f"page {path}"] = whole(http.get(f"{gateway.base_url}{path}"))
        ids = {
            json.loads(data[: data.index(b"}") + 1])["x-looprouter-request-id"]
            for data in found.answered.values()
        }
        assert len(ids) > 60
        num_found = 0
        for request_id in ids:
            answer = http.get(f"{gateway.v1}/requests/{request_id}")
            num_found += answer.status_code == 200
            found.stored[f"record {request_id}"] = whole(answer)
        assert num_found > 40, (num_found, len(ids), found.stored[f"record {request_id}"])


def read_files(home: Path, found: Spill, when: str) -> None:
    """Database, write-ahead log, journal, log: all that lies in the state directory."""
    for path in sorted(home.rglob("*")):
        if path.is_file() and path.name != "policy.yaml":
            found.stored[f"file {path.relative_to(home)} {when}"] = path.read_bytes()


def read_commands(gateway: RunningGateway, found: Spill) -> None:
    policy_path = str(gateway.home / "policy.yaml")
    for command in (
        ("keys", "list"), ("keys", "list", "--json"), ("ledger", "verify"),
        ("ledger", "report", "--by", "key", "--json"), ("ledger", "report", "--by", "model"),
        ("policy", "validate", policy_path),
    ):  # fmt: skip
        said = looprouter(*command, home=gateway.home, environ=gateway.environ)
        found.stored[f"command {' '.join(command[:2])}"] = said.encode()


def finds(sinks: dict[str, bytes], canary: str) -> list[str]:
    """Sinks with the canary in them: as it is, as base64 of it, percent- or JSON-escaped."""
    forms = {canary.encode(), canary.encode().hex().encode(), canary[::-1].encode()}
    forms |= {base64.b64encode(b" " * pad + canary.encode())[4:-4] for pad in range(3)}
    return [
        f"{name}: …{data[max(0, data.find(form) - 60) : data.find(form) + 60]!r}"
        for name, data in sinks.items()
        for form in forms
        if form in data
    ]


def test_f21_providers_keys_are_nowhere(spill: Spill) -> None:
    assert finds({**spill.stored, **spill.answered}, PROVIDER_SECRET) == []


def test_f21_virtual_keys_and_their_secrets_are_nowhere(spill: Spill) -> None:
    for key in spill.keys:
        for canary in (key, parse(key).secret, parse(key).secret[:20]):
            assert finds({**spill.stored, **spill.answered}, canary) == []


def test_f21_pepper_is_nowhere(spill: Spill) -> None:
    assert finds({**spill.stored, **spill.answered}, PEPPER) == []


def test_f21_prompt_text_is_in_nothing_that_stays(spill: Spill) -> None:
    assert finds(spill.stored, PROMPT) == []


def test_f21_what_was_refused_is_in_nothing_that_stays(spill: Spill) -> None:
    assert finds(spill.stored, DENIED) == []


def test_f21_the_search_finds_what_is_there(spill: Spill) -> None:
    """The canaries did go in, and a sink that had one would be found."""
    assert len(finds(spill.answered, PROMPT)) > 10  # a provider's own words about the request
    key_id = parse(spill.keys[0]).id
    assert [name for name in finds(spill.stored, key_id) if "looprouter.db" in name]
    poisoned = {**spill.stored, "x": b"..." + base64.b64encode(b"ab" + PEPPER.encode())}
    assert len(finds(poisoned, PEPPER)) == 1


def test_f21_first_key_and_pepper_lie_in_one_file_each_that_only_the_owner_reads(
    tmp_path: Path,
) -> None:
    settings = Settings.from_environment({"LOOPROUTER_HOME": str(tmp_path)})

    async def made() -> str:
        async with open_current_store(settings) as store:
            key, is_new = await first_key(settings, store, now_unix_s=1_800_000_000.0)
            assert is_new
            return key

    secret = parse(asyncio.run(made())).secret
    files = {
        str(each.relative_to(tmp_path)): each for each in tmp_path.rglob("*") if each.is_file()
    }
    pepper = settings.pepper().decode()
    for canary, home in ((secret, KEY_FILE), (pepper, "pepper")):
        holders = [name for name, path in files.items() if canary.encode() in path.read_bytes()]
        assert holders == [home]
        assert stat.S_IMODE(os.stat(files[home]).st_mode) == 0o600
