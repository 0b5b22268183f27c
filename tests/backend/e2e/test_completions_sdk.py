"""Raw prompts, several choices, seeds, and what two requests share."""

from __future__ import annotations

from typing import Any

import pytest
from openai import OpenAI

from tests.support.backend_process import RunningBackend

pytestmark = pytest.mark.e2e

MODEL = "spelling"
LONG = "a" * 100  # several blocks


def test_raw_prompt_may_hold_control_tokens(client: OpenAI) -> None:
    answer = client.completions.create(model=MODEL, prompt="<|go|>", max_tokens=20)

    assert answer.choices[0].text == "Hello world, how are you?"
    assert answer.choices[0].finish_reason == "stop"
    assert answer.id.startswith("cmpl-")


def test_max_tokens_is_sixteen_where_nothing_is_said(client: OpenAI) -> None:
    answer = client.completions.create(model=MODEL, prompt="a")

    assert len(answer.choices[0].text) == 16
    assert answer.choices[0].finish_reason == "length"


def test_stream_of_a_completion_ends_with_usage(client: OpenAI) -> None:
    *told, usage = client.completions.create(
        model=MODEL,
        prompt="<|go|>",
        max_tokens=20,
        stream=True,
        stream_options={"include_usage": True},
        echo=True,
    )

    text = "".join(each.choices[0].text for each in told)
    assert text == "<|go|>Hello world, how are you?"
    assert told[-1].choices[0].finish_reason == "stop"
    assert usage.usage is not None
    assert usage.usage.completion_tokens == 7


def test_prompts_of_a_list_are_answered_in_order(client: OpenAI, token_ids: dict[str, int]) -> None:
    given: Any = ["<|go|>", "a", "<|go|>"]

    answer = client.completions.create(model=MODEL, prompt=given, max_tokens=3, n=2)
    by_ids = client.completions.create(model=MODEL, prompt=[[token_ids["<|go|>"]]], max_tokens=3)

    texts = [each.text for each in answer.choices]
    assert [each.index for each in answer.choices] == list(range(6))
    assert [texts[idx] for idx in (0, 1, 4, 5)] == ["Hello world"] * 4
    assert all(set(text) <= set("xy") for text in texts[2:4])
    assert by_ids.choices[0].text == "Hello world"
    assert answer.usage is not None
    assert answer.usage.prompt_tokens == 3
    assert answer.usage.completion_tokens == 18


def test_choices_of_one_request_differ_and_a_seed_repeats_them(client: OpenAI) -> None:
    options: Any = {"model": MODEL, "prompt": LONG, "max_tokens": 40, "n": 4, "seed": 11}

    first = client.completions.create(**options)
    again = client.completions.create(**options)
    alone = client.completions.create(**{**options, "n": 1})

    texts = [each.text for each in first.choices]
    assert len(set(texts)) == 4
    assert [each.text for each in again.choices] == texts
    assert alone.choices[0].text == texts[0]


def test_choices_share_the_prompt_in_the_cache(client: OpenAI, backend: RunningBackend) -> None:
    before = _cached_total(backend)

    answer = client.completions.create(model=MODEL, prompt="shared " * 20, max_tokens=2, n=4)

    assert answer.usage is not None
    assert answer.usage.prompt_tokens == 140
    assert _cached_total(backend) - before >= 3 * 128


def _cached_total(backend: RunningBackend) -> float:
    text = backend.ask("GET", "/metrics")[2].decode()
    [line] = [
        each for each in text.splitlines() if each.startswith("backend_cached_prompt_tokens_total ")
    ]
    return float(line.split()[1])


def test_without_a_seed_answers_differ(client: OpenAI) -> None:
    texts = {
        client.completions.create(model=MODEL, prompt="a", max_tokens=40).choices[0].text
        for _ in range(3)
    }

    assert len(texts) == 3


def test_seeded_answer_is_the_same_beside_others(client: OpenAI, backend: RunningBackend) -> None:
    options: Any = {"model": MODEL, "max_tokens": 60, "seed": 5}
    alone = client.completions.create(prompt="b", **options).choices[0].text

    crowd = client.completions.create(
        prompt=["a", "aa", "b", "aaa"], extra_body={"temperature": 1.0}, **options
    )

    assert crowd.choices[2].text == alone


def test_second_prompt_with_the_same_start_is_cached_for_its_tenant_only(
    backend: RunningBackend,
) -> None:
    body = {"model": MODEL, "prompt": "tenant " * 30, "max_tokens": 1}

    def cached(tenant: str) -> int:
        answer = backend.post("/v1/completions", body, x_looprouter_tenant=tenant)
        return int(answer["usage"]["prompt_tokens_details"]["cached_tokens"])

    assert [cached("a"), cached("a"), cached("b"), cached("b")] == [0, 192, 0, 192]


def test_greedy_ties_and_penalties(client: OpenAI) -> None:
    greedy = client.completions.create(model=MODEL, prompt="a", temperature=0, max_tokens=10)
    spread = client.completions.create(
        model=MODEL, prompt="a", temperature=0, max_tokens=10, frequency_penalty=2
    )

    assert len(set(greedy.choices[0].text)) == 1
    assert spread.choices[0].text.count("x") == spread.choices[0].text.count("y") == 5


def test_logprobs_of_a_completion_have_offsets(client: OpenAI) -> None:
    answer = client.completions.create(model=MODEL, prompt="<|go|>", max_tokens=3, logprobs=1)

    logprobs = answer.choices[0].logprobs
    assert logprobs is not None
    assert logprobs.tokens == ["Hello", " wor", "ld"]
    assert logprobs.text_offset == [0, 5, 9]
    assert logprobs.top_logprobs is not None
    assert [list(each) for each in logprobs.top_logprobs] == [["Hello"], [" wor"], ["ld"]]


def test_end_tokens_can_be_ignored(client: OpenAI) -> None:
    answer = client.completions.create(
        model=MODEL, prompt="<|go|>", max_tokens=12, extra_body={"ignore_eos": True}
    )

    assert answer.choices[0].finish_reason == "length"
    assert answer.choices[0].text.startswith("Hello world, how are you?")
    assert answer.usage is not None
    assert answer.usage.completion_tokens == 12


@pytest.mark.parametrize("speculation", [{"off": True}, {"method": "none", "n": 2}])
def test_speculation_can_be_asked_for_or_off(client: OpenAI, speculation: dict[str, Any]) -> None:
    answer = client.completions.create(
        model=MODEL, prompt="<|go|>", max_tokens=3, extra_body={"speculation": speculation}
    )

    assert answer.choices[0].text == "Hello world"
