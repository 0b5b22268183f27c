"""Failures before the first generated token: invisible where another endpoint can answer, else one
error in the caller's dialect. Nothing refused is paid, nothing lost is the client's.

Rows of reliability.md E; gateways.md 4.6, 4.7 and 4.19.
"""

from __future__ import annotations

import datetime
import time
from collections.abc import Iterator
from typing import Any

import pytest

from tests.support.failing_over import (
    check_costs_nothing_more,
    check_falls_over,
    check_refused,
    error_json,
)
from tests.support.hostile_provider import CHUNKINGS, Chunking, Turn
from tests.support.hostile_scripts import STAND_BY, answers, good, says
from tests.support.hostile_world import (
    CHAT,
    MESSAGES,
    NATIVE,
    RESPONSES,
    TALKS,
    HostileWorld,
    Talk,
    hostile_world,
    nanos,
)
from tests.support.voices import ResponsesVoice, data

pytestmark = pytest.mark.e2e

WHOLE = "".join(STAND_BY)
PAGE = b"<!DOCTYPE html>\n<html><head><title>Sign in</title></head><body>secret page</body></html>"


@pytest.fixture(scope="module")
def world(
    tmp_path_factory: pytest.TempPathFactory, request: pytest.FixtureRequest
) -> Iterator[HostileWorld]:
    home = tmp_path_factory.mktemp("failover")
    with hostile_world(home, request.session, num_models=180) as made:
        yield made


@pytest.fixture(params=list(CHUNKINGS))
def chunking(request: pytest.FixtureRequest) -> Chunking:
    return CHUNKINGS[request.param]


every_talk = pytest.mark.parametrize("talk", TALKS, ids=lambda talk: talk.name)
either_way = pytest.mark.parametrize("stream", [True, False], ids=["stream", "plain"])


@every_talk
def test_plain_answer_cut_short_falls_over(
    world: HostileWorld, talk: Talk, chunking: Chunking
) -> None:
    """E: truncated, for plain answers: half a JSON body is no answer."""

    async def cut(turn: Turn) -> None:
        await turn.connection.send_head(
            200, {"content-type": "application/json", "content-length": "4000"}
        )
        await turn.connection.send(b'{"id": "x", "choices": [')
        turn.hang_up()

    model, row = check_falls_over(world, talk, cut, chunking, stream=False)
    world.owes_lost_prompt(talk, model, row)


FORMS = {
    "seconds": {"retry_after": "2"},
    "milliseconds": {"retry_after_ms": "2000"},
    "both": {"retry_after": "90", "retry_after_ms": "2000"},
}


BUSY = [(talk, "seconds") for talk in NATIVE] + [
    (talk, form) for talk in (CHAT, MESSAGES) for form in ("milliseconds", "both")
]


@pytest.mark.parametrize(("talk", "form"), BUSY, ids=lambda one: getattr(one, "name", one))
@pytest.mark.parametrize("status", [429, 503])
def test_retry_after_keeps_the_endpoint_out_for_so_long_and_no_longer(
    world: HostileWorld, talk: Talk, status: int, form: str
) -> None:
    """E: 429/503 with Retry-After before start: cooldown endpoint, fail over, void."""
    model = world.model(talk)
    busy = answers(error_json(talk, "rate_limit_error"), status, **FORMS[form])
    world.provider.play(talk.first, model, busy, good(talk, "I am back"))
    world.provider.play(talk.second, model, good(talk, *STAND_BY))
    heard = world.ask(talk, model)
    row = world.check_good(talk, model, heard, WHOLE, provider=talk.second)
    check_costs_nothing_more(row)
    assert row["num_attempts"] == 2

    refused_at_s = world.provider.turn(model, talk.first).came_at_s
    while len(world.provider.turns_of(model, talk.first)) == 1:
        assert time.monotonic() < refused_at_s + 20, "the endpoint was never tried again"
        heard = world.ask(talk, model)
        is_back = heard.text == "I am back"
        provider = talk.first if is_back else talk.second
        row = world.check_good(
            talk, model, heard, "I am back" if is_back else WHOLE, provider=provider
        )
        assert row["num_attempts"] == 1
        time.sleep(0.05)
    assert world.provider.turns_of(model, talk.first)[1].came_at_s - refused_at_s >= 1.9


def test_retry_after_as_a_date_is_understood(world: HostileWorld) -> None:
    """E: 429/503 with Retry-After, in HTTP's other form; it reaches the client when all is busy."""
    model = world.model(CHAT)
    later = datetime.datetime.now(datetime.UTC) + datetime.timedelta(seconds=30)
    busy = answers(
        error_json(CHAT, "rate_limit_error"),
        429,
        retry_after=later.strftime("%a, %d %b %Y %H:%M:%S GMT"),
    )
    for provider in "ab":
        world.provider.play(provider, model, busy)
    heard = world.ask(CHAT, model)

    assert heard.status == 503
    assert 20 <= int(heard.headers["retry-after"]) <= 30
    row = world.row(heard.request_id)
    assert nanos(row["provider_cost"]) == 0


