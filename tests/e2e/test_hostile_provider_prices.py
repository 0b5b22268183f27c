"""Prices that change, are missing, have steps, or are reported by the provider; exact to the nano.

gateways.md 4.15, 4.16, 4.17; reliability.md D.2 (price change, void).
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from decimal import Decimal
from typing import Any

import pytest

from tests.support.hostile_provider import Gate, Turn
from tests.support.hostile_scripts import HALF, STAND_BY, answers, good, half, opens
from tests.support.hostile_world import (
    CHAT,
    CHAT_OF_MESSAGES,
    MESSAGES,
    NATIVE,
    RESPONSES,
    HostileWorld,
    Talk,
    bill,
    bill_of,
    hostile_world,
    nanos,
)
from tests.support.voices import USED, ChatVoice, Tokens, chat_usage

pytestmark = pytest.mark.e2e

WHOLE = "".join(HALF)
LISTED = "gpt-5.4"  # its list price has a step at 272,000 prompt tokens
LISTED_PROVIDER = "lists.openai.azure.com"  # how the price list knows the address; it is local
STEP = 272_000


@pytest.fixture(scope="module")
def world(
    tmp_path_factory: pytest.TempPathFactory, request: pytest.FixtureRequest
) -> Iterator[HostileWorld]:
    home = tmp_path_factory.mktemp("prices")
    with hostile_world(home, request.session, num_models=30) as made:
        port = made.provider.port
        made.change_policy(
            lambda text: text.replace(
                "models:\n",
                f'  azure: {{api: openai, base_url: "http://localhost:{port}/{LISTED_PROVIDER}/v1",'
                " network: private, key_env: HOSTILE_KEY}\n"
                "models:\n"
                f"  listed: [{{provider: azure, model: {LISTED}}}]\n"
                "  nameless: [{provider: a, model: nobody-lists-this}]\n",
                1,
            )
        )
        yield made


def finishing(talk: Talk) -> Any:
    async def finish(turn: Turn) -> None:
        voice = talk.voice()
        await turn.say(voice.finish(HALF), voice.end())
        await turn.end()

    return finish


@pytest.mark.parametrize("talk", [*NATIVE, CHAT_OF_MESSAGES], ids=lambda talk: talk.name)
def test_price_change_in_mid_stream_keeps_the_price_of_the_reserve(
    world: HostileWorld, talk: Talk
) -> None:
    """D.2: price book edit mid-stream: price fixed at reserve time; the next request pays anew."""
    model, has_half, may_end = world.model(talk), Gate(), Gate()
    endpoint = f"{{provider: {talk.first}, model: {model}, "

    def dearer(text: str) -> str:
        before, line, after = text.partition(endpoint)
        changed = after.replace("price: {input: 0.", "price: {input: 99.", 1)
        return before + line + changed

    async def script(turn: Turn) -> None:
        await half(talk, lambda _: may_end.passed())(turn)
        await finishing(talk)(turn)

    def watch(got: bytes) -> None:
        opens(has_half, HALF[1])(got)
        if has_half.is_open and not may_end.is_open:
            world.change_policy(dearer)
            may_end.open()

    world.provider.play(talk.first, model, script, good(talk, *HALF))
    world.provider.play(talk.second, model, good(talk, *HALF))
    heard = world.ask(talk, model, on_bytes=watch)
    world.check_good(talk, model, heard, WHOLE)

    cost = nanos(world.row(world.ask(talk, model, stream=False).request_id)["cost"])
    assert cost == bill_of(talk.second, USED)  # now the cheaper one of the two
    world.owes(f"{talk.second}/{model}", cost)


def test_long_prompt_pays_the_price_of_its_step_and_a_token_less_does_not(
    world: HostileWorld,
) -> None:
    """Gateways 4.16: prompts over 272K under-billed 2x. The price shown is the price billed."""
    shown = world.client.get("/v1/models/listed", headers=world.gateway.headers).json()
    low, high = (
        row for row in shown["looprouter"]["endpoints"][0]["prices"] if row["tier"] == "standard"
    )
    assert (low["source"], high["context_tokens_min"]) == ("genai-prices", STEP + 1)
    assert Decimal(high["input"]) == 2 * Decimal(low["input"])

    for prompt, price in ((STEP, low), (STEP + 1, high)):
        for stream in (True, False):
            used = Tokens(prompt, 47, cached=1_000)
            world.provider.play(LISTED_PROVIDER, LISTED, good(CHAT, *HALF, usage=used))
            heard = world.ask(CHAT, "listed", stream=stream)
            cost = math.ceil(
                1000 * (Decimal(price["input"]) * (prompt - 1_000)
                        + Decimal(price["cached_read"]) * 1_000 + Decimal(price["output"]) * 47)
            )  # fmt: skip
            assert nanos(world.row(heard.request_id)["cost"]) == cost
            world.owes(f"azure/{LISTED}", cost)


@pytest.mark.parametrize("stream", [True, False], ids=["stream", "plain"])
@pytest.mark.parametrize(
    ("reported", "cost"),
    [
        (0.001234567, 1_234_567),
        ("0.0012345671", 1_234_568),
        (0, 0),
        ({"total_cost": 0.5}, 5 * 10**8),
    ],
)
def test_price_in_the_answer_is_used_where_the_operator_states_none(
    world: HostileWorld, stream: bool, reported: Any, cost: int
) -> None:
    """The order of prices: operator's, then reported, then listed. Gateways 4.17."""
    voice = ChatVoice()
    usage = {**chat_usage(USED), "cost": reported}
    plain = {**voice.plain(WHOLE), "usage": usage}

    async def script(turn: Turn) -> None:
        if stream:
            frames = [voice.opening(), *map(voice.text, HALF), voice.stop()]
            await turn.stream(*frames, voice.frame([], usage=usage), voice.end())
        else:
            await turn.answer(plain)

    world.provider.play(LISTED_PROVIDER, LISTED, script)
    heard = world.ask(CHAT, "listed", stream=stream)
    assert nanos(world.row(heard.request_id)["cost"]) == cost
    world.owes(f"azure/{LISTED}", cost)
    told = heard.cost_nanos if stream else nanos(heard.headers["x-looprouter-cost"])
    assert told == cost

    model = world.model(CHAT)
    world.provider.play("a", model, script)
    world.check_good(CHAT, model, world.ask(CHAT, model, stream=stream), WHOLE)  # the operator's


