"""Clients that leave, stall or wait, and providers that fall silent: who is told, what is closed,
what is paid.

Rows of reliability.md E (slow client, client disconnect, hang) and D.2; gateways.md 4.11 to 4.13.
"""

from __future__ import annotations

import contextlib
import math
import random
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from tests.support.ears import Heard
from tests.support.hostile_provider import CHUNKINGS, WAIT_S, Chunking, Gate, Script, Turn, whole
from tests.support.hostile_scripts import (
    HALF,
    STAND_BY,
    good,
    half,
    murmur,
    silence,
    silence_after,
)
from tests.support.hostile_world import (
    CHAT,
    TALKS,
    HostileWorld,
    Talk,
    bill,
    hostile_world,
    nanos,
)
from tests.support.raw_client import RawClient
from tests.support.voices import USED, Tokens

pytestmark = pytest.mark.e2e

WHOLE = "".join(HALF)
LEAVE_S_MAX = 2.5  # ten times the 250 ms of reliability.md F14, for a loaded machine
# Far below the defaults, so that nobody waits; far above what a loaded machine stumbles.
POLICY = """
timeouts: {idle: 2500ms, idle_reasoning: 2500ms, content: 4s, client: 2s, status_line: 300ms}
rescue: {first_token_timeout: 3s}
keep_alive: {every: 500ms}
"""


@pytest.fixture(scope="module")
def world(
    tmp_path_factory: pytest.TempPathFactory, request: pytest.FixtureRequest
) -> Iterator[HostileWorld]:
    home = tmp_path_factory.mktemp("clients")
    with hostile_world(home, request.session, POLICY, num_models=110) as made:
        yield made


@pytest.fixture(params=list(CHUNKINGS))
def chunking(request: pytest.FixtureRequest) -> Chunking:
    return CHUNKINGS[request.param]


every_talk = pytest.mark.parametrize("talk", TALKS, ids=lambda talk: talk.name)
either_end = pytest.mark.parametrize("how", ["closes", "resets"])


def prompt_tokens(world: HostileWorld, talk: Talk) -> int:
    """What a prompt of this talk counts for where no provider counted: asked without sending."""
    model = world.model(talk, is_shared=True)
    told = world.client.post(
        talk.path,
        json=talk.request(model, stream=False),
        headers={**world.gateway.headers, "x-looprouter-explain": "only"},
    )
    facts: dict[str, int] = world.row(told.headers["x-looprouter-request-id"])["facts"]
    return facts["prompt_tokens"]


def check_left(world: HostileWorld, talk: Talk, model: str, left_at_s: float) -> None:
    """Upstream was closed soon after the client left."""
    turn = world.provider.turn(model, talk.first)
    assert turn.client_left.wait(WAIT_S), "the gateway kept its connection to the provider"
    assert turn.client_left_at_s is not None
    assert turn.client_left_at_s - left_at_s <= LEAVE_S_MAX
    assert world.provider.turns_of(model, talk.second) == []  # and nobody else was asked


@every_talk
@either_end
def test_client_that_leaves_a_stream_closes_upstream_and_pays_for_what_came(
    world: HostileWorld, talk: Talk, how: str, chunking: Chunking
) -> None:
    """E: client disconnect. Gateways 4.11: cancelled streams recorded zero spend, on one route
    after the other. 4.13: upstream is cancelled, so that nobody pays for more.
    """
    model = world.model(talk)
    script = half(talk, Turn.until_client_leaves)
    world.provider.play(talk.first, model, script, chunking=chunking)
    client = RawClient(world, talk, model, stream=True)
    client.read_until(HALF[1])
    left_at_s = client.leave(how)

    check_left(world, talk, model, left_at_s)
    row = world.row(client.request_id)
    assert (row["status"], row["error"]) == (499, "client_gone")
    assert row["is_estimated"]
    world.check_delivered(talk, model, row, len(WHOLE))


