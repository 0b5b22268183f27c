"""The SDKs' batch flows, only base URL and key changed, beside providers' own batch APIs."""

from __future__ import annotations

import json
import signal
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from anthropic import Anthropic
from openai import APIStatusError, BadRequestError, NotFoundError, OpenAI

from tests.support.batch_world import (
    BatchWorld,
    batch_world,
    chat_line,
    joined_lines,
    wait_for_end,
)
from tests.support.gateway_world import wait_until

pytestmark = pytest.mark.e2e


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BatchWorld]:
    with batch_world(tmp_path_factory.mktemp("batches")) as world:
        yield world
        world.check_paid()


@pytest.fixture(scope="module")
def client(world: BatchWorld) -> Iterator[OpenAI]:
    with OpenAI(base_url=world.v1, api_key=world.key, max_retries=0) as client:
        yield client


def upload(client: OpenAI, lines: list[dict[str, Any]]) -> str:
    return client.files.create(file=("in.jsonl", joined_lines(lines)), purpose="batch").id


def run(client: OpenAI, lines: list[dict[str, Any]], **options: Any) -> Any:
    made = client.batches.create(
        input_file_id=upload(client, lines),
        endpoint="/v1/chat/completions",
        completion_window="24h",
        **options,
    )
    return wait_for_end(lambda: client.batches.retrieve(made.id))


def answers(client: OpenAI, file_id: str) -> dict[str, dict[str, Any]]:
    text = client.files.content(file_id).text
    found = [json.loads(line) for line in text.splitlines()]
    by_id = {each["custom_id"]: each for each in found}
    assert len(by_id) == len(found)
    return by_id


def test_a_file_goes_through_a_batch_and_comes_back_by_custom_id(
    world: BatchWorld, client: OpenAI
) -> None:
    lines = [chat_line(f"case-{each}", "gpt", f"Say {each}.") for each in range(60)]
    done = run(client, lines, metadata={"team": "evals"})

    assert done.status == "completed"
    assert done.metadata == {"team": "evals"}
    assert (done.request_counts.total, done.request_counts.completed) == (60, 60)
    assert done.error_file_id is None
    found = answers(client, done.output_file_id)
    assert set(found) == {f"case-{each}" for each in range(60)}
    for each in found.values():
        assert each["error"] is None
        assert each["response"]["status_code"] == 200
        assert each["response"]["body"]["choices"][0]["message"]["content"]


def test_a_native_batch_api_takes_the_lines_at_its_lower_price(
    world: BatchWorld, client: OpenAI
) -> None:
    lines = [chat_line(f"n-{each}", "native", f"Say {each}.") for each in range(80)]
    done = run(client, lines)

    assert done.status == "completed"
    assert done.request_counts.completed == 80
    ours = done.looprouter
    # The provider's batch price is half of that at once.
    assert float(ours["cost_usd"]) == pytest.approx(float(ours["list_price_usd"]) / 2, rel=0.02)
    assert len(answers(client, done.output_file_id)) == 80


def test_a_refused_line_stands_in_the_error_file_and_costs_nothing(
    world: BatchWorld, client: OpenAI
) -> None:
    lines = [chat_line(f"ok-{each}", "gpt", "Hi.") for each in range(3)]
    lines.append(chat_line("bad", "gpt", "Hi. [[sim fault=error status=400]]"))
    done = run(client, lines)

    assert done.status == "completed"
    assert (done.request_counts.completed, done.request_counts.failed) == (3, 1)
    (bad,) = answers(client, done.error_file_id).values()
    assert bad["custom_id"] == "bad"
    assert bad["response"]["status_code"] == 400


def test_a_cancelled_batch_ends_with_what_ran(world: BatchWorld, client: OpenAI) -> None:
    lines = [chat_line(f"c-{each}", "slow", "Tell a long story.") for each in range(40)]
    made = client.batches.create(
        input_file_id=upload(client, lines),
        endpoint="/v1/chat/completions",
        completion_window="24h",
    )
    time.sleep(1.0)
    assert client.batches.cancel(made.id).status in ("cancelling", "cancelled")
    done = wait_for_end(lambda: client.batches.retrieve(made.id))

    assert done.status == "cancelled"
    assert done.cancelled_at >= done.cancelling_at
    counted = done.looprouter["lines"]
    assert counted["cancelled"] + counted.get("succeeded", 0) == 40
    assert counted["cancelled"] > 0
    codes = {
        each["error"]["code"]
        for each in answers(client, done.error_file_id).values()
        if each["error"]
    }
    assert codes == {"batch_cancelled"}


