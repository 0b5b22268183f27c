"""Prompt lookup behind the real server: the same answers, fewer rounds, asked for per request."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from prometheus_client.parser import text_string_to_metric_families

from tests.support.backend_process import TINY, RunningBackend, run_backend, running_backend

pytestmark = pytest.mark.e2e

NUM_DRAFTS = 4


@pytest.fixture(scope="module")
def shared(
    spelling_model: Path, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[RunningBackend]:
    options = (*TINY, "--speculation", "ngram", "--drafts", str(NUM_DRAFTS))
    with running_backend(spelling_model, tmp_path_factory.mktemp("ngram"), *options) as backend:
        yield backend


@pytest.fixture
def backend(shared: RunningBackend) -> Iterator[RunningBackend]:
    yield shared
    shared.assert_all_blocks_free()


def complete(backend: RunningBackend, **more: Any) -> str:
    """Behind "a" the model writes x and y without end, and x alone if greedy."""
    body = {"model": "spelling", "prompt": "a", "max_tokens": 40, "temperature": 0, **more}
    return str(backend.post("/v1/completions", body)["choices"][0]["text"])


def figures(backend: RunningBackend, workload: str) -> dict[str, Any]:
    found = backend.get("/v1/load")["speculation"]["figures"]
    return next((each for each in found if each["workload"] == workload), {"num_drafts": 0})


def test_a_request_chooses_method_number_or_none(backend: RunningBackend) -> None:
    before = figures(backend, "completion/greedy")["num_drafts"]
    texts, rounds = [], []
    for wish in (None, {"off": True}, {"n": 1}, {"method": "ngram", "n": 2}, {"method": "none"}):
        texts.append(complete(backend, **({} if wish is None else {"speculation": wish})))
        after = figures(backend, "completion/greedy")["num_drafts"]
        rounds.append(after - before)
        before = after

    assert texts == ["x" * 40] * 5
    # 40 tokens: one from the prompt, one before x is known to follow x, and at the end one alone.
    assert rounds == [8, 0, 19, 13, 0]


def test_the_load_says_what_drafts_were_worth(backend: RunningBackend) -> None:
    complete(backend)

    told = backend.get("/v1/load")["speculation"]
    found = figures(backend, "completion/greedy")

    assert (told["method"], told["num_drafts_max"]) == ("ngram", NUM_DRAFTS)
    # Plain steps were measured before the first request, rounds since.
    assert {"0", str(NUM_DRAFTS)} <= told["step_s"]["1"].keys()
    assert found["method"] == "ngram"
    assert found["acceptance_rate"] == found["num_accepted_tokens"] / found["num_draft_tokens"]
    assert found["mean_acceptance_length"] == pytest.approx(
        1 + found["num_accepted_tokens"] / found["num_drafts"]
    )
    assert found["acceptance_by_position"] == [1.0] * NUM_DRAFTS
    assert found["num_at_risk"] == found["num_accepted"]
    assert 0 < found["round_cost"] < 50
    assert found["speed_up"] > 0
    timed = told["num_steps"]
    assert {batch: row.keys() for batch, row in timed.items()} == {
        batch: row.keys() for batch, row in told["step_s"].items()
    }
    assert all(num > 0 for row in timed.values() for num in row.values())


def test_the_load_says_why_so_many_are_drafted_and_what_was_decided(
    backend: RunningBackend,
) -> None:
    before = backend.get("/v1/load")["speculation"]["num_steps_by_why"]
    complete(backend, max_tokens=41)  # one from the prompt, one before x is known, then 4 + 1 each
    complete(backend, speculation={"off": True})
    told = backend.get("/v1/load")["speculation"]

    assert told["num_steps_by_why"]["full"] - before.get("full", 0) == 7
    assert told["num_steps_by_why"]["unwanted"] - before.get("unwanted", 0) == 39
    assert (told["num_drafts_now"], told["why_now"]) == (0, "unwanted")
    method, drafts, plain = told["decisions"]
    assert (method["what"], method["method"]) == ("method", "ngram")
    assert method["why"] == "asked for with --speculation"
    assert (drafts["num_drafts"], drafts["why"]) == (NUM_DRAFTS, "asked for with --drafts")
    assert plain["what"] == "plain_steps"
    assert abs(plain["at_unix_s"] - time.time()) < 600


def test_metrics_have_the_same_figures_by_method_model_and_workload(
    backend: RunningBackend,
) -> None:
    complete(backend)
    found = figures(backend, "completion/greedy")

    status, _, page = backend.ask("GET", "/metrics")

    assert status == 200
    labels = {"method": "ngram", "model": "spelling", "workload": "completion/greedy"}
    samples = {
        (
            sample.name.removeprefix("backend_speculation_"),
            sample.labels.get("position"),
        ): sample.value
        for family in text_string_to_metric_families(page.decode())
        for sample in family.samples
        if sample.labels.items() >= labels.items()
    }
    for metric, name in {
        "drafts_total": "num_drafts",
        "draft_tokens_total": "num_draft_tokens",
        "accepted_tokens_total": "num_accepted_tokens",
        "acceptance_rate": "acceptance_rate",
        "mean_acceptance_length": "mean_acceptance_length",
        "round_cost": "round_cost",
        "speed_up": "speed_up",
    }.items():
        assert samples[metric, None] == pytest.approx(found[name])
    for position in range(NUM_DRAFTS):
        at_risk, accepted = found["num_at_risk"][position], found["num_accepted"][position]
        assert samples["at_risk_at_position_total", str(position)] == at_risk
        assert samples["accepted_at_position_total", str(position)] == accepted


def test_drawn_text_with_a_seed_is_the_same_with_and_without_drafts(
    backend: RunningBackend,
) -> None:
    drawn = {"temperature": 1.0, "seed": 5, "max_tokens": 60}
    before = figures(backend, "completion/drawn")["num_drafts"]

    texts = [complete(backend, **drawn, speculation={"off": is_off}) for is_off in (True, False)]

    assert texts[0] == texts[1]
    assert set(texts[0]) == {"x", "y"}
    assert figures(backend, "completion/drawn")["num_drafts"] > before


def test_kinds_of_work_have_figures_of_their_own(backend: RunningBackend) -> None:
    body = {
        "model": "spelling",
        "messages": [{"role": "user", "content": "words"}],
        "max_tokens": 30,
        "temperature": 0,
    }
    tools = [{"type": "function", "function": {"name": "f", "parameters": {}}}]
    backend.post("/v1/chat/completions", body)
    backend.post("/v1/chat/completions", {**body, "tools": tools, "ignore_eos": True})

    assert figures(backend, "chat/greedy")["num_drafts"] > 0
    assert figures(backend, "tools/greedy")["num_drafts"] > 0


def test_bench_asks_each_question_with_and_without_drafts(
    backend: RunningBackend, tmp_path: Path
) -> None:
    prompts, written = tmp_path / "prompts.jsonl", tmp_path / "out.json"
    prompts.write_text('{"prompt": "words, please"}\n{"prompt": "more words"}\n')

    done = run_backend(
        *("bench", backend.v1, "--prompts", str(prompts), "--concurrency", "1,2"),
        *("--requests", "4", "--max-tokens", "40", "--against-plain", "--speculation", "ngram:3"),
        *("--json", str(written)),
        home=tmp_path,
    )

    assert done.returncode == 0, done.stderr
    run = json.loads(written.read_bytes())
    assert "4 of 4" in done.stdout
    labels = ["1 at once", "1 at once, plain", "2 at once", "2 at once, plain"]
    assert [each["load"] for each in run["levels"]] == labels
    assert len(run["answers"]) == 16
    for load in ("1 at once", "2 at once"):
        (rounds,) = run["rounds"][load]
        assert (rounds["method"], rounds["workload"]) == ("ngram", "chat/greedy")
        # Four answers of 40 tokens: one from the prompt, one alone, then four a round.
        assert rounds["num_drafts"] == 40
        assert rounds["num_accepted"] == rounds["num_at_risk"]
        assert len(rounds["num_at_risk"]) == 3
        assert run["paired"][load]["num_identical"] == run["paired"][load]["num_compared"] == 4


def test_a_method_that_nobody_knows_is_refused(backend: RunningBackend) -> None:
    body = {"model": "spelling", "prompt": "a", "speculation": {"method": "magic"}}

    status, _, answer = backend.ask("POST", "/v1/completions", body)

    assert status == 400
    assert b"speculation.method" in answer
    assert b"ngram" in answer
