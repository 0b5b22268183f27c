"""Connections to providers that die between requests or would speak HTTP/2; and the gateway's own
end while answers run.

Rows of reliability.md E: HTTP/2 GOAWAY (drain connection), gateway shutdown.
"""

from __future__ import annotations

import json
import signal
import ssl
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import httpx
import pytest

from tests.support.ears import Heard
from tests.support.gateway_process import running_gateway
from tests.support.hostile_provider import CHUNKINGS, WAIT_S, Chunking, Gate, HostileProvider, Turn
from tests.support.hostile_scripts import HALF, STAND_BY, good, half, opens, silence
from tests.support.hostile_world import (
    CHAT,
    NATIVE,
    SECRET,
    TALKS,
    TLS_MODEL,
    HostileWorld,
    Talk,
    bill,
    bill_of,
    hostile_world,
    nanos,
    policy_text,
)
from tests.support.voices import USED

pytestmark = pytest.mark.e2e

WHOLE = "".join(HALF)


@pytest.fixture(scope="module")
def world(
    tmp_path_factory: pytest.TempPathFactory, request: pytest.FixtureRequest
) -> Iterator[HostileWorld]:
    home = tmp_path_factory.mktemp("connections")
    with hostile_world(home, request.session, num_models=60) as made:
        yield made


@pytest.fixture(params=list(CHUNKINGS))
def chunking(request: pytest.FixtureRequest) -> Chunking:
    return CHUNKINGS[request.param]


native = pytest.mark.parametrize("talk", NATIVE, ids=lambda talk: talk.name)
either_way = pytest.mark.parametrize("stream", [True, False], ids=["stream", "plain"])


@native
@either_way
@pytest.mark.parametrize("how", ["hangs_up", "says_close"])
def test_connection_that_ends_after_an_answer_costs_the_next_request_nothing(
    world: HostileWorld, talk: Talk, stream: bool, how: str
) -> None:
    """E: GOAWAY, as HTTP/1.1 has it: a connection is drained, and what comes after it goes over a
    fresh one at once. No attempt fails, none is repeated.
    """
    model = world.model(talk)

    async def last(turn: Turn) -> None:
        if how == "says_close" and not stream:
            await turn.answer(talk.voice().plain(WHOLE), connection="close")
        else:
            await good(talk, *HALF)(turn)
        turn.hang_up()

    world.provider.play(talk.first, model, last)
    for _ in range(4):
        heard = world.ask(talk, model, stream=stream)
        row = world.check_good(talk, model, heard, WHOLE)
        assert row["num_attempts"] == 1
    assert len(world.provider.turns_of(model)) == 4


def test_gateway_speaks_no_http2_to_a_provider_that_offers_it(
    world: HostileWorld, chunking: Chunking
) -> None:
    """E: HTTP/2 GOAWAY / REFUSED_STREAM cannot come where HTTP/1.1 is agreed on (ALPN)."""
    protocols: list[str | None] = []

    async def notes(turn: Turn) -> None:
        tls: ssl.SSLObject = turn.connection.writer.get_extra_info("ssl_object")
        protocols.append(tls.selected_alpn_protocol())
        await good(CHAT, *HALF)(turn)

    world.provider.play("t", TLS_MODEL, notes, chunking=chunking)
    heard = world.ask(CHAT, TLS_MODEL)

    assert heard.text == WHOLE
    assert set(protocols) <= {"http/1.1", None}
    cost = bill("t", input=USED.prompt, output=USED.completion)
    assert heard.cost_nanos == nanos(world.row(heard.request_id)["cost"]) == cost
    world.owes(f"t/{TLS_MODEL}", cost)


def test_provider_that_is_not_there_falls_over_and_costs_nothing(world: HostileWorld) -> None:
    """E: refused before the request was sent: void. Nothing listens on port 1."""
    port = world.provider.port
    for first in ("a", "c"):
        here, gone = f"127.0.0.1:{port}/{first}/", f"127.0.0.1:1/{first}/"
        world.change_policy(lambda text, here=here, gone=gone: text.replace(here, gone))
    for talk in TALKS:
        model = world.model(talk)
        world.provider.play(talk.second, model, good(talk, *STAND_BY))
        heard = world.ask(talk, model)
        row = world.check_good(talk, model, heard, "".join(STAND_BY), provider=talk.second)
        assert row["num_attempts"] == 2
        assert nanos(row["provider_cost"]) == nanos(row["cost"])
    world.change_policy(lambda text: text.replace("127.0.0.1:1/", f"127.0.0.1:{port}/"))


