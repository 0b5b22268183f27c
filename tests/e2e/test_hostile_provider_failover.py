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

from tests.support.hostile_provider import CHUNKINGS, Chunking, Script, Turn
from tests.support.hostile_scripts import STAND_BY, answers, good, says
from tests.support.hostile_world import (
    CHAT,
    MESSAGES,
    NATIVE,
    RESPONSES,
    SECRET,
    TALKS,
    HostileWorld,
    Talk,
    hostile_world,
    nanos,
)
from tests.support.voices import ResponsesVoice, Tokens, data

pytestmark = pytest.mark.e2e

WHOLE = "".join(STAND_BY)
PAGE = b"<!DOCTYPE html>\n<html><head><title>Sign in</title></head><body>secret page</body></html>"


@pytest.fixture(scope="module")
def world(
    tmp_path_factory: pytest.TempPathFactory, request: pytest.FixtureRequest
) -> Iterator[HostileWorld]:
    home = tmp_path_factory.mktemp("failover")
    with hostile_world(home, request.session, num_models=380) as made:
        yield made


@pytest.fixture(params=list(CHUNKINGS))
def chunking(request: pytest.FixtureRequest) -> Chunking:
    return CHUNKINGS[request.param]


every_talk = pytest.mark.parametrize("talk", TALKS, ids=lambda talk: talk.name)
either_way = pytest.mark.parametrize("stream", [True, False], ids=["stream", "plain"])


def check_falls_over(
    world: HostileWorld, talk: Talk, bad: Script, chunking: Chunking, *, stream: bool = True
) -> tuple[str, dict[str, Any]]:
    """The stand-by's answer and nothing else. → (model, record)."""
    model = world.model(talk)
    world.provider.play(talk.first, model, bad, chunking=chunking)
    world.provider.play(talk.second, model, good(talk, *STAND_BY), chunking=chunking)
    heard = world.ask(talk, model, stream=stream)
    row = world.check_good(talk, model, heard, WHOLE, provider=talk.second)
    assert heard.headers["x-looprouter-attempts"] == "2"
    assert heard.headers["x-looprouter-endpoint"] == f"{talk.second}/{model}"
    return model, row


def check_costs_nothing_more(row: dict[str, Any]) -> None:
    assert nanos(row["provider_cost"]) == nanos(row["cost"])


def error_json(talk: Talk, kind: str, code: str | None = None) -> dict[str, Any]:
    if talk.family == "n":
        return {"type": "error", "error": {"type": kind, "message": "said upstream"}}
    return {"error": {"message": "said upstream", "type": kind, "code": code, "param": None}}


@every_talk
@either_way
def test_json_error_inside_a_200_falls_over_and_costs_nothing(
    world: HostileWorld, talk: Talk, stream: bool, chunking: Chunking
) -> None:
    """E: 200 with JSON error body."""
    bad = answers(error_json(talk, "api_error"))
    _, row = check_falls_over(world, talk, bad, chunking, stream=stream)
    check_costs_nothing_more(row)


@every_talk
@pytest.mark.parametrize("after", ["nothing", "opening"])
def test_error_as_the_first_event_of_a_200_falls_over(
    world: HostileWorld, talk: Talk, after: str, chunking: Chunking
) -> None:
    """E: 200 with JSON error body, sniffed in the stream: the first event says `error`."""
    voice = talk.voice()
    opening = voice.opening() if after == "opening" else b""
    bad = says(opening, voice.error("no capacity", "overloaded_error", "overloaded"))
    _, row = check_falls_over(world, talk, bad, chunking)
    check_costs_nothing_more(row)


@every_talk
@either_way
@pytest.mark.parametrize("content_type", ["text/html", "text/event-stream", "application/json"])
def test_web_page_inside_a_200_falls_over_and_is_never_forwarded(
    world: HostileWorld, talk: Talk, stream: bool, content_type: str, chunking: Chunking
) -> None:
    """E: 200 HTML page, whatever it says it is."""
    if content_type != "text/html" and talk not in (CHAT, MESSAGES):
        return  # what it is called changes nothing for the dialect
    bad = answers(PAGE, content_type=content_type)
    _, row = check_falls_over(world, talk, bad, chunking, stream=stream)
    check_costs_nothing_more(row)


@pytest.mark.parametrize("talk", NATIVE, ids=lambda talk: talk.name)
@either_way
def test_web_page_from_the_only_endpoint_is_a_502_without_the_page(
    world: HostileWorld, talk: Talk, stream: bool, chunking: Chunking
) -> None:
    """E: 200 HTML page -> 502. The page's own text stays here."""
    model = world.model(talk)
    bad = answers(PAGE, content_type="text/html")
    world.provider.play(talk.first, model, bad, chunking=chunking)
    world.provider.play(talk.second, model, bad, chunking=chunking)
    heard = world.ask(talk, model, stream=stream)

    check_refused(world, heard, 502)
    assert b"<" not in heard.body
    assert b"secret page" not in heard.body


def check_refused(world: HostileWorld, heard: Any, status: int) -> dict[str, Any]:
    """One error that the caller's SDK understands and does not repeat; nothing is paid."""
    assert heard.status == status
    assert heard.error is not None
    assert heard.error["type"] == ("api_error" if heard.surface == "messages" else "server_error")
    assert SECRET.encode() not in heard.body
    assert heard.headers["x-should-retry"] == "false"
    row = world.row(heard.request_id)
    assert (row["status"], nanos(row["cost"])) == (status, 0)
    return row


EMPTY: dict[str, Any] = {
    "no_body": lambda talk: answers(b"", content_type="text/event-stream"),
    "no_events": lambda talk: says(),
    "comments_only": lambda talk: says(b": OPENROUTER PROCESSING\n\n" * 3),
    "end_mark_only": lambda talk: says(talk.voice().end()),
    "no_text_no_usage": lambda talk: says(
        *([] if talk.family == "n" else [talk.voice().opening()]),
        talk.voice().finish((), None),
        talk.voice().end(),
    ),
}


@every_talk
@pytest.mark.parametrize("empty", EMPTY)
def test_empty_200_falls_over(
    world: HostileWorld, talk: Talk, empty: str, chunking: Chunking
) -> None:
    """E: empty 200 / stream with zero content."""
    _, row = check_falls_over(world, talk, EMPTY[empty](talk), chunking)
    check_costs_nothing_more(row)


@every_talk
@either_way
def test_empty_answer_costs_its_prompt_only_if_its_usage_says_so(
    world: HostileWorld, talk: Talk, stream: bool, chunking: Chunking
) -> None:
    """E: empty 200: prompt only if usage says so; and never the client's."""
    said = Tokens(211, 0)
    model, row = check_falls_over(world, talk, good(talk, usage=said), chunking, stream=stream)
    world.owes_said(talk, model, row, said)


@every_talk
def test_empty_plain_200_falls_over_and_costs_nothing(
    world: HostileWorld, talk: Talk, chunking: Chunking
) -> None:
    """E: empty 200, not streaming."""
    _, row = check_falls_over(world, talk, answers(b""), chunking, stream=False)
    check_costs_nothing_more(row)


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


@pytest.mark.parametrize("talk", NATIVE, ids=lambda talk: talk.name)
@pytest.mark.parametrize("status", [429, 503])
@pytest.mark.parametrize("form", FORMS)
def test_retry_after_keeps_the_endpoint_out_for_so_long_and_no_longer(
    world: HostileWorld, talk: Talk, status: int, form: str
) -> None:
    """E: 429/503 with Retry-After before start: cooldown endpoint, fail over, void."""
    if form != "seconds" and talk not in (CHAT, MESSAGES):
        return
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
