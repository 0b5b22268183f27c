"""The real small model: fetched by the command, served by its short name, asked by the SDK."""

from __future__ import annotations

import json
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from openai import OpenAI

from tests.support.backend_process import RunningBackend, run_backend

pytestmark = [pytest.mark.e2e, pytest.mark.slow]

MODEL = "smollm2-135m-instruct"
FRANCE: list[Any] = [{"role": "user", "content": "What is the capital of France?"}]


@pytest.fixture
def sdk(smollm2: RunningBackend) -> Iterator[OpenAI]:
    with OpenAI(base_url=smollm2.v1, api_key="unused", max_retries=0, timeout=120) as made:
        yield made


def test_fetched_model_is_listed_and_fetching_again_does_nothing(fetched_smollm2: Path) -> None:
    listed = json.loads(run_backend("models", "list", "--json", home=fetched_smollm2).stdout)
    again = run_backend("models", "fetch", "smollm2", home=fetched_smollm2)

    [model] = listed
    assert (model["name"], model["served_name"]) == ("smollm2", MODEL)
    assert model["licence"] == "Apache-2.0"
    assert Path(model["path"]).stat().st_size == model["size_bytes"]
    assert again.returncode == 0
    assert "here already" in again.stdout


def test_it_knows_the_capital_of_france(sdk: OpenAI) -> None:
    answer = sdk.chat.completions.create(model=MODEL, messages=FRANCE, temperature=0, max_tokens=32)

    assert "Paris" in (answer.choices[0].message.content or "")
    assert answer.choices[0].finish_reason == "stop"
    assert answer.usage is not None
    assert answer.usage.prompt_tokens > 20


def test_stream_says_the_same_as_the_whole_answer(sdk: OpenAI) -> None:
    options: Any = {"model": MODEL, "messages": FRANCE, "temperature": 0, "max_tokens": 32}
    whole = sdk.chat.completions.create(**options).choices[0].message.content

    chunks = list(sdk.chat.completions.create(stream=True, **options))

    assert "".join(each.choices[0].delta.content or "" for each in chunks) == whole
    assert sum(bool(each.choices[0].delta.content) for each in chunks) > 3


def test_it_speculates_by_itself_with_the_head_that_comes_with_the_package(
    smollm2: RunningBackend, sdk: OpenAI
) -> None:
    """The text is the plain one; the figures are those that a page would show."""
    question = "A baker sells 12 loaves a day at $3 each. How much does he earn in a week?"
    options: Any = {
        "model": MODEL,
        "messages": [{"role": "user", "content": question}],
        "temperature": 0,
        "max_tokens": 160,
    }

    before = _drafts_by_workload(smollm2)
    drafted = sdk.chat.completions.create(**options)
    plain = sdk.chat.completions.create(**options, extra_body={"speculation": {"off": True}})

    assert drafted.choices[0].message.content == plain.choices[0].message.content
    told = smollm2.get("/v1/load")["speculation"]
    assert told["method"] == "dspark+ngram"
    assert told["num_drafts_max"] == 5
    assert told["step_s"]["1"]["0"] > 0  # what a plain step costs was measured at the start
    # The server is shared with other tests, whose requests may be of other classes.
    [figures] = [
        each
        for each in told["figures"]
        if each["num_drafts"] > before.get(each["workload"], 0) + 20
    ]
    assert figures["mean_acceptance_length"] > 1.5
    assert figures["acceptance_by_position"][0] > 0.4
    assert figures["speed_up"] is not None


def _drafts_by_workload(server: RunningBackend) -> dict[str, int]:
    told = server.get("/v1/load")["speculation"]["figures"]
    return {each["workload"]: each["num_drafts"] for each in told}


def test_second_request_finds_its_prompt_in_the_cache(sdk: OpenAI) -> None:
    messages: list[Any] = [{"role": "user", "content": "Count slowly: " + "one two three " * 20}]
    options: Any = {"model": MODEL, "messages": messages, "max_tokens": 1}

    sdk.chat.completions.create(**options)
    usage = sdk.chat.completions.create(**options).usage

    assert usage is not None
    assert usage.prompt_tokens_details is not None
    assert (usage.prompt_tokens_details.cached_tokens or 0) >= 32


def test_tools_are_refused_where_the_template_has_no_place_for_them(
    smollm2: RunningBackend,
) -> None:
    body = {
        "model": MODEL,
        "messages": FRANCE,
        "tools": [{"type": "function", "function": {"name": "f"}}],
    }

    status, _, answer = smollm2.ask("POST", "/v1/chat/completions", body)

    assert status == 400
    assert json.loads(answer)["error"]["param"] == "tools"
    assert smollm2.get(f"/v1/models/{MODEL}")["looprouter"] == {
        "family": "llama",
        "chat": True,
        "tools": False,
        "reasoning": False,
    }


def test_thirty_two_streams_at_once_all_finish_and_none_starves(sdk: OpenAI) -> None:
    def stream(idx: int) -> int:
        chunks = sdk.chat.completions.create(
            model=MODEL,
            messages=[{"role": "user", "content": f"Tell me fact number {idx} about rivers."}],
            max_tokens=24,
            seed=idx,
            stream=True,
            extra_body={"ignore_eos": True},
        )
        finishes = [each.choices[0].finish_reason for each in chunks]
        assert finishes[-1] == "length"
        return len(finishes)

    with ThreadPoolExecutor(32) as pool:
        counts = list(pool.map(stream, range(32)))

    assert len(counts) == 32
    assert min(counts) > 10


def test_seeded_answer_does_not_depend_on_its_neighbours(sdk: OpenAI) -> None:
    def ask(seed: int) -> str | None:
        answer = sdk.chat.completions.create(
            model=MODEL,
            messages=[{"role": "user", "content": "Write one sentence about the sea."}],
            max_tokens=24,
            seed=seed,
        )
        return answer.choices[0].message.content

    alone = ask(3)
    with ThreadPoolExecutor(8) as pool:
        beside = list(pool.map(ask, range(8)))

    assert beside[3] == alone
    assert len(set(beside)) > 4
