"""Steps of training: what is learnt, and a run that was stopped ends as one that was not."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor

from backend.errors import SetupError
from backend.speculate.heads.loading import load_head
from backend.speculate.heads.saving import save_head
from backend.train.corpus import Text
from backend.train.losses import LossWeights
from backend.train.new_head import METHODS, Method
from backend.train.trainer import STATE_FILE, Progress
from tests.support.engine_world import Tiny
from tests.support.training_world import NUM_DRAFTS, Server, Training, head_of, training_of, written


@pytest.fixture(scope="module")
def texts(target: Tiny) -> list[Text]:
    return written(target, 9)


@pytest.fixture
def training(target: Tiny, texts: list[Text], tmp_path: Path) -> Callable[..., Training]:
    """Each with a head of its own; their states lie in one folder."""

    def make(method: Method, **changes: Any) -> Training:
        given = {"texts": texts[:6], "held_out": texts[6:], "epochs": 4, **changes}
        directory = given.pop("directory", tmp_path)
        head = head_of(target, method, given["texts"], seed=given.pop("head_seed", 0))
        return training_of(target, method, head, directory, **given)

    return make


def parameters(training: Training) -> dict[str, Tensor]:
    return {name: each.clone() for name, each in training.head.own_state().items()}


def assert_same(one: dict[str, Tensor], other: dict[str, Tensor]) -> None:
    assert set(one) == set(other)
    for name, tensor in one.items():
        assert torch.equal(tensor, other[name]), name


def stop_at(step: int) -> Callable[[Progress], None]:
    def watch(found: Progress) -> None:
        if found.step == step:
            raise KeyboardInterrupt

    return watch


@pytest.mark.slow
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("method", METHODS)
def test_the_loss_falls(
    training: Callable[..., Training], method: Method, dtype: torch.dtype
) -> None:
    learning = training(method, epochs=30, dtype=dtype)
    before = parameters(learning)
    ends = [each.clone() for each in _lent(learning)]
    untrained = learning.trainer.measure()

    learning.run()

    losses = [each.loss for each in learning.progress]
    lengths = [each.mean_acceptance_length for each in learning.progress]
    assert [each.step for each in learning.progress] == list(range(1, len(losses) + 1))
    assert losses[-1] < 0.75 * losses[0]
    assert lengths[-1] > lengths[0] + 0.3
    # Every parameter has learnt, and nothing that is the target's.
    after = parameters(learning)
    for name, tensor in before.items():
        assert torch.equal(tensor, after[name]) == (name == "d2t"), name
    assert all(torch.equal(*pair) for pair in zip(ends, _lent(learning), strict=True))
    assert learning.checkpoints[-1].at_risk[0] == untrained.at_risk[0]


def _lent(training: Training) -> Iterator[Tensor]:
    for each in (training.head.embed_tokens, training.head.lm_head):
        assert each is not None
        yield each.weight


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each look at it is a second later; so checkpoints come every few steps."""
    ticks = itertools.count()
    clock = SimpleNamespace(monotonic=lambda: float(next(ticks)))
    monkeypatch.setattr("backend.train.trainer.time", clock)


@pytest.mark.usefixtures("clock")
@pytest.mark.parametrize(
    ("method", "stops"),
    [
        ("dspark", (4,)),
        *(pytest.param(method, (1, 2, 6), marks=pytest.mark.slow) for method in METHODS),
    ],
)
def test_a_run_that_was_stopped_ends_as_one_that_was_not(
    training: Callable[..., Training], tmp_path: Path, method: Method, stops: tuple[int, ...]
) -> None:
    """Bit by bit, though it goes on from the last checkpoint, some steps back."""
    straight = training(method, checkpoint_s=4.0)
    straight.run()
    num_steps = straight.trainer.num_steps
    assert num_steps > 7
    assert 2 < len(straight.checkpoints) < num_steps
    (tmp_path / STATE_FILE).unlink()

    for stop in stops:
        stopped = training(method, checkpoint_s=4.0)
        stopped.trainer.resume()
        with pytest.raises(KeyboardInterrupt):
            stopped.run(stop_at(stop))
    last = training(method, checkpoint_s=4.0)
    # Nothing of the run that was stopped lives on but its file.
    with torch.no_grad():
        for each in last.head.parameters():
            if each.requires_grad:
                each.zero_()
    was_there = last.trainer.resume()
    counts = last.run()

    assert was_there
    assert 1 < last.progress[0].step <= stops[-1]
    assert_same(parameters(last), parameters(straight))
    assert counts == straight.checkpoints[-1]