@every_talk
@pytest.mark.parametrize("stream", [True, False], ids=["stream", "plain"])
@either_end
def test_client_that_leaves_before_the_first_byte_closes_upstream(
    world: HostileWorld, talk: Talk, stream: bool, how: str
) -> None:
    """Gateways 4.12: plain requests never cancelled upstream's work; and streams that have not
    said anything yet. The prompt was read, so it is paid.
    """
    model = world.model(talk)
    world.provider.play(talk.first, model, silence)
    client = RawClient(world, talk, model, stream=stream)
    world.provider.turn(model, talk.first)  # it has the request
    left_at_s = client.leave(how)

    check_left(world, talk, model, left_at_s)
    world.owes(f"{talk.first}/{model}", bill(talk.first, input=prompt_tokens(world, talk)))


def at_once(check: Callable[[Talk], None]) -> None:
    """In all dialects beside each other: what waits for a timeout waits once."""
    with ThreadPoolExecutor(len(TALKS)) as pool:
        for done in [pool.submit(check, talk) for talk in TALKS]:
            done.result()


def test_stream_that_falls_silent_is_ended_in_band(world: HostileWorld, chunking: Chunking) -> None:
    """E: hang with open socket: idle timeout; delivered tokens are paid."""

    def check(talk: Talk) -> None:
        script = half(talk, Turn.until_client_leaves)
        world.provider.play(talk.first, models[talk], script, chunking=chunking)
        began_at_s = time.monotonic()
        heard = world.ask(talk, models[talk])
        assert 2.5 <= time.monotonic() - began_at_s < 15
        results[talk] = heard

    models = {talk: world.model(talk) for talk in TALKS}
    results: dict[Talk, Heard] = {}
    at_once(check)
    for talk, heard in results.items():
        world.check_broken(talk, models[talk], heard, WHOLE, "stream_timeout")
        assert world.provider.turn(models[talk], talk.first).client_left.wait(WAIT_S)


@pytest.mark.parametrize("sign", ["comment", "ping", "empty_delta"])
def test_signs_of_life_do_not_pass_for_content(world: HostileWorld, sign: str) -> None:
    """E: keep-alive comments from upstream do not reset the content timer."""

    def alive(talk: Talk) -> bytes:
        if sign == "comment":
            return b": OPENROUTER PROCESSING\n\n"
        if sign == "ping" and talk.family == "n":
            return b'event: ping\ndata: {"type": "ping"}\n\n'
        return talk.voice().text("")

    def check(talk: Talk) -> None:
        async def mutters(turn: Turn) -> None:
            await murmur(turn, alive(talk), every_s=0.3)

        world.provider.play(talk.first, models[talk], half(talk, mutters))
        began_at_s = time.monotonic()
        results[talk] = world.ask(talk, models[talk])
        assert 4 <= time.monotonic() - began_at_s < 20  # content's limit, not idle's

    models = {talk: world.model(talk) for talk in TALKS}
    results: dict[Talk, Heard] = {}
    at_once(check)
    for talk, heard in results.items():
        world.check_broken(talk, models[talk], heard, WHOLE, "stream_timeout")


def test_silence_before_the_first_token_falls_over_behind_keep_alives(
    world: HostileWorld, chunking: Chunking
) -> None:
    """E: hang, and the parser row's "own keep-alive while waiting": the status line is out, the
    client hears that something lives, and the stand-by's answer comes whole.
    """

    def check(talk: Talk) -> None:
        async def opens_only(turn: Turn) -> None:
            await silence_after(turn, talk.voice().opening())

        model = models[talk]
        world.provider.play(talk.first, model, opens_only, chunking=chunking)
        world.provider.play(talk.second, model, good(talk, *STAND_BY), chunking=chunking)
        results[talk] = world.ask(talk, model)

    models = {talk: world.model(talk) for talk in TALKS}
    results: dict[Talk, Heard] = {}
    at_once(check)
    for talk, heard in results.items():
        model = models[talk]
        row = world.check_good(talk, model, heard, "".join(STAND_BY), provider=talk.second)
        pings = sum(frame.get("type") == "ping" for frame in heard.frames)
        assert (pings if talk.surface == "messages" else heard.num_comments) >= 2
        said = Tokens(USED.prompt, 1) if talk.family == "n" else None
        world.owes_lost_prompt(talk, model, row, or_said=said)
        assert world.provider.turn(model, talk.first).client_left.wait(WAIT_S)


