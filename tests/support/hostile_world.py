"""A real gateway process in front of the hostile provider, and the checks every such test makes."""

from __future__ import annotations

import contextlib
import json
import math
import ssl
import subprocess
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.support.ears import Heard, hear
from tests.support.gateway_process import RunningGateway, looprouter, running_gateway
from tests.support.hostile_bills import PRICES, bill, bill_of, nanos
from tests.support.hostile_provider import WAIT_S, HostileProvider, names
from tests.support.voices import (
    USED,
    ChatVoice,
    CompletionsVoice,
    MessagesVoice,
    ResponsesVoice,
    Tokens,
    Voice,
)

__all__ = ["PRICES", "bill", "bill_of", "nanos"]  # beside what is defined here

TLS_FOLDER = Path(__file__).parent / "tls"
SECRET = "sk-hostile-provider-secret-0123456789"
NUM_MODELS = 90  # one for each test, so that no test meets another's breaker
NATIVE_SHARE = 2 / 3  # of so many models of the OpenAI family; Anthropic's is asked less often
PROMPT = "Say something that can be checked, byte by byte."

FAMILIES = {"o": ("a", "b"), "n": ("c", "d")}  # OpenAI's dialect, Anthropic's
TLS_MODEL = "secure"  # its one endpoint, t/secure, listens with TLS and would speak HTTP/2


@dataclass(frozen=True)
class Talk:
    """A client's surface and the dialect of the upstream that answers it."""

    name: str
    surface: str
    path: str
    family: str
    voice: Callable[[], Voice]

    @property
    def first(self) -> str:
        return FAMILIES[self.family][0]

    @property
    def second(self) -> str:
        return FAMILIES[self.family][1]

    @property
    def reads_usage_of_frame(self) -> bool:
        """Whether the cost can stand in the usage frame."""
        return self.surface in ("chat", "completions")

    def request(self, model: str, *, stream: bool) -> dict[str, Any]:
        turns = [{"role": "user", "content": PROMPT}]
        body: dict[str, Any] = {"model": model, "stream": stream}
        if self.surface == "chat":
            body["messages"] = turns
        elif self.surface == "completions":
            body["prompt"] = PROMPT
        elif self.surface == "responses":
            body["input"] = PROMPT
        else:
            body |= {"messages": turns, "max_tokens": 4096}
        if stream and self.reads_usage_of_frame:
            body["stream_options"] = {"include_usage": True}
        return body


CHAT = Talk("chat", "chat", "/v1/chat/completions", "o", ChatVoice)
COMPLETIONS = Talk("completions", "completions", "/v1/completions", "o", CompletionsVoice)
RESPONSES = Talk("responses", "responses", "/v1/responses", "o", ResponsesVoice)
MESSAGES = Talk("messages", "messages", "/v1/messages", "n", MessagesVoice)
CHAT_OF_MESSAGES = Talk("chat_of_messages", "chat", CHAT.path, "n", MessagesVoice)
MESSAGES_OF_CHAT = Talk("messages_of_chat", "messages", MESSAGES.path, "o", ChatVoice)
TALKS = (CHAT, COMPLETIONS, RESPONSES, MESSAGES, CHAT_OF_MESSAGES, MESSAGES_OF_CHAT)
NATIVE = (CHAT, COMPLETIONS, RESPONSES, MESSAGES)


