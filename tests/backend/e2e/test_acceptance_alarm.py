"""A running server tells when its head is accepted far less often than the head's file records."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from prometheus_client.parser import text_string_to_metric_families

from backend.config import DType, EngineConfig
from backend.models.loading import TokenizerSource, load_model
from backend.serving.draft_check import target_identity
from backend.serving.tokenizer_files import load_tokenizer
from backend.speculate.heads.eagle3 import Eagle3Config, Eagle3Head
from backend.speculate.heads.identity import HeadIdentity, write_identity
from backend.speculate.heads.saving import save_head
from tests.support.backend_process import TINY, RunningBackend, running_backend

pytestmark = pytest.mark.e2e

NUM_DRAFTS = 4
RATE = 0.9
WINDOW = 500
SAID = "far fewer drafts are accepted"


def save_head_for_one_token(directory: Path, target: Path, token_id: int) -> None:
    """Untrained, but it knows a single token and drafts it always."""
    config = load_model(target, EngineConfig(dtype=DType.FLOAT32)).config
    head = Eagle3Head(
        Eagle3Config(
            shape=replace(config, family="draft", num_layers=1),
            windows=(0,),
            target_hidden_size=config.hidden_size,
            layer_ids=(0, 1),
            tap_side="in",
            num_features=2,
            draft_vocab_size=1,
            has_own_embedding=False,
            has_own_lm_head=False,
        )
    )
    assert head.d2t is not None
    head.d2t.copy_(torch.tensor([token_id]))
    save_head(head, directory, num_drafts=NUM_DRAFTS)
    served = target_identity(target, load_tokenizer(TokenizerSource("hf_directory", target, {})))
    write_identity(
        directory,
        HeadIdentity(
            method="eagle3",
            target_name="spelling",
            weights=(served.weights,),
            text=(served.text,),
            thinking="none",
            acceptance={"": RATE * (1 + RATE + RATE**2 + RATE**3) / NUM_DRAFTS},
            notes={"acceptance_by_place": [RATE] * NUM_DRAFTS},
        ),
    )


@pytest.fixture(scope="module")
def backend(
    spelling_model: Path, token_ids: dict[str, int], tmp_path_factory: pytest.TempPathFactory
) -> Iterator[RunningBackend]:
    home = tmp_path_factory.mktemp("alarm")
    save_head_for_one_token(home / "head", spelling_model, token_ids["x"])
    options = ("--speculation", "eagle3", "--draft", str(home / "head"), "--drafts", "4")
    with running_backend(spelling_model, home, *TINY, *options) as running:
        yield running


def write_for(backend: RunningBackend, num_rounds: int, **more: Any) -> dict[str, Any]:
    """The check after so many rounds more. Behind "a" the model writes x and y without end, both
    alike, and x alone if greedy."""
    goal = rounds_of(backend) + num_rounds
    while rounds_of(backend) < goal:
        body = {"model": "spelling", "prompt": "a", "max_tokens": 400, **more}
        backend.post("/v1/completions", body)
    (check,) = backend.get("/v1/load")["speculation"]["acceptance_checks"]
    return dict(check)


def rounds_of(backend: RunningBackend) -> int:
    return sum(each["num_drafts"] for each in backend.get("/v1/load")["speculation"]["figures"])


def gauge_of(backend: RunningBackend) -> float:
    status, _, page = backend.ask("GET", "/metrics")
    assert status == 200
    (value,) = (
        sample.value
        for family in text_string_to_metric_families(page.decode())
        for sample in family.samples
        if sample.name == "backend_speculation_acceptance_low"
        and sample.labels == {"method": "eagle3", "model": "spelling", "workload": ""}
    )
    return value


def test_texts_that_the_head_was_not_recorded_on_are_told_once(backend: RunningBackend) -> None:
    """Greedy every draft stands; drawn at temperature 1 every second one."""
    recorded = RATE + RATE**2 + RATE**3 + RATE**4
    early = write_for(backend, 10, temperature=0)
    assert early == {
        "workload": "", "num_rounds": 0, "recorded": None, "found": None, "is_low": False
    }  # fmt: skip
    assert gauge_of(backend) == 0.0

    well = write_for(backend, WINDOW, temperature=0)

    assert WINDOW <= well["num_rounds"] <= WINDOW + 2
    assert (well["found"], well["is_low"]) == (NUM_DRAFTS, False)
    assert well["recorded"] == pytest.approx(recorded)
    assert gauge_of(backend) == 0.0
    assert SAID not in backend.log()

    badly = write_for(backend, 3 * WINDOW, temperature=1.0)

    assert badly["is_low"]
    assert badly["found"] == pytest.approx(1 / 2 + 1 / 4 + 1 / 8 + 1 / 16, abs=0.2)
    assert gauge_of(backend) == 1.0
    assert backend.log().count(SAID) == 1
    (line,) = (each for each in backend.log().splitlines() if SAID in each)
    assert "temperature" in line
    assert "template" in line