def test_silence_everywhere_is_an_error_in_band_once_the_status_line_is_out(
    world: HostileWorld,
) -> None:
    """E: hang with no stand-by left: the promise of a 200 is taken back in the dialect's words."""

    def check(talk: Talk) -> None:
        for provider in (talk.first, talk.second):
            world.provider.play(provider, models[talk], silence)
        results[talk] = world.ask(talk, models[talk])

    models = {talk: world.model(talk) for talk in TALKS}
    results: dict[Talk, Heard] = {}
    at_once(check)
    for talk, heard in results.items():
        assert (heard.status, heard.num_ends, heard.text) == (200, 0, "")
        assert heard.error is not None
        if talk.surface != "messages":
            assert heard.error["code"] == "stream_timeout"
        row = world.row(heard.request_id)
        assert nanos(row["cost"]) == 0
        for provider in (talk.first, talk.second):
            world.owes_prompt(provider, models[talk], row)


@every_talk
def test_keep_alives_fill_a_gap_and_change_nothing(world: HostileWorld, talk: Talk) -> None:
    """E: own keep-alive comments while waiting, in mid-stream too."""
    model, is_alive = world.model(talk), Gate()

    async def goes_on(turn: Turn) -> None:
        await is_alive.passed()
        voice = talk.voice()
        await turn.say(voice.finish(HALF), voice.end())
        await turn.end()

    def watch(got: bytes) -> None:
        said = got.partition(HALF[1].encode())[2]
        if b": keep-alive\n\n" in said or b"event: ping\n" in said:
            is_alive.open()

    world.provider.play(talk.first, model, half(talk, goes_on))
    heard = world.ask(talk, model, on_bytes=watch)

    world.check_good(talk, model, heard, WHOLE)


def flood(talk: Talk, piece: str, num_pieces: int) -> Script:
    """As fast as the gateway takes it; how much it took stands in `turn.taken`.

    Only the beginning is cut small: what fills buffers is bytes, not chunks.
    """

    async def script(turn: Turn) -> None:
        voice = talk.voice()
        turn.is_last = True
        await turn.begin()
        await turn.say(voice.opening(), voice.text(piece[:500]))
        turn.chunking, turn.taken = whole, len(piece[:500])
        with contextlib.suppress(ConnectionError):
            for _ in range(num_pieces):
                await turn.say(voice.text(piece))
                turn.taken += len(piece)
            await turn.say(voice.finish(()), voice.end())  # repeats no text: that has a limit
            await turn.end()
            return
        turn.client_left.set()

    return script


