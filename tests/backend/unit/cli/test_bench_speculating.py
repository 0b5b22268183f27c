"""What `bench` says of speculation: rounds between two accounts, and pairs of answers."""

from __future__ import annotations

import asyncio
from dataclasses import replace

import pytest
import rich_click as click
from click.testing import CliRunner

from backend.cli.bench import bench
from backend.cli.bench_values import wish
from backend.cli.measuring.asking import Answer, Ask
from backend.cli.measuring.http_client import HttpClient
from backend.cli.measuring.load import Level, Played, play
from backend.cli.measuring.questions import Question
from backend.cli.measuring.speculating import (
    Rounds,
    is_looping,
    pair,
    read_rounds,
    rounds_between,
)
from gateway.stats.timeline import Stamps
from tests.backend.unit.cli.scripted_server import plain, scripted_server


def rounds(num: int, accepted: list[int], at_risk: list[int], workload: str = "chat") -> Rounds:
    return Rounds(
        method="ngram",
        workload=workload,
        num_drafts=num,
        num_draft_tokens=4 * num,
        num_accepted_tokens=sum(accepted),
        num_at_risk=at_risk,
        num_accepted=accepted,
        num_timed_rounds=num,
        round_s=0.03 * num,
        round_plain_s=0.02 * num,
        num_timed_steps=2 * num,
        step_s=0.05 * num,
        step_plain_s=0.1 * num,
    )


@pytest.mark.parametrize(
    ("text", "asked"),
    [
        ("off", {"off": True}),
        ("4", {"n": 4}),
        ("ngram", {"method": "ngram"}),
        ("ngram:4", {"method": "ngram", "n": 4}),
        (None, None),
    ],
)
def test_a_wish_is_the_member_of_the_body(text: str | None, asked: object) -> None:
    context = click.Context(click.Command("bench"))

    assert wish(context, click.Option(["--speculation"]), text) == asked


@pytest.mark.parametrize("text", ["ngram:x", "ngram:", ":"])
def test_a_wish_that_is_none_is_refused(text: str) -> None:
    result = CliRunner().invoke(bench, ["http://127.0.0.1:1", "--speculation", text])

    assert result.exit_code == 2
    assert "is not like off, 4, ngram" in result.output


def test_pairs_need_a_closed_loop() -> None:
    result = CliRunner().invoke(bench, ["http://127.0.0.1:1", "--against-plain", "--rate", "2"])

    assert result.exit_code == 2
    assert "--against-plain is for closed loops" in result.output


def test_rounds_of_a_level_are_those_between_two_accounts() -> None:
    before = [rounds(10, [5, 2], [10, 5]), rounds(3, [1], [3], "tools")]
    after = [
        rounds(14, [8, 4, 1], [14, 8, 1]),
        rounds(3, [1], [3], "tools"),
        rounds(2, [2], [2], "completion"),
    ]

    found = rounds_between(before, after)

    assert [each.workload for each in found] == ["chat", "completion"]
    chat = found[0]
    assert (chat.num_drafts, chat.num_at_risk, chat.num_accepted) == (4, [4, 3, 1], [3, 2, 1])
    assert chat.tokens_a_round == 1 + 6 / 4
    assert chat.acceptance_rate == 6 / 16
    assert chat.round_cost == pytest.approx(1.5)
    assert chat.speed_up == pytest.approx(2.0)


@pytest.mark.parametrize(
    "answer",
    [
        plain(404, b'{"error": {"message": "no such path"}}'),
        plain(200, b"<html>not ours</html>"),
        plain(200, b'{"num_running": 0}'),
        b"",
    ],
)
def test_a_server_that_tells_nothing_has_no_rounds(answer: bytes) -> None:
    async def answering(_body: bytes, writer: asyncio.StreamWriter) -> None:
        writer.write(answer)
        writer.close()

    async def run() -> list[Rounds]:
        async with scripted_server(answering) as server:
            client = HttpClient(server.address)
            try:
                return await read_rounds(client, {})
            finally:
                await client.close()

    assert asyncio.run(run()) == []


def answer(text: str, seconds: float, num_tokens: int = 41) -> Answer:
    """So many frames, evenly over the seconds."""
    times = tuple(1.0 + seconds * place / (num_tokens - 1) for place in range(num_tokens))
    stamps = Stamps(
        dispatched_at_s=0.0,
        first_generated_at_s=times[0],
        first_visible_at_s=times[0],
        last_generated_at_s=times[-1],
        ended_at_s=times[-1],
        frame_stamps_s=times,
        num_frames=num_tokens,
    )
    return Answer("q", stamps, text=text, finish="length")


def test_pairs_have_ratios_of_rates_and_a_share_of_same_texts() -> None:
    varied = " ".join(f"word{number}" for number in range(40))
    looping = "over and over and over " * 8
    ours = [answer(varied, 1.0), answer(looping, 0.5), answer(varied + " more", 1.0)]
    theirs = [answer(varied, 1.5), answer(looping, 2.0), answer(varied, 1.2)]
    failed = replace(answer(varied, 1.0), failure="gone")
    level = Level(4, concurrency=1)
    plainly = Played(level, [*theirs, answer(varied, 1.0)], 9.0)
    played = Played(level, [*ours, failed], 9.0, plainly)

    found = pair(played, seed=1)

    assert found is not None
    assert (found.num_pairs, found.num_compared, found.num_identical) == (3, 3, 2)
    assert found.ratio is not None
    assert found.looping_ratio is not None
    assert found.other_ratio is not None
    assert found.ratio.value == pytest.approx(1.5, rel=1e-3)
    assert found.looping_ratio.value == pytest.approx(4.0, rel=1e-3)
    assert found.other_ratio.value == pytest.approx((1.5 + 1.2) / 2, rel=1e-3)
    assert pair(replace(played, plain=None), seed=1) is None


def test_a_text_loops_when_a_third_of_its_pieces_stood_there_before() -> None:
    fresh = " ".join(str(number) for number in range(60))

    assert not is_looping(fresh)
    assert not is_looping("a short one")
    assert is_looping(" ".join(fresh.split()[:20]) + " " + " ".join(fresh.split()[:20]))


def test_every_question_is_asked_both_ways_and_the_order_changes() -> None:
    bodies: list[bytes] = []

    async def answering(body: bytes, writer: asyncio.StreamWriter) -> None:
        bodies.append(body)
        writer.write(plain(503, b"{}"))

    async def run() -> Played:
        async with scripted_server(answering) as server:
            client = HttpClient(server.address)
            ask = Ask(model="m", max_tokens=8, extra={"speculation": {"n": 2}})
            off = Ask(model="m", max_tokens=8, extra={"speculation": {"off": True}})
            questions = [Question(f"q{number}", "?") for number in range(3)]
            level = Level(3, concurrency=1)
            try:
                return await play(
                    client, ask, level, questions, seed=1, on_done=lambda _: None, plain=off
                )
            finally:
                await client.close()

    played = asyncio.run(run())

    assert [b'"off"' in body for body in bodies] == [True, False, False, True, True, False]
    assert [each.question for each in played.answers] == ["q0", "q1", "q2"]
    assert played.plain is not None
    assert [each.question for each in played.plain.answers] == ["q0", "q1", "q2"]
    assert (played.level.label, played.plain.level.label) == ("1 at once", "1 at once, plain")