def ask_nameless(world: HostileWorld, *, stream: bool) -> Any:
    world.provider.play("a", "nobody-lists-this", good(CHAT, *HALF))
    return world.ask(CHAT, "nameless", stream=stream)


def test_missing_price_is_never_zero(world: HostileWorld) -> None:
    """Gateways 4.17: a missing price was $0, so budgets never applied: block, cap or allow."""
    for stream in (True, False):
        heard = ask_nameless(world, stream=stream)
        assert heard.status == 503
        assert heard.error is not None
        assert heard.error["code"] == "no_eligible_endpoint"
        assert "price" in heard.error["message"]
        assert heard.error["detail"][0]["rule"] == "unpriced"
    assert world.provider.turns_of("nobody-lists-this") == []

    cap = "unpriced: {rule: cap, usd_per_million_tokens: 30.0001}\n"
    world.change_policy(lambda text: text + cap)
    for stream in (True, False):
        heard = ask_nameless(world, stream=stream)
        assert heard.text == WHOLE
        row = world.row(heard.request_id)
        cost = math.ceil(1_150 * Decimal("30000.1"))
        assert nanos(row["cost"]) == cost
        assert "price of this endpoint is unknown" in heard.headers["x-looprouter-warning"]
        world.owes("a/nobody-lists-this", cost)

    world.change_policy(lambda text: text.replace(cap, "unpriced: allow\n"))
    for stream in (True, False):
        heard = ask_nameless(world, stream=stream)
        assert heard.text == WHOLE
        assert "price of this endpoint is unknown" in heard.headers["x-looprouter-warning"]
    world.change_policy(lambda text: text.replace("unpriced: allow\n", ""))


