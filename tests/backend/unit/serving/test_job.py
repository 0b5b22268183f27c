"""All sequences of one request: begun together, ended together, within their time."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import AsyncIterator

import pytest

from backend.engine.interface import EngineRequest, TokenEvent
from backend.errors import Overloaded, RequestFailed, RequestTimedOut
from backend.sampling.params import SamplingParams
from backend.serving.engine_thread import EngineThread
from backend.serving.job import Job, TimeLimits, choice_seed, split_choices
from backend.serving.metrics import Metrics
from tests.support.counting_engine import CountingEngine

pytestmark = pytest.mark.anyio

LIMITS = TimeLimits(20.0, 20.0)
PROMPT = tuple(range(40))
_numbers = itertools.count()


@pytest.fixture
def engine() -> CountingEngine:
    return CountingEngine()


@pytest.fixture
async def thread(engine: CountingEngine) -> AsyncIterator[EngineThread]:
    made = EngineThread(lambda: engine, Metrics())
    await made.start()
    yield made
    assert made.num_open == 0, "a job left sequences open"
    await made.stop()


def group(num: int, max_tokens: int = 3, seed: int | None = None) -> list[EngineRequest]:
    params = SamplingParams(max_tokens=max_tokens, seed=seed)
    return split_choices(EngineRequest(f"r{next(_numbers)}", PROMPT, params), num)


async def run(job: Job) -> list[TokenEvent]:
    try:
        return [event async for events in job.events() for event in events]
    finally:
        job.close()


async def test_events_of_all_sequences_come_merged(thread: EngineThread) -> None:
    given = group(3)

    events = await run(Job(thread, [given], LIMITS))

    for each in given:
        own = [event for event in events if event.request_id == each.request_id]
        assert [event.token_ids for event in own] == [(1,), (2,), (3,)]


async def test_others_of_a_prompt_wait_until_its_first_sequence_has_filled_the_cache(
    thread: EngineThread, engine: CountingEngine
) -> None:
    seen_at_add: list[int] = []
    engine.on_add = lambda request: seen_at_add.append(
        sum(count for _, count in engine.open.values())
    )

    await run(Job(thread, [group(3, 1000)], LIMITS, share_tokens_min=32))

    first, *others = seen_at_add
    assert first == 0
    assert len(others) == 2
    assert min(others) >= 1


async def test_short_prompts_have_nothing_to_share_and_start_together(
    thread: EngineThread, engine: CountingEngine
) -> None:
    engine.step_s = 0.05

    await run(Job(thread, [group(3, 2)], LIMITS, share_tokens_min=64))

    assert len(engine.added) == 3


async def test_no_event_is_handed_out_before_all_are_accepted(
    thread: EngineThread, engine: CountingEngine
) -> None:
    engine.waiting_max = 2
    job = Job(thread, [group(3, 10_000)], LIMITS, share_tokens_min=32)

    events = job.events()
    with pytest.raises(Overloaded):
        await anext(events)
    job.close()

    assert len(engine.added) == 2
    assert await thread.wait_idle(1.0)


async def test_failure_of_one_sequence_is_the_jobs_and_ends_the_others(
    thread: EngineThread, engine: CountingEngine
) -> None:
    given = group(2, 10_000)
    engine.fails = {given[1].request_id}

    with pytest.raises(RequestFailed, match="cursed"):
        await run(Job(thread, [given], LIMITS))

    assert await thread.wait_idle(1.0)


@pytest.mark.parametrize(
    ("limits", "said"),
    [(TimeLimits(0.1, 20.0), "first token within 0.1 s"), (TimeLimits(20.0, 0.3), "no end within")],
)
async def test_job_that_takes_too_long_is_cancelled_and_says_so(
    thread: EngineThread, engine: CountingEngine, limits: TimeLimits, said: str
) -> None:
    engine.step_s = 0.2 if limits.first_token_s < 1 else 0.02

    with pytest.raises(RequestTimedOut, match=said):
        await run(Job(thread, [group(1, 10_000)], limits))

    assert await thread.wait_idle(1.0)


async def test_abandoned_job_ends_at_once_and_without_an_error(
    thread: EngineThread, engine: CountingEngine
) -> None:
    engine.step_s = 0.02
    job = Job(thread, [group(2, 10_000)], LIMITS)
    task = asyncio.create_task(run(job))
    await asyncio.sleep(0.1)

    job.abandon()

    await asyncio.wait_for(task, 1.0)
    assert await thread.wait_idle(0.0)


def test_choices_have_seeds_of_their_own_and_the_first_keeps_the_given_one() -> None:
    params = SamplingParams(max_tokens=1, seed=7)

    seeds = [choice_seed(params, idx) for idx in range(4)]

    assert seeds[0] == 7
    assert len(set(seeds)) == 4
    assert all(0 <= seed < 2**63 for seed in seeds if seed is not None)
    assert seeds == [choice_seed(params, idx) for idx in range(4)]
    assert choice_seed(SamplingParams(max_tokens=1), 3) is None
