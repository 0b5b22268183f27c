"""Closed loop: so many in flight. Open loop: arrivals that wait for nobody."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np

from backend.cli.measuring.asking import Answer, Ask, ask_once
from backend.cli.measuring.http_client import HttpClient
from backend.cli.measuring.questions import Question
from gateway.stats.timeline import Stamps

IN_FLIGHT_MAX = 1024  # of an open loop; beyond it an arrival fails here

OnDone = Callable[[Answer], None]


@dataclass(frozen=True, slots=True)
class Level:
    """One row of the table: a concurrency or a rate, and how many requests."""

    num_requests: int
    concurrency: int = 0  # closed loop
    rate: float = 0.0  # requests a second, Poisson; open loop
    is_plain: bool = False  # the other half of a paired run: the same questions without drafts

    @property
    def label(self) -> str:
        load = f"{self.concurrency} at once" if self.concurrency else f"{self.rate:g}/s"
        return f"{load}, plain" if self.is_plain else load


@dataclass(frozen=True, slots=True)
class Played:
    """Answers in the order of their end; seconds from the first dispatch to the last byte.

    Of a pair each half has the seconds of its own answers.
    """

    level: Level
    answers: Sequence[Answer]
    wall_s: float
    plain: Played | None = None  # the same questions asked plainly, in the same order


def arrival_times_s(rate: float, num_requests: int, seed: int) -> list[float]:
    """A Poisson process from 0 on: exponential gaps of mean 1 / rate."""
    gaps = np.random.default_rng(seed).exponential(1.0 / rate, size=num_requests)
    gaps[0] = 0.0
    return [float(at_s) for at_s in np.cumsum(gaps)]


async def play(
    client: HttpClient,
    ask: Ask,
    level: Level,
    questions: Sequence[Question],
    *,
    seed: int,
    on_done: OnDone,
    plain: Ask | None = None,
) -> Played:
    """Ask `level.num_requests` questions from the front of `questions`, over and over if few.

    With `plain`, in a closed loop, each of them twice, one right after the other, and every second
    time in the other order.
    """
    assert plain is None or level.concurrency
    asked = [questions[idx % len(questions)] for idx in range(level.num_requests)]
    if plain is not None:
        pairs = await _paired(client, (ask, plain), asked, level.concurrency, on_done)
        theirs = _half(replace(level, is_plain=True), [each for _, each in pairs])
        return replace(_half(level, [each for each, _ in pairs]), plain=theirs)
    began_at_s = time.monotonic()
    if level.concurrency:
        answers = await _closed(client, ask, asked, level.concurrency, on_done)
    else:
        due = arrival_times_s(level.rate, level.num_requests, seed)
        answers = await _open(client, ask, asked, [began_at_s + each for each in due], on_done)
    ended_at_s = max((each.stamps.ended_at_s or began_at_s for each in answers), default=began_at_s)
    return Played(level, answers, max(ended_at_s - began_at_s, 1e-9))


def _half(level: Level, answers: Sequence[Answer]) -> Played:
    busy_s = sum(each.stamps.whole_s or 0.0 for each in answers)
    return Played(level, answers, max(busy_s / level.concurrency, 1e-9))


async def _closed(
    client: HttpClient, ask: Ask, asked: Sequence[Question], concurrency: int, on_done: OnDone
) -> list[Answer]:
    waiting = iter(asked)
    answers: list[Answer] = []

    async def work() -> None:
        for question in waiting:
            answer = await ask_once(client, ask, question)
            answers.append(answer)
            on_done(answer)

    async with asyncio.TaskGroup() as group:
        for _ in range(min(concurrency, len(asked))):
            group.create_task(work())
    return answers


async def _paired(
    client: HttpClient,
    asks: tuple[Ask, Ask],
    asked: Sequence[Question],
    concurrency: int,
    on_done: OnDone,
) -> list[tuple[Answer, Answer]]:
    waiting = iter(enumerate(asked))
    pairs: list[tuple[Answer, Answer]] = []

    async def work() -> None:
        for number, question in waiting:
            order = (0, 1) if number % 2 else (1, 0)
            found = {}
            for which in order:
                found[which] = await ask_once(client, asks[which], question)
                on_done(found[which])
            pairs.append((found[0], found[1]))

    async with asyncio.TaskGroup() as group:
        for _ in range(min(concurrency, len(asked))):
            group.create_task(work())
    return pairs


async def _open(
    client: HttpClient,
    ask: Ask,
    asked: Sequence[Question],
    due_at_s: Sequence[float],
    on_done: OnDone,
) -> list[Answer]:
    answers: list[Answer] = []
    in_flight = 0

    async def one(question: Question, at_s: float) -> None:
        nonlocal in_flight
        in_flight += 1
        # Counted from when it was due: a client that falls behind may not hide the wait.
        answer = await ask_once(client, ask, question, due_at_s=at_s)
        in_flight -= 1
        answers.append(answer)
        on_done(answer)

    async with asyncio.TaskGroup() as group:
        for question, at_s in zip(asked, due_at_s, strict=True):
            await asyncio.sleep(max(0.0, at_s - time.monotonic()))
            if in_flight >= IN_FLIGHT_MAX:
                answers.append(_not_sent(question, at_s))
                on_done(answers[-1])
                continue
            group.create_task(one(question, at_s))
    return answers


def _not_sent(question: Question, at_s: float) -> Answer:
    return Answer(
        question=question.name,
        stamps=Stamps(dispatched_at_s=at_s),
        failure=f"not sent: {IN_FLIGHT_MAX} requests were in flight already",
    )