def policy_text(
    provider: HostileProvider, more: str = "", *, endpoint: str = "", num_models: int
) -> str:
    """Cheapest first, no exploring, every retry allowed: who answers is never a matter of luck."""
    lines = ["version: 1", "providers:"]
    for family, providers in FAMILIES.items():
        api = "openai" if family == "o" else "anthropic"
        lines += [
            f'  {name}: {{api: {api}, base_url: "http://127.0.0.1:{provider.port}/{name}/v1", '
            f"network: private, key_env: HOSTILE_KEY}}"
            for name in providers
        ]
    lines += [
        f'  t: {{api: openai, base_url: "https://127.0.0.1:{provider.tls_port}/t/v1", '
        "network: private, verify_tls: false, key_env: HOSTILE_KEY}",
        "models:",
        f"  {TLS_MODEL}: [{{provider: t, model: {TLS_MODEL}, price: {{input: 0.1375, "
        "output: 0.4125}}]",
    ]
    for family, providers in FAMILIES.items():
        for model in _names(family, num_of(family, num_models)):
            lines.append(f"  {model}:")
            for name in providers:
                price = ", ".join(f"{bucket}: {usd}" for bucket, usd in PRICES[name].items())
                lines.append(
                    f"    - {{provider: {name}, model: {model}, canonical: hostile, "
                    f"quantisation: fp8, price: {{{price}}}{endpoint}}}"
                )
    lines += [
        "routes: [{name: all, prefer: {by: price}}]",
        "exploration: {share: 0}",
        "retry: {max: 2, budget: 1.0, floor: 1000}",
    ]
    return "\n".join(lines) + "\n" + more


def num_of(family: str, num_models: int) -> int:
    return num_models if family == "o" else round(num_models * NATIVE_SHARE)


def _names(family: str, num_models: int) -> list[str]:
    found = names(family)
    return [next(found) for _ in range(num_models)]


