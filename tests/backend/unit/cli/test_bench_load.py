"""The two loops: how many at once, when requests are due, and what counts as waiting."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

import numpy as np
import pytest

from backend.cli.bench import make_levels
from backend.cli.measuring import load
from backend.cli.measuring.asking import Answer, Ask
from backend.cli.measuring.http_client import HttpClient
from backend.cli.measuring.load import Level, Played, arrival_times_s, play
from backend.cli.measuring.questions import Question
from tests.backend.unit.cli.scripted_server import (
    DONE,
    FINISH,
    STREAM_END,
    STREAM_HEAD,
    event,
    scripted_server,
)

QUESTIONS = [Question(f"q{idx}", f"question {idx}") for idx in range(5)]
ASK = Ask(model="m", max_tokens=8, timeout_s=10.0)


class Watched:
    """Answers after a while and notes how many were being answered at once."""

    def __init__(self, wait_s: float) -> None:
        self.wait_s = wait_s
        self.at_once = self.at_once_max = 0

    async def __call__(self, _body: bytes, writer: asyncio.StreamWriter) -> None:
        self.at_once += 1
        self.at_once_max = max(self.at_once, self.at_once_max)
        await asyncio.sleep(self.wait_s)
        self.at_once -= 1
        writer.write(STREAM_HEAD + event("a") + FINISH + DONE + STREAM_END)


def played(level: Level, wait_s: float) -> tuple[Played, Watched, Sequence[Answer]]:
    watched = Watched(wait_s)
    done: list[Answer] = []

    async def run() -> Played:
        async with scripted_server(watched) as server:
            client = HttpClient(server.address)
            try:
                return await play(client, ASK, level, QUESTIONS, seed=1, on_done=done.append)
            finally:
                await client.close()

    return asyncio.run(run()), watched, done


def test_a_closed_loop_keeps_so_many_in_flight() -> None:
    found, watched, done = played(Level(12, concurrency=4), wait_s=0.02)

    assert watched.at_once_max == 4
    assert len(found.answers) == len(done) == 12
    assert not any(each.failure for each in found.answers)
    assert sorted(each.question for each in found.answers) == sorted(
        QUESTIONS[idx % 5].name for idx in range(12)
    )
    assert found.wall_s >= 3 * 0.02


def test_an_open_loop_waits_for_nobody() -> None:
    found, watched, _ = played(Level(20, rate=200.0), wait_s=0.3)

    assert watched.at_once_max > 10
    assert len(found.answers) == 20


def test_waiting_counts_from_when_a_request_was_due(monkeypatch: pytest.MonkeyPatch) -> None:
    """A client that is late itself may not make the server look fast."""

    def all_at_once(rate: float, num_requests: int, seed: int) -> list[float]:
        return [-0.5] * num_requests

    monkeypatch.setattr(load, "arrival_times_s", all_at_once)
    found, _, _ = played(Level(3, rate=1.0), wait_s=0.01)

    waits_s = [each.stamps.ttft_any_s for each in found.answers]
    assert all(wait_s is not None and wait_s >= 0.5 for wait_s in waits_s)


def test_too_many_in_flight_fail_here(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(load, "IN_FLIGHT_MAX", 2)
    found, watched, _ = played(Level(5, rate=1000.0), wait_s=0.5)

    assert watched.at_once_max == 2
    assert [each.failure for each in found.answers if each.failure] == [
        "not sent: 2 requests were in flight already"
    ] * 3


def test_arrivals_are_a_poisson_process_that_can_be_repeated() -> None:
    times_s = arrival_times_s(5.0, 20_001, seed=3)
    gaps_s = np.diff(times_s)

    assert times_s[0] == 0.0
    assert times_s == arrival_times_s(5.0, 20_001, seed=3)
    assert times_s != arrival_times_s(5.0, 20_001, seed=4)
    # Mean and deviation of an exponential are equal; 20,000 gaps give 0.7 % standard error.
    assert gaps_s.mean() == pytest.approx(0.2, rel=0.03)
    assert gaps_s.std() == pytest.approx(0.2, rel=0.05)


def test_rows_of_the_table() -> None:
    assert [each.concurrency for each in make_levels(None, None, None)] == [1, 4, 16, 32]
    assert [each.num_requests for each in make_levels((1, 32), None, None)] == [16, 96]
    assert make_levels(None, (2.0,), None) == [Level(60, rate=2.0)]
    assert make_levels((2,), (2.0,), 7) == [Level(7, concurrency=2), Level(7, rate=2.0)]