def test_client_that_does_not_read_stops_upstream_and_is_given_up(
    world: HostileWorld, chunking: Chunking
) -> None:
    """E: slow client: the bounded queue stops reading upstream; a stall cancels. 512 MB are on
    offer; what the kernel's own socket buffers take (up to 32 MB by default) is not ours.
    """
    models, piece = {talk: world.model(talk) for talk in TALKS}, "x" * 16_384
    before = world.gateway_bytes()

    def check(talk: Talk) -> None:
        model = models[talk]
        world.provider.play(talk.first, model, flood(talk, piece, 32_768), chunking=chunking)
        client = RawClient(world, talk, model, stream=True)
        client.read_until("xxx")
        turn = world.provider.turn(model, talk.first)
        assert turn.client_left.wait(WAIT_S), "a client that does not read was never given up"
        assert turn.taken < 96 * 1024 * 1024
        assert world.gateway_bytes() - before < 64 * 1024 * 1024
        client.leave("resets")
        rows[talk] = world.row(client.request_id)

    rows: dict[Talk, dict[str, Any]] = {}
    at_once(check)
    for talk, row in rows.items():
        assert (row["status"], row["error"]) == (499, "client_gone")
        tokens = row["usage"]["output"]
        taken = world.provider.turn(models[talk], talk.first).taken
        assert 0 < tokens <= math.ceil((taken + len(piece)) / 4)
        prompt = USED.prompt if talk.family == "n" else row["facts"]["prompt_tokens"]
        assert row["usage"]["input"] == prompt
        cost = bill(talk.first, input=prompt, output=tokens)
        assert nanos(row["provider_cost"]) == cost
        # A provider may send more than was asked for: the client pays what was held at most.
        assert 0 < nanos(row["cost"]) <= cost
        world.owes(f"{talk.first}/{models[talk]}", cost, billed=nanos(row["cost"]))


@every_talk
def test_client_that_reads_slowly_gets_every_byte(world: HostileWorld, talk: Talk) -> None:
    """E: slow client, but alive: back-pressure, not loss."""
    model, piece = world.model(talk), "0123456789abcdef" * 1_024
    world.provider.play(talk.first, model, flood(talk, piece, 256))
    naps = iter([0.05] * 20)

    heard = world.ask(talk, model, on_bytes=lambda _: time.sleep(next(naps, 0)))
    world.check_good(talk, model, heard, piece[:500] + piece * 256)


def test_hundred_clients_leaving_at_random_tokens_pay_what_they_got(world: HostileWorld) -> None:
    """D.2: drop at a random token in many streams. Gateways 4.13: upstream is cancelled, so nobody
    pays for what nobody reads: each bill lies between what was read and what was sent by then.
    """
    rng = random.Random(20)
    model = world.model(CHAT)
    sent: dict[str, int] = {}

    async def counts(turn: Turn) -> None:
        voice, name = CHAT.voice(), turn.body["user"]
        turn.is_last = True
        await turn.begin()
        await turn.say(voice.opening())
        with contextlib.suppress(ConnectionError):
            for idx in range(10_000):
                sent[name] = idx + 1
                await turn.say(voice.text(f"{idx:04d}"))
        turn.client_left_at_s = time.monotonic()
        turn.client_left.set()

    def leave(name: str, num_tokens: int) -> tuple[str, float, int]:
        body = {**CHAT.request(model, stream=True), "user": name}
        headers = world.gateway.headers
        with world.client.stream("POST", CHAT.path, json=body, headers=headers) as answer:
            for line in answer.iter_lines():
                if f'"{num_tokens:04d}"' in line:
                    break
            return answer.headers["x-looprouter-request-id"], time.monotonic(), num_tokens + 1

    world.provider.play("a", model, counts)
    with ThreadPoolExecutor(8) as pool:
        asked = [pool.submit(leave, f"client-{idx}", rng.randrange(60)) for idx in range(100)]
    left = [done.result() for done in asked]
    turns = {turn.body["user"]: turn for turn in world.provider.turns_of(model)}
    assert len(turns) == 100
    for idx, (request_id, left_at_s, num_read) in enumerate(left):
        turn = turns[f"client-{idx}"]
        assert turn.client_left.wait(WAIT_S)
        assert turn.client_left_at_s is not None
        assert turn.client_left_at_s - left_at_s <= LEAVE_S_MAX
        row = world.row(request_id)
        assert num_read <= row["usage"]["output"] <= sent[f"client-{idx}"]
        cost = bill("a", input=row["facts"]["prompt_tokens"], output=row["usage"]["output"])
        assert nanos(row["cost"]) == cost
        world.owes(f"a/{model}", cost)