@pytest.mark.parametrize("talk", NATIVE, ids=lambda talk: talk.name)
@pytest.mark.parametrize("how", ["header", "suffix"])
def test_batch_request_is_billed_once(world: HostileWorld, talk: Talk, how: str) -> None:
    """Gateways 4.15: batch spend silently zero, or counted many times."""
    model = world.model(talk)
    world.provider.play(talk.first, model, good(talk, *HALF))
    headers = {"idempotency-key": f"job-{talk.name}-{how}"}
    asked = model
    if how == "header":
        headers["x-looprouter-lane"] = "batch"
    else:
        asked = f"{model}:batch"
    heard = world.ask(talk, asked, stream=False, headers=headers)
    row = world.check_good(talk, model, heard, WHOLE)
    assert row["lane"] == "batch"

    for _ in range(3):  # what a batch client does when it is not sure
        again = world.ask(talk, asked, stream=False, headers=headers)
        assert again.body == heard.body
        assert again.headers["x-looprouter-idempotent-replay"] == "true"
    assert len(world.provider.turns_of(model)) == 1


@pytest.mark.parametrize("talk", [CHAT, RESPONSES, MESSAGES], ids=lambda talk: talk.name)
def test_refused_attempt_gives_its_hold_back(world: HostileWorld, talk: Talk) -> None:
    """D.2: upstream refused before processing: hold void, 0 billed. A leaked hold would use the
    budget up after two requests.
    """
    model = world.model(talk)
    limit = bill(talk.first, input=512, output=4_096) * 2
    key = world.gateway.create_key("--budget-usd", str(Decimal(limit) / 10**9))
    refusal = answers({"error": {"message": "no such voice", "type": "invalid_request_error"}}, 400)
    world.provider.play(talk.first, model, *[refusal] * 5, good(talk, *HALF))
    headers = {"authorization": f"Bearer {key}"}
    limited = {"max_output_tokens" if talk is RESPONSES else "max_tokens": 4_096}
    for _ in range(5):
        heard = world.ask(talk, model, headers=headers, stream=False, **limited)
        assert heard.status == 400
    heard = world.ask(talk, model, headers=headers, stream=False, **limited)
    world.check_good(talk, model, heard, WHOLE)


def test_overrun_of_the_hold_is_the_operators(world: HostileWorld) -> None:
    """D.1: a provider that bills more than was reserved: the client pays at most the hold."""
    model = world.model(CHAT)
    huge = Tokens(prompt=9_000_000, completion=9_000_000)
    world.provider.play("a", model, good(CHAT, *HALF, usage=huge))
    heard = world.ask(CHAT, model, stream=False, max_tokens=16)

    row = world.row(heard.request_id)
    cost = bill_of("a", huge)
    assert nanos(row["provider_cost"]) == cost
    assert 0 < nanos(row["cost"]) < cost / 100
    world.owes(f"a/{model}", cost, billed=nanos(row["cost"]))
    assert f'gateway_overrun_dollars_total{{endpoint="a/{model}"}}' in (
        world.client.get("/metrics").text
    )


def test_stand_by_is_billed_at_its_own_price(world: HostileWorld) -> None:
    """Gateways 4.19 and D.2: what fell over is billed where it was answered, and only there."""
    model = world.model(CHAT)
    error = {"error": {"message": "no", "type": "server_error"}}
    world.provider.play("a", model, answers(error, 500))
    world.provider.play("b", model, good(CHAT, *STAND_BY))
    heard = world.ask(CHAT, model)

    world.check_good(CHAT, model, heard, "".join(STAND_BY), provider="b")