def test_a_broken_line_is_told_by_its_number_and_nothing_of_the_file_stays(
    world: BatchWorld, client: OpenAI
) -> None:
    before, stored = {each.id for each in client.files.list()}, world.stored_objects()
    lines = joined_lines([chat_line(f"b-{each}", "gpt", "Hi.") for each in range(50)]).splitlines()
    lines[36] = b'{"custom_id": "b-36", "method": "POST"'
    with pytest.raises(BadRequestError, match="line 37") as told:
        client.files.create(file=("in.jsonl", b"\n".join(lines)), purpose="batch")
    assert told.value.body["detail"][0]["line"] == 37  # type: ignore[index]  # our own shape
    assert {each.id for each in client.files.list()} == before
    # The storage takes its unfinished part away when the last hold on it goes, a moment later.
    wait_until(lambda: world.stored_objects() == stored, "nothing of it to be kept")


@pytest.mark.parametrize(
    ("change", "code", "words"),
    [
        ({"custom_id": "d-0"}, "invalid_batch_file", "line 2: custom_id 'd-0' is used"),
        ({"method": "GET"}, "invalid_batch_file", 'line 2: method is "GET"'),
        ({"url": "/v1/moderations"}, "invalid_batch_file", "line 2: url"),
        ({"body": {"messages": []}}, "invalid_batch_file", "line 2: `model` is missing"),
    ],
)
def test_what_is_wrong_with_a_line_is_said(
    client: OpenAI, change: dict[str, Any], code: str, words: str
) -> None:
    lines = [chat_line("d-0", "gpt", "Hi."), {**chat_line("d-1", "gpt", "Hi."), **change}]
    with pytest.raises(BadRequestError) as told:
        upload(client, lines)
    assert told.value.code == code
    assert words in told.value.message


def test_a_model_nobody_has_and_one_too_small_are_named_with_their_lines(client: OpenAI) -> None:
    lines = [
        chat_line("m-0", "gpt", "Hi."),
        chat_line("m-1", "no-such-model", "Hi."),
        chat_line("m-2", "gpt", "word " * 200_000),
    ]
    file_id = upload(client, lines)
    with pytest.raises(BadRequestError) as told:
        client.batches.create(
            input_file_id=file_id, endpoint="/v1/chat/completions", completion_window="24h"
        )
    assert "line 2: there is no model 'no-such-model'" in told.value.message
    assert "line 3: about" in told.value.message
    assert "exceed the model's context" in told.value.message
    assert client.files.delete(file_id).deleted


def test_a_batch_that_may_not_cost_enough_is_refused_by_how_much(
    world: BatchWorld, client: OpenAI
) -> None:
    file_id = upload(client, [chat_line(f"p-{each}", "gpt", "Hi.") for each in range(20)])
    with pytest.raises(BadRequestError, match="more than max_cost") as told:
        client.batches.create(
            input_file_id=file_id,
            endpoint="/v1/chat/completions",
            completion_window="24h",
            extra_body={"max_cost": "0.000001"},
        )
    assert told.value.code == "batch_not_feasible"


@pytest.mark.parametrize("window", ["5m", "8d", "soon"])
def test_windows_outside_ten_minutes_to_seven_days_are_refused(client: OpenAI, window: Any) -> None:
    file_id = upload(client, [chat_line("w-0", "gpt", "Hi.")])
    with pytest.raises(BadRequestError) as told:
        client.batches.create(
            input_file_id=file_id, endpoint="/v1/chat/completions", completion_window=window
        )
    assert told.value.param == "completion_window"


def test_another_tenant_sees_nothing_of_it(world: BatchWorld, client: OpenAI) -> None:
    file_id = upload(client, [chat_line("t-0", "gpt", "Hi.")])
    with OpenAI(base_url=world.v1, api_key=world.strangers_key, max_retries=0) as stranger:
        for ask in (
            lambda: stranger.files.retrieve(file_id),
            lambda: stranger.files.content(file_id),
            lambda: stranger.files.delete(file_id),
            lambda: stranger.batches.create(
                input_file_id=file_id, endpoint="/v1/chat/completions", completion_window="24h"
            ),
        ):
            with pytest.raises(NotFoundError):
                ask()
        assert not list(stranger.files.list())