@pytest.mark.slow
@pytest.mark.parametrize("method", ["dflash", "eagle3"])
def test_checkpoints_change_nothing(
    training: Callable[..., Training], tmp_path: Path, method: Method
) -> None:
    often, once = training(method, checkpoint_s=0.0), training(method, checkpoint_s=1e9)

    often.run()
    once.run()

    assert len(often.checkpoints) == often.trainer.num_steps
    assert len(once.checkpoints) == 1
    assert_same(parameters(often), parameters(once))


def test_what_is_finished_stays_as_it_is(training: Callable[..., Training]) -> None:
    first = training("dspark")
    counts = first.run()
    again = training("dspark")

    assert again.trainer.resume()
    assert again.run() == counts
    assert again.progress == []
    assert_same(parameters(again), parameters(first))


def test_a_save_that_is_interrupted_leaves_the_one_before(
    training: Callable[..., Training], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = training("dflash")
    first.trainer.save()
    before = parameters(first)
    with monkeypatch.context() as patched:
        patched.setattr("backend.train.trainer.save_file", _half_a_save)
        with pytest.raises(OSError, match="disk is full"):
            first.run()

    again = training("dflash", head_seed=9)

    assert again.trainer.resume()
    assert_same(parameters(again), before)
    again.run()
    assert [each.name for each in tmp_path.iterdir() if each.is_file()] == [STATE_FILE]


def _half_a_save(tensors: Any, path: Path, metadata: Any) -> None:
    path.write_bytes(b"half")
    raise OSError("disk is full")


@pytest.mark.parametrize(
    "changes",
    [
        {"learning_rate": 1e-2},
        {"epochs": 5},
        {"seed": 1},
        {"weights": LossWeights(soft=0.5)},
        {"rows_per_step": 100},
        {"method": "dflash"},
    ],
    ids=lambda changes: next(iter(changes)),
)
def test_the_state_of_another_training_is_refused(
    training: Callable[..., Training], changes: dict[str, Any]
) -> None:
    training("dspark").trainer.save()
    assert training("dspark").trainer.resume()
    other = training(**{"method": "dspark", **changes})
    before = parameters(other)

    with pytest.raises(SetupError, match=rf"{STATE_FILE} is of another training .* remove it"):
        other.trainer.resume()
    assert_same(parameters(other), before)


def test_the_state_of_other_texts_is_refused(
    training: Callable[..., Training], texts: list[Text]
) -> None:
    training("dspark").trainer.save()

    with pytest.raises(SetupError, match="is of another training"):
        training("dspark", texts=texts[:5]).trainer.resume()


def test_nothing_to_go_on_from(training: Callable[..., Training]) -> None:
    assert not training("dspark").trainer.resume()


def test_no_text_to_train_on_is_said(training: Callable[..., Training]) -> None:
    with pytest.raises(SetupError, match="no text to train on"):
        training("dspark", texts=[])


@pytest.mark.parametrize("method", METHODS)
def test_texts_without_a_place_teach_nothing_and_do_no_harm(
    training: Callable[..., Training], method: Method
) -> None:
    """An answer of one token has no token that could be drafted."""
    learning = training(
        method, texts=[Text("k", (50, 60, 70), (11,)), Text("k", (90,), (12,))], held_out=[]
    )

    counts = learning.run()

    assert all(torch.isfinite(each).all() for each in parameters(learning).values())
    assert sum(counts.at_risk) == 0


@pytest.mark.slow
@pytest.mark.parametrize("method", METHODS)
def test_every_checkpoint_can_be_read_and_served(
    target: Tiny, texts: list[Text], training: Callable[..., Training], tmp_path: Path,
    method: Method,
) -> None:  # fmt: skip
    learning = training(method, checkpoint_s=0.0, epochs=2)
    folders = []

    def publish(found: Progress) -> None:
        folder = tmp_path / f"step-{found.step}"
        save_head(learning.head, folder, num_drafts=NUM_DRAFTS, is_int8=found.step % 2 == 0)
        folders.append(folder)

    learning.run(publish)

    assert len(folders) == learning.trainer.num_steps
    for folder in folders:
        load_head(folder, target.model.config)
    rounds = Server(target, method, folders[-1], is_prefix_cached=False).rounds(texts[0])
    assert len(rounds) == len(texts[0].answer) - 1