@dataclass
class HostileWorld:
    gateway: RunningGateway
    provider: HostileProvider
    client: httpx.Client
    num_models: int
    owed: dict[str, int] = field(default_factory=dict)  # endpoint → nano-dollars it must show
    billed: dict[str, int] = field(default_factory=dict)  # of that, the client's
    _names: dict[str, Iterator[str]] = field(default_factory=dict)
    _shared: dict[str, str] = field(default_factory=dict)

    def model(self, talk: Talk, *, is_shared: bool = False) -> str:
        """A public model whose endpoints (`a/NAME`, `b/NAME`) no other test uses.

        `is_shared`: one for all tests whose answers are good, and counted by the provider: they
        neither open its breaker nor depend on what was learned of it.
        """
        family = talk.family
        found = self._names.setdefault(family, names(family))
        if is_shared:
            if family not in self._shared:
                self._shared[family] = next(found)
            return self._shared[family]
        name = next(found)
        num_models = num_of(family, self.num_models)
        assert int(name.removeprefix(family)) < num_models, "raise num_models of this file"
        return name

    def ask(
        self,
        talk: Talk,
        model: str,
        *,
        stream: bool = True,
        on_bytes: Callable[[bytes], None] | None = None,
        headers: dict[str, str] | None = None,
        **more: Any,
    ) -> Heard:
        """Ask as an ordinary client. `on_bytes` sees all bytes so far, whenever some come."""
        body = {**talk.request(model, stream=stream), **more}
        sent = {**self.gateway.headers, **(headers or {})}
        with self.client.stream("POST", talk.path, json=body, headers=sent) as answer:
            got = bytearray()
            for part in answer.iter_raw():
                got += part
                if on_bytes is not None:
                    on_bytes(bytes(got))
            return hear(talk.surface, answer.status_code, dict(answer.headers), bytes(got))

    def change_policy(self, change: Callable[[str], str]) -> None:
        """Rewrite the policy file and wait until the running gateway has taken it over."""
        path = self.gateway.home / "policy.yaml"
        old = self.client.get("/status.json").json()["policy_version"]
        text = path.read_text()
        assert change(text) != text
        whole = path.with_suffix(".new")
        whole.write_text(change(text))
        whole.replace(path)  # the gateway never sees half of it
        deadline_s = time.monotonic() + WAIT_S
        while True:
            status = self.client.get("/status.json").json()
            assert not status["policy_error"], status["policy_error"]
            if status["policy_version"] != old:
                return
            assert time.monotonic() < deadline_s, "the changed policy was not taken over"
            time.sleep(0.02)

    def row(self, request_id: str) -> dict[str, Any]:
        """GET /v1/requests/{id}, once the request is over."""
        deadline_s = time.monotonic() + WAIT_S
        while True:
            answer = self.client.get(f"/v1/requests/{request_id}", headers=self.gateway.headers)
            if answer.status_code == 200:
                row: dict[str, Any] = answer.json()
                return row
            assert answer.status_code == 404, answer.text
            assert time.monotonic() < deadline_s, f"no record of {request_id}"
            time.sleep(0.01)

    def newest_row(self, model: str) -> dict[str, Any]:
        """The record of a request whose client left before it learned its id."""
        deadline_s = time.monotonic() + WAIT_S
        while True:
            rows = self.client.get("/status.json").json()["recent"]
            assert time.monotonic() < deadline_s, f"no record of a request for {model}"
            if any(row["model"] == model for row in rows):
                return next(row for row in rows if row["model"] == model)
            time.sleep(0.01)

    def owes(self, endpoint: str, cost: int, *, billed: int | None = None) -> None:
        """Book what the ledger must show at the end for this endpoint."""
        self.owed[endpoint] = self.owed.get(endpoint, 0) + cost
        self.billed[endpoint] = self.billed.get(endpoint, 0) + (cost if billed is None else billed)

    def check_good(
        self,
        talk: Talk,
        model: str,
        heard: Heard,
        text: str,
        *,
        provider: str = "",
        usage: Tokens = USED,
    ) -> dict[str, Any]:
        """Whole, byte-equal, counted and paid exactly, everywhere it can be read. → its record."""
        provider = provider or talk.first
        cost = bill_of(provider, usage)
        assert heard.text == text
        assert heard.error is None
        assert heard.tokens == usage
        if heard.headers["content-type"].startswith("text/event-stream"):
            assert heard.num_ends == 1
            if talk.reads_usage_of_frame:
                assert heard.cost_nanos == cost
        else:
            assert nanos(heard.headers["x-looprouter-cost"]) == cost
        row = self.row(heard.request_id)
        assert (row["status"], row["error"]) == (200, "")
        assert row["endpoint_id"] == f"{provider}/{model}"
        assert nanos(row["cost"]) == cost
        assert not row["is_estimated"]
        counted = row["usage"]
        assert counted.get("input", 0) + counted.get("cached_read", 0) == usage.prompt
        assert counted.get("output", 0) + counted.get("reasoning", 0) == usage.completion
        self.owes(f"{provider}/{model}", cost)
        return row

    def check_broken(
        self, talk: Talk, model: str, heard: Heard, text: str, code: str
    ) -> dict[str, Any]:
        """Told in band, in the caller's dialect, never ended as good, paid as delivered."""
        assert heard.status == 200
        assert heard.text == text
        assert heard.num_ends == 0
        error = heard.error
        assert error is not None
        assert error["message"]
        if talk.surface == "messages":
            kind = "timeout_error" if code == "stream_timeout" else "api_error"
            assert (error["type"], error["details"]["error_code"]) == (kind, code)
        else:
            assert (error["type"], error["code"]) == ("upstream_error", code)
        row = self.row(heard.request_id)
        assert row["error"] == code
        assert row["endpoint_id"] == f"{talk.first}/{model}"
        assert row["is_estimated"]
        self.check_delivered(talk, model, row, len(text))
        return row

    def check_delivered(self, talk: Talk, model: str, row: dict[str, Any], num_chars: int) -> None:
        """The client pays its prompt and the tokens that came, four characters each."""
        prompt = USED.prompt if talk.family == "n" else row["facts"]["prompt_tokens"]
        assert row["usage"] == {"input": prompt, "output": math.ceil(num_chars / 4)}
        cost = bill(talk.first, input=prompt, output=math.ceil(num_chars / 4))
        assert nanos(row["cost"]) == nanos(row["provider_cost"]) == cost
        self.owes(f"{talk.first}/{model}", cost)

    def owes_lost_prompt(
        self, talk: Talk, model: str, row: dict[str, Any], *, or_said: Tokens | None = None
    ) -> None:
        """An attempt failed before it generated anything, and nobody knows what it did until
        then: its prompt is paid, by the operator. `or_said`: what it said of its usage, if that
        was read before the reset took it away.
        """
        lost = nanos(row["provider_cost"]) - nanos(row["cost"])
        wanted = {bill_of(talk.first, Tokens(row["facts"]["prompt_tokens"], 0))}
        if or_said is not None:
            wanted.add(bill_of(talk.first, or_said))
        assert lost in wanted
        self.owes(f"{talk.first}/{model}", lost, billed=0)

    def owes_said(self, talk: Talk, model: str, row: dict[str, Any], said: Tokens) -> None:
        """A failed attempt's usage is known: the operator pays just that."""
        lost = nanos(row["provider_cost"]) - nanos(row["cost"])
        assert lost == bill_of(talk.first, said)
        self.owes(f"{talk.first}/{model}", lost, billed=0)

    def owes_prompt(self, provider: str, model: str, row: dict[str, Any]) -> None:
        """One of several attempts of a request that none answered."""
        prompt = Tokens(row["facts"]["prompt_tokens"], 0)
        self.owes(f"{provider}/{model}", bill_of(provider, prompt), billed=0)

    def gateway_bytes(self) -> int:
        """Resident memory of the gateway's process."""
        command = ["ps", "-o", "rss=", "-p", str(self.gateway.process.pid)]
        return int(subprocess.run(command, capture_output=True, check=True).stdout) * 1024

    def check_books(self) -> None:
        """The ledger shows for every endpoint exactly what these tests worked out by hand."""
        deadline_s = time.monotonic() + WAIT_S
        while True:
            out = self.cli("ledger", "report", "--by", "endpoint", "--json")
            rows = {row["endpoint"]: row for row in json.loads(out)}
            cost = {name: nanos(row["cost_usd"]) for name, row in rows.items()}
            billed = {name: nanos(row["billed_usd"]) for name, row in rows.items()}
            want = {name: owed for name, owed in self.owed.items() if owed}
            if {name: paid for name, paid in cost.items() if paid} == want:
                break
            assert time.monotonic() < deadline_s, _difference(cost, self.owed)
            time.sleep(0.2)
        assert {n: paid for n, paid in billed.items() if paid} == {
            n: paid for n, paid in self.billed.items() if paid
        }
        assert json.loads(self.cli("ledger", "verify", "--json"))["balances"]

    def cli(self, *arguments: str) -> str:
        return looprouter(*arguments, home=self.gateway.home, environ=self.gateway.environ)