def end_of(talk: Talk) -> bytes:
    voice = talk.voice()
    return voice.finish(HALF) + voice.end()


def test_gateway_that_stops_finishes_what_it_can_and_tells_the_rest_in_band(
    tmp_path: Path, chunking: Chunking, request: pytest.FixtureRequest
) -> None:
    """E: gateway shutdown: stop accepting, drain (policy: 1 s), then an error event; settled."""
    provider = HostileProvider()
    tls = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    tls.load_cert_chain(Path(__file__).parents[1] / "support/tls/provider.pem")
    provider.start(tls)
    policy = policy_text(provider, "drain: 2s\n", num_models=20)
    try:
        with (
            running_gateway(policy, tmp_path, environ={"HOSTILE_KEY": SECRET}) as gateway,
            httpx.Client(base_url=gateway.base_url, timeout=WAIT_S, trust_env=False) as client,
        ):
            shut_down(HostileWorld(gateway, provider, client, 20), chunking)
    finally:
        provider.stop()
    assert not provider.failures


def shut_down(world: HostileWorld, chunking: Chunking) -> None:
    """Every dialect twice: one stream ends while the gateway drains, one never would."""
    is_draining = Gate()
    has_half = {(talk, ends): Gate() for talk in TALKS for ends in (True, False)}
    models = {case: world.model(case[0]) for case in has_half}

    def ask(talk: Talk, ends: bool) -> Heard:
        async def goes_on(turn: Turn) -> None:
            if ends:
                await is_draining.passed()
                await turn.say(end_of(talk))
                await turn.end()
            else:
                await turn.until_client_leaves()

        model = models[talk, ends]
        world.provider.play(talk.first, model, half(talk, goes_on), chunking=chunking)
        return world.ask(talk, model, on_bytes=opens(has_half[talk, ends], HALF[1]))

    waiting = world.model(CHAT)
    world.provider.play("a", waiting, silence)
    with ThreadPoolExecutor(2 * len(TALKS) + 1) as pool:
        asked = {case: pool.submit(ask, *case) for case in has_half}
        plain = pool.submit(world.ask, CHAT, waiting, stream=False)
        for gate in has_half.values():
            gate.wait()
        world.provider.turn(waiting, "a")
        world.gateway.process.send_signal(signal.SIGTERM)
        until_refused(world)
        is_draining.open()
        heard = {case: done.result() for case, done in asked.items()}
        refused = plain.result()
    assert world.gateway.process.wait(WAIT_S) == 0

    assert refused.status == 503
    assert refused.error is not None
    assert refused.error["code"] == "shutting_down"
    for (talk, ends), one in heard.items():
        assert one.text == WHOLE
        if ends:
            assert (one.num_ends, one.error, one.tokens) == (1, None, USED)
            world.owes(f"{talk.first}/{models[talk, ends]}", bill_of(talk.first, USED))
            continue
        assert one.num_ends == 0
        assert one.error is not None
        assert "shutting down" in one.error["message"]
        if talk.surface != "messages":
            assert one.error["code"] == "shutting_down"
        assert world.provider.turn(models[talk, ends], talk.first).client_left.wait(WAIT_S)
    check_settled(world, [models[talk, False] for talk in TALKS], waiting)


def until_refused(world: HostileWorld) -> None:
    """New requests are turned away, in the dialect's words, while the running ones go on."""
    deadline_s = time.monotonic() + WAIT_S
    while world.client.get("/readyz").status_code == 200:
        assert time.monotonic() < deadline_s, "the gateway did not begin to drain"
    late = world.ask(CHAT, "o019")
    assert late.status == 503
    assert late.error is not None
    assert late.error["code"] == "shutting_down"
    assert late.headers["retry-after"]


def check_settled(world: HostileWorld, cut: list[str], waiting: str) -> None:
    """Every answer is in the ledger: the whole ones as counted, the cut ones as delivered."""
    rows = json.loads(world.cli("ledger", "report", "--by", "endpoint", "--json"))
    cost = {row["endpoint"]: nanos(row["cost_usd"]) for row in rows}
    for endpoint, owed in world.owed.items():
        assert cost[endpoint] == owed
    for model in (*cut, waiting):
        assert any(paid for endpoint, paid in cost.items() if endpoint.endswith(f"/{model}"))
    assert json.loads(world.cli("ledger", "verify", "--json"))["balances"]
    assert threading.active_count() < 100
