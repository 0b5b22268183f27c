"""A 200 that is no answer: an error, a web page, nothing at all. Another endpoint answers instead.

Rows of reliability.md E: 200 with JSON error body, 200 HTML page, empty 200.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from tests.support.failing_over import (
    check_costs_nothing_more,
    check_falls_over,
    check_refused,
    error_json,
)
from tests.support.hostile_provider import CHUNKINGS, Chunking
from tests.support.hostile_scripts import STAND_BY, answers, good, says
from tests.support.hostile_world import (
    CHAT,
    MESSAGES,
    NATIVE,
    TALKS,
    HostileWorld,
    Talk,
    hostile_world,
)
from tests.support.voices import Tokens

pytestmark = pytest.mark.e2e

WHOLE = "".join(STAND_BY)
PAGE = b"<!DOCTYPE html>\n<html><head><title>Sign in</title></head><body>secret page</body></html>"


@pytest.fixture(scope="module")
def world(
    tmp_path_factory: pytest.TempPathFactory, request: pytest.FixtureRequest
) -> Iterator[HostileWorld]:
    home = tmp_path_factory.mktemp("no_answers")
    with hostile_world(home, request.session, num_models=200) as made:
        yield made


@pytest.fixture(params=list(CHUNKINGS))
def chunking(request: pytest.FixtureRequest) -> Chunking:
    return CHUNKINGS[request.param]


every_talk = pytest.mark.parametrize("talk", TALKS, ids=lambda talk: talk.name)
either_way = pytest.mark.parametrize("stream", [True, False], ids=["stream", "plain"])


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


PAGES = [(talk, "text/html") for talk in TALKS] + [
    (talk, content_type)  # the dialect does not matter to what it calls itself
    for talk in (CHAT, MESSAGES)
    for content_type in ("text/event-stream", "application/json")
]


@pytest.mark.parametrize(("talk", "content_type"), PAGES, ids=lambda one: getattr(one, "name", one))
@either_way
def test_web_page_inside_a_200_falls_over_and_is_never_forwarded(
    world: HostileWorld, talk: Talk, stream: bool, content_type: str, chunking: Chunking
) -> None:
    """E: 200 HTML page, whatever it says it is."""
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