def test_files_page_by_the_sdks_own_iterator(client: OpenAI) -> None:
    made = {upload(client, [chat_line(f"l-{each}", "gpt", "Hi.")]) for each in range(5)}
    listed = [each.id for each in client.files.list(limit=2)]
    assert made <= set(listed)
    assert len(listed) == len(set(listed))
    for file_id in made:
        client.files.delete(file_id)
    assert not made & {each.id for each in client.files.list(limit=2)}


def test_a_file_in_use_is_not_deleted(client: OpenAI) -> None:
    lines = [chat_line(f"u-{each}", "slow", "Tell a story.") for each in range(4)]
    file_id = upload(client, lines)
    made = client.batches.create(
        input_file_id=file_id, endpoint="/v1/chat/completions", completion_window="24h"
    )
    with pytest.raises(APIStatusError) as told:
        client.files.delete(file_id)
    assert told.value.status_code == 409
    client.batches.cancel(made.id)
    wait_for_end(lambda: client.batches.retrieve(made.id))
    assert client.files.delete(file_id).deleted


def test_anthropics_batches_flow(world: BatchWorld) -> None:
    with Anthropic(base_url=world.base_url, api_key=world.key, max_retries=0) as client:
        requests: list[Any] = [
            {
                "custom_id": f"a-{each}",
                "params": {
                    "model": "claude",
                    "max_tokens": 16,
                    "messages": [{"role": "user", "content": f"Say {each}."}],
                },
            }
            for each in range(60)
        ]
        made = client.messages.batches.create(requests=requests)
        assert made.processing_status == "in_progress"
        deadline = time.monotonic() + 60.0
        while client.messages.batches.retrieve(made.id).processing_status != "ended":
            assert time.monotonic() < deadline
            time.sleep(0.1)
        results = {each.custom_id: each.result for each in client.messages.batches.results(made.id)}
        assert set(results) == {f"a-{each}" for each in range(60)}
        for each in results.values():
            assert each.type == "succeeded"
            assert each.message.content[0].text  # type: ignore[union-attr]  # a text block
        done = client.messages.batches.retrieve(made.id)
        assert done.request_counts.succeeded == 60
        assert made.id in [each.id for each in client.messages.batches.list(limit=5)]
        assert client.messages.batches.delete(made.id).type == "message_batch_deleted"


def test_anthropics_refusals_name_the_request(world: BatchWorld) -> None:
    with Anthropic(base_url=world.base_url, api_key=world.key, max_retries=0) as client:
        twice: list[Any] = [
            {
                "custom_id": "same",
                "params": {
                    "model": "claude",
                    "max_tokens": 16,
                    "messages": [{"role": "user", "content": "Hi."}],
                },
            }
        ] * 2
        with pytest.raises(Exception, match="custom_id 'same' is used by a line before it"):
            client.messages.batches.create(requests=twice)


@contextmanager
def _killed(world: BatchWorld) -> Iterator[None]:
    world.gateway.process.send_signal(signal.SIGKILL)
    world.gateway.process.wait(10)
    yield
    world.restart()


def test_a_kill_loses_no_line_and_settles_none_twice(tmp_path: Path) -> None:
    with batch_world(tmp_path) as world:
        with OpenAI(base_url=world.v1, api_key=world.key, max_retries=0) as client:
            lines = [chat_line(f"k-{each}", "gpt", f"Say {each}.") for each in range(200)]
            lines += [chat_line(f"kn-{each}", "native", f"Say {each}.") for each in range(60)]
            made = client.batches.create(
                input_file_id=upload(client, lines),
                endpoint="/v1/chat/completions",
                completion_window="24h",
            )
            for _ in range(2):
                time.sleep(1.5)
                with _killed(world):
                    pass
            done = wait_for_end(lambda: client.batches.retrieve(made.id))
            assert done.status == "completed"
            found = answers(client, done.output_file_id)
            assert len(found) == 260
        world.check_paid(may_be_estimated=True)