QUOTA: dict[str, dict[str, Any]] = {
    "error_event": {"code": "insufficient_quota", "message": "You exceeded your current quota"},
    "nested_error": {"error": {"code": "insufficient_quota", "message": "quota exceeded"}},
}


@pytest.mark.parametrize("form", [*QUOTA, "response_failed"])
def test_quota_error_after_response_created_falls_over(
    world: HostileWorld, form: str, chunking: Chunking
) -> None:
    """Gateways 4.6: `response.created` first and the quota error second is no started answer."""
    voice = ResponsesVoice()
    opening = voice.opening()
    if form == "response_failed":
        error = {"code": "insufficient_quota", "message": "You exceeded your current quota"}
        failed = {"id": "resp_1", "status": "failed", "error": error}
        ending = voice.event("response.failed", response=failed)
    else:
        ending = voice.event("error", **QUOTA[form])
    _, row = check_falls_over(world, RESPONSES, says(opening, ending), chunking)
    check_costs_nothing_more(row)


@pytest.mark.parametrize("talk", NATIVE, ids=lambda talk: talk.name)
@pytest.mark.parametrize("form", ["nested", "text", "top_level", "metadata", "list"])
def test_words_of_an_upstream_error_are_never_lost(
    world: HostileWorld, talk: Talk, form: str, chunking: Chunking
) -> None:
    """Gateways 4.7: an SSE error payload arrived with an empty message."""
    words = "the tensor core melted"
    payloads: dict[str, Any] = {
        "nested": {"error": {"message": words, "type": "server_error"}},
        "text": {"error": words},
        "top_level": {"object": "error", "message": words, "code": 50001},
        "metadata": {"error": {"message": "Provider returned error", "code": 502,
                               "metadata": {"raw": words}}},
        "list": {"errors": [{"message": words}], "error": {"message": words}},
    }  # fmt: skip
    model = world.model(talk)
    for provider in (talk.first, talk.second):
        bad = says(data(payloads[form], "error"))
        world.provider.play(provider, model, bad, chunking=chunking)
    heard = world.ask(talk, model)

    row = check_refused(world, heard, 502)
    assert heard.error is not None
    assert words in heard.error["message"]
    assert f"{talk.second}/{model}" in heard.error["message"]
    for provider in (talk.first, talk.second):
        world.owes_prompt(provider, model, row)


@every_talk
@either_way
def test_request_that_failed_everywhere_is_charged_nothing(
    world: HostileWorld, talk: Talk, stream: bool, chunking: Chunking
) -> None:
    """Gateways 4.19: a request that failed upstream was still charged."""
    model = world.model(talk)
    for provider in (talk.first, talk.second):
        bad = answers(error_json(talk, "api_error"), 500)
        world.provider.play(provider, model, bad, chunking=chunking)
    heard = world.ask(talk, model, stream=stream)

    row = check_refused(world, heard, 502)
    assert (row["num_attempts"], nanos(row["provider_cost"])) == (2, 0)


@every_talk
@either_way
def test_callers_own_mistake_keeps_the_upstreams_words_and_is_not_repeated_elsewhere(
    world: HostileWorld, talk: Talk, stream: bool, chunking: Chunking
) -> None:
    """E: an error of the request itself: no failover can mend it, and it costs nothing."""
    model = world.model(talk)
    body = error_json(talk, "invalid_request_error")
    body["error"]["message"] = "temperature must lie between 0 and 1"
    world.provider.play(talk.first, model, answers(body, 400), chunking=chunking)
    heard = world.ask(talk, model, stream=stream)

    assert heard.status == 400
    assert heard.error is not None
    assert heard.error["type"] == "invalid_request_error"
    assert heard.error["message"] == "temperature must lie between 0 and 1"
    assert world.provider.turns_of(model, talk.second) == []
    assert nanos(world.row(heard.request_id)["provider_cost"]) == 0


GOAWAY = b"\x00\x00\x08\x07\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00"
REFUSED_STREAM = b"\x00\x00\x04\x03\x00\x00\x00\x00\x01\x00\x00\x00\x07"


@every_talk
@pytest.mark.parametrize("frame", [GOAWAY, REFUSED_STREAM], ids=["goaway", "refused_stream"])
def test_http2_frames_instead_of_an_answer_fall_over(
    world: HostileWorld, talk: Talk, frame: bytes, chunking: Chunking
) -> None:
    """E: HTTP/2 GOAWAY / REFUSED_STREAM, at a gateway that speaks HTTP/1.1 upstream."""

    async def speaks_http2(turn: Turn) -> None:
        for piece in chunking(frame):
            await turn.connection.send(piece)
        turn.hang_up()

    model, row = check_falls_over(world, talk, speaks_http2, chunking)
    world.owes_lost_prompt(talk, model, row)
