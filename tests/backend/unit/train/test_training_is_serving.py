"""What training measures on held-out texts is, place by place, what an engine accepts of them."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import torch

from backend.speculate.heads.loading import load_head
from backend.speculate.heads.saving import save_head
from backend.train.corpus import Text
from backend.train.method import Vocabulary
from backend.train.new_head import Method
from tests.support.engine_world import Tiny
from tests.support.training_world import (
    NUM_DRAFTS,
    Server,
    chained,
    head_of,
    lend_ends,
    training_of,
    written,
)

FORMS: dict[str, tuple[Method, str, int]] = {
    "eagle3": ("eagle3", "llama", 1),
    "eagle3 of two layers": ("eagle3", "llama", 2),
    "eagle3 with qk norms": ("eagle3", "qwen3", 1),
    "dflash": ("dflash", "llama", 2),
    "dspark": ("dspark", "llama", 1),
    "dspark with qk norms": ("dspark", "qwen3", 2),
}
NUM_TEXTS, NUM_KNOWN, NUM_FRESH = 10, 3, 3


def trained(target: Tiny, method: Method, num_layers: int, texts: list[Text], folder: Path) -> Path:
    """A folder with a head that has learnt these texts a little, as it would be published."""
    head = head_of(target, method, texts, num_layers=num_layers)
    training = training_of(target, method, head, folder, texts=texts, held_out=texts[:1], epochs=25)
    training.run()
    assert len(training.progress) > 40
    save_head(head, folder / "head", num_drafts=NUM_DRAFTS)
    return folder / "head"


@pytest.mark.slow
@pytest.mark.parametrize("form", FORMS.values(), ids=FORMS)
def test_measured_is_accepted(
    target: Tiny, qwen3: Tiny, tmp_path: Path, form: tuple[Method, str, int]
) -> None:
    """Of a round behind every written token, and of the rounds that whole answers take.

    Both compute in float32 with the weights as they were published; texts are greedy, so that a
    draft is accepted exactly if the text says it.
    """
    method, family, num_layers = form
    chosen = target if family == "llama" else qwen3
    texts = written(chosen, NUM_TEXTS + NUM_FRESH)
    # Some were trained on, so that the late places are reached, some were never seen.
    held_out = [*texts[:NUM_KNOWN], *texts[NUM_TEXTS:]]
    folder = trained(chosen, method, num_layers, texts[:NUM_TEXTS], tmp_path)

    head = load_head(folder, chosen.model.config)
    lend_ends(chosen, head)
    measured = training_of(
        chosen, method, head, tmp_path, texts=texts[:1], held_out=held_out
    ).trainer.measure()
    server = Server(chosen, method, folder, is_prefix_cached=False)
    rounds = [server.rounds(text) for text in held_out]
    served = server.counts()

    assert (measured.at_risk, measured.hits) == (served.at_risk, served.hits)
    # Every place was reached, got some right, and some wrong.
    assert len(measured.hits) == NUM_DRAFTS
    assert all(0 < hit < risk for hit, risk in zip(measured.hits, measured.at_risk, strict=True))
    # Also tokens that cannot be drafted count, as misses.
    answers = torch.tensor([token for text in held_out for token in text.answer])
    assert bool((Vocabulary(head).labels(answers) < 0).any())

    accepted = Server(chosen, method, folder).whole(held_out)
    for text, behind, found in zip(held_out, rounds, accepted, strict=True):
        expected = chained(text, behind)
        assert len(expected) > 1
        assert found[: len(expected)] == expected


@pytest.mark.slow
@pytest.mark.parametrize("method", ["eagle3", "dspark"])
def test_what_is_measured_does_not_depend_on_the_batches(
    target: Tiny, tmp_path: Path, method: Method
) -> None:
    """Nor on how many anchors training takes, nor on the texts beside one."""
    texts = written(target, 8)
    head = head_of(target, method, texts)

    def measured(held_out: list[Text], **changes: float) -> tuple[list[int], list[int]]:
        training = training_of(
            target, method, head, tmp_path, texts=texts, held_out=held_out, **changes
        )
        found = training.trainer.measure()
        return found.at_risk, found.hits

    whole = measured(texts)
    assert whole[1][0] > 0
    assert measured(texts, rows_per_step=1) == whole
    assert measured(texts, rows_per_step=10_000) == whole
    assert measured(texts[::-1], anchor_share=0.1) == whole
    alone = [measured([text]) for text in texts]
    for part in (0, 1):
        assert [sum(each[part][place] for each in alone) for place in range(NUM_DRAFTS)] == (
            whole[part]
        )


def test_a_text_ends_where_it_ends(target: Tiny, tmp_path: Path) -> None:
    """Of a text of n written tokens n - 1 - k are at risk at place k, if all before are right."""
    (text,) = written(target, 1)
    head = head_of(target, "eagle3", [text])
    for size in (0, 1, 2, 4, 9):
        short = replace(text, answer=text.answer[:size])
        found = training_of(
            target, "eagle3", head, tmp_path, texts=[text], held_out=[short]
        ).trainer.measure()
        assert found.at_risk[0] == max(0, size - 1)
        assert all(risk <= max(0, size - 1 - place) for place, risk in enumerate(found.at_risk))