def _difference(got: dict[str, int], want: dict[str, int]) -> str:
    names_ = sorted(n for n in got.keys() | want.keys() if got.get(n, 0) != want.get(n, 0))
    return "; ".join(f"{n}: got {got.get(n, 0)}, want {want.get(n, 0)}" for n in names_)


@contextlib.contextmanager
def hostile_world(
    home: Path,
    session: pytest.Session,
    more: str = "",
    *,
    endpoint: str = "",
    num_models: int = NUM_MODELS,
) -> Iterator[HostileWorld]:
    """`more`: further sections of the policy; `endpoint`: further members of every endpoint.

    Ends with the ledger's own report, compared with every bill that the tests worked out.
    """
    num_failed = session.testsfailed
    tls = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    tls.load_cert_chain(TLS_FOLDER / "provider.pem")
    tls.set_alpn_protocols(["h2", "http/1.1"])
    provider = HostileProvider()
    provider.start(tls)
    try:
        policy = policy_text(provider, more, endpoint=endpoint, num_models=num_models)
        environ = {"HOSTILE_KEY": SECRET}
        with (
            running_gateway(policy, home, environ=environ) as gateway,
            httpx.Client(base_url=gateway.base_url, timeout=WAIT_S, trust_env=False) as client,
        ):
            world = HostileWorld(gateway, provider, client, num_models)
            yield world
            if session.testsfailed == num_failed:  # a failed test may not have booked its bill
                world.check_books()
    finally:
        provider.stop()
    if session.testsfailed == num_failed:
        assert not provider.failures, provider.failures
