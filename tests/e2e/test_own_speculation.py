"""A request's wish for speculation goes through the gateway to our own backend, and has its way."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from openai import OpenAI

from gateway.app.own_backend import PARAMETERS
from tests.support.backend_process import TINY, RunningBackend, running_backend
from tests.support.gateway_process import RunningGateway, running_gateway
from tests.support.spelling_model import save_spelling_model

pytestmark = pytest.mark.e2e

KEY = "a-key-of-the-backend"
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
  words:
    - {{provider: own, model: spelling, surfaces: [chat, completions], parameters: [{parameters}]}}
routes: [{{name: all, prefer: {{by: fastest}}}}]
"""


@pytest.fixture(scope="module")
def backend(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningBackend]:
    folder = tmp_path_factory.mktemp("own")
    save_spelling_model(folder / "spelling")
    options = (*TINY, "--speculation", "ngram", "--drafts", "4")
    with running_backend(folder / "spelling", folder / "home", *options, key=KEY) as running:
        yield running


@pytest.fixture(scope="module")
def gateway(
    backend: RunningBackend, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[RunningGateway]:
    policy = POLICY.format(base_url=backend.v1, parameters=", ".join(PARAMETERS))
    home = tmp_path_factory.mktemp("gateway")
    with running_gateway(policy, home, environ={"OWN_KEY": KEY}) as running:
        yield running


def num_drafts(backend: RunningBackend) -> int:
    figures = backend.get("/v1/load")["speculation"]["figures"]
    return sum(each["num_drafts"] for each in figures)


def ask(gateway: RunningGateway, **wish: Any) -> str:
    """Forty tokens of the letter that follows itself, streamed by the openai SDK."""
    with OpenAI(base_url=gateway.v1, api_key=gateway.key, max_retries=0, timeout=60) as client:
        stream = client.chat.completions.create(
            model="words",
            messages=[{"role": "user", "content": "words"}],
            max_tokens=40,
            temperature=0.0,
            stream=True,
            extra_body={"speculation": wish} if wish else None,
        )
        return "".join(chunk.choices[0].delta.content or "" for chunk in stream if chunk.choices)


def test_the_wish_survives_the_way_through_the_gateway(
    gateway: RunningGateway, backend: RunningBackend
) -> None:
    texts, rounds = [], []
    for wish in ({}, {"off": True}, {"n": 1}, {"method": "ngram", "n": 2}):
        before = num_drafts(backend)
        texts.append(ask(gateway, **wish))
        rounds.append(num_drafts(backend) - before)

    assert set(texts) == {"x" * 40}
    assert rounds == [8, 0, 19, 13]


def test_a_wish_that_the_backend_refuses_is_told_to_the_caller(gateway: RunningGateway) -> None:
    with pytest.raises(Exception, match=r"speculation\.method.*known: .*ngram"):
        ask(gateway, method="magic")
