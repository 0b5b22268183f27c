"""The engine's thread: order, refusals, cancelling, and what its failure does to the others."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator

import pytest

from backend.engine.interface import EngineRequest, FinishReason, TokenEvent
from backend.errors import BadRequest, Overloaded, RequestFailed, SetupError, Unavailable
from backend.sampling.params import SamplingParams
from backend.serving.engine_thread import EngineThread
from backend.serving.mailbox import Accepted, Mailbox, Refused, Report
from backend.serving.metrics import Metrics
from tests.support.counting_engine import CountingEngine

pytestmark = pytest.mark.anyio

LONG_S = 20.0


def request(name: str, max_tokens: int = 3) -> EngineRequest:
    return EngineRequest(name, (1, 2), SamplingParams(max_tokens=max_tokens))


@pytest.fixture
def engine() -> CountingEngine:
    return CountingEngine()


@pytest.fixture
async def thread(engine: CountingEngine) -> AsyncIterator[EngineThread]:
    made = EngineThread(lambda: engine, Metrics())
    await made.start()
    yield made
    await made.stop()


async def until_last(mailbox: Mailbox) -> list[Report]:
    seen: list[Report] = []
    deadline_s = asyncio.get_running_loop().time() + LONG_S
    while True:
        taken = await mailbox.take(deadline_s)
        assert taken, "nothing came"
        seen += taken
        last = seen[-1]
        if isinstance(last, Refused) or (isinstance(last, TokenEvent) and last.finish):
            return seen


async def test_request_is_accepted_first_and_then_its_tokens_come_in_order(
    thread: EngineThread, engine: CountingEngine
) -> None:
    mailbox = Mailbox()

    thread.submit(request("a"), mailbox)
    accepted, *events = await until_last(mailbox)

    assert accepted == Accepted("a")
    assert [each.token_ids for each in events if isinstance(each, TokenEvent)] == [(1,), (2,), (3,)]
    assert thread.num_open == 0
    assert await thread.wait_idle(0.0)


async def test_engine_is_made_and_used_by_its_own_thread_only(
    thread: EngineThread, engine: CountingEngine
) -> None:
    mailbox = Mailbox()
    thread.submit(request("a"), mailbox)
    await until_last(mailbox)

    assert len(engine.threads) == 1
    assert threading.get_ident() not in engine.threads


@pytest.mark.parametrize(
    ("raised", "told"),
    [
        (BadRequest("no", param="x"), BadRequest),
        (Overloaded("full", retry_after_s=2.0), Overloaded),
        (ZeroDivisionError("oops"), RequestFailed),
    ],
)
async def test_what_add_raises_reaches_that_request_alone(
    thread: EngineThread, engine: CountingEngine, raised: Exception, told: type[Exception]
) -> None:
    def refuse(given: EngineRequest) -> None:
        if given.request_id == "bad":
            raise raised

    engine.on_add = refuse
    bad, good = Mailbox(), Mailbox()

    thread.submit(request("bad"), bad)
    thread.submit(request("good"), good)

    [refused] = await until_last(bad)
    assert isinstance(refused, Refused)
    assert isinstance(refused.error, told)
    assert len(await until_last(good)) == 4
    assert thread.failure is None


async def test_cancelled_request_is_taken_out_of_the_engine_before_the_next_step(
    thread: EngineThread, engine: CountingEngine
) -> None:
    engine.step_s = 0.01
    mailbox = Mailbox()
    thread.submit(request("a", 10_000), mailbox)
    deadline_s = asyncio.get_running_loop().time() + LONG_S
    while not any(isinstance(each, TokenEvent) for each in await mailbox.take(deadline_s)):
        pass

    thread.cancel("a")
    thread.cancel("a")

    assert await thread.wait_idle(0.0)
    other = Mailbox()
    thread.submit(request("b", 1), other)
    await until_last(other)
    assert engine.cancelled == ["a"]
    assert list(engine.open) == []


async def test_cancel_right_behind_the_submission_leaves_nothing(
    thread: EngineThread, engine: CountingEngine
) -> None:
    mailbox = Mailbox()
    thread.submit(request("a", 10_000), mailbox)
    thread.cancel("a")
    other = Mailbox()
    thread.submit(request("b", 1), other)
    await until_last(other)

    assert engine.cancelled == ["a"]
    assert list(engine.open) == []


async def test_failed_step_fails_all_open_requests_and_later_ones_and_says_why(
    thread: EngineThread, engine: CountingEngine
) -> None:
    first, second = Mailbox(), Mailbox()
    engine.step_s = 0.01
    thread.submit(request("a", 10_000), first)
    thread.submit(request("b", 10_000), second)

    def fail() -> None:
        raise ZeroDivisionError("bad tensor")

    engine.on_step = fail
    for mailbox in (first, second):
        refused = (await until_last(mailbox))[-1]
        assert isinstance(refused, Refused)
        assert isinstance(refused.error, RequestFailed)
        assert "bad tensor" in str(refused.error)
    assert thread.failure is not None
    with pytest.raises(Unavailable, match="bad tensor"):
        thread.submit(request("c"), Mailbox())


async def test_engine_that_cannot_be_made_is_the_starters_error() -> None:
    def fail() -> CountingEngine:
        raise SetupError("no such file")

    made = EngineThread(fail, Metrics())

    with pytest.raises(SetupError, match="no such file"):
        await made.start()


async def test_failing_the_open_ones_ends_them_with_that_error(
    thread: EngineThread, engine: CountingEngine
) -> None:
    engine.step_s = 0.01
    mailbox = Mailbox()
    thread.submit(request("a", 10_000), mailbox)

    assert not await thread.wait_idle(0.05)
    thread.fail_open(Unavailable("over"))

    last = (await until_last(mailbox))[-1]
    assert isinstance(last, Refused)
    assert str(last.error) == "over"
    assert await thread.wait_idle(0.0)


async def test_load_is_kept_current_while_nothing_runs(
    thread: EngineThread, engine: CountingEngine
) -> None:
    mailbox = Mailbox()
    thread.submit(request("a"), mailbox)
    await until_last(mailbox)
    for _ in range(100):
        if thread.load is not None and thread.load.num_running == 0:
            break
        await asyncio.sleep(0.02)

    assert thread.load is not None
    assert thread.load.kv_blocks_used == 0


async def test_hanging_step_can_be_seen(thread: EngineThread, engine: CountingEngine) -> None:
    released = threading.Event()
    engine.on_step = lambda: released.wait(LONG_S) and None
    thread.submit(request("a", 1), mailbox := Mailbox())
    for _ in range(200):
        if thread.step_age_s() > 0.02:
            break
        await asyncio.sleep(0.01)
    seen_s = thread.step_age_s()
    released.set()
    last = (await until_last(mailbox))[-1]

    assert seen_s > 0.02
    assert isinstance(last, TokenEvent)
    assert last.finish is FinishReason.LENGTH
    assert thread.step_age_s() == 0.0


async def test_metrics_count_tokens_ends_and_steps(engine: CountingEngine) -> None:
    metrics = Metrics()
    thread = EngineThread(lambda: engine, metrics)
    await thread.start()
    thread.submit(request("a", 4), mailbox := Mailbox())
    await until_last(mailbox)
    await thread.stop()

    value = metrics.registry.get_sample_value
    assert value("backend_generated_tokens_total") == 4
    assert value("backend_prompt_tokens_total") == 2
    assert value("backend_sequences_total", {"finish": "length"}) == 1
    assert value("backend_ttft_seconds_count") == 1
    assert value("backend_inter_token_seconds_count") == 3
    assert value("backend_step_seconds_count") == 4
