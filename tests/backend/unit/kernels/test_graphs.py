"""Steps as graphs, on a stand-in for torch's: no GPU has run them (docs/kernels.md)."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from backend.config import DType, EngineConfig, Quantization
from backend.models.loading import load_model
from backend.speculate.captured_rounds import CapturedRounds
from kernels import dispatch
from kernels.dispatch import GRAPHS, REFERENCE, do_only, select
from kernels.doctor.capturing import check_capture
from kernels.doctor.verdict import Key, OpReport, Outcome, Verdict, report_text
from kernels.ops.graphs import Graphs
from tests.support.playback_graphs import PlaybackGraph, install
from tests.support.tiny_checkpoints import BLOCK_SIZE, Chunk, save_tiny, step_logits

Made = list[PlaybackGraph]


@pytest.fixture
def made(monkeypatch: pytest.MonkeyPatch) -> Made:
    return install(monkeypatch)


def test_work_is_done_once_and_again_by_each_repetition(made: Made) -> None:
    state, given, seen = torch.zeros(3), torch.ones(3), []

    def work() -> None:
        seen.append(given * 2.0)
        state.add_(seen[-1])

    repeat = Graphs("cpu").capture(work)

    assert repeat is not None
    assert state.tolist() == [2.0] * 3  # recording it has changed nothing
    assert len(seen) == 2
    given.fill_(5.0)
    assert repeat()
    assert state.tolist() == [12.0] * 3
    assert seen[-1].tolist() == [10.0] * 3  # where the recording put it
    assert seen[0].tolist() == [2.0] * 3
    assert [each.num_replays for each in made] == [1]


def test_work_that_waits_for_the_device_is_left_to_run_op_by_op(
    made: Made, caplog: pytest.LogCaptureFixture
) -> None:
    state = torch.zeros(2)

    def work() -> None:
        state.add_(1.0)
        if state[0].item() > 3.0:
            state.zero_()

    assert Graphs("cpu").capture(work) is None
    assert state.tolist() == [1.0, 1.0]
    assert "cannot be recorded: operation not permitted when stream is capturing" in caplog.text
    assert "and more of it" not in caplog.text


def test_error_of_an_op_is_its_own(made: Made) -> None:
    def work() -> None:
        raise ValueError("does not fit")

    with pytest.raises(ValueError, match="does not fit"):
        Graphs("cpu").capture(work)


def test_all_graphs_have_one_pool_that_outlives_them(made: Made) -> None:
    graphs = Graphs("cpu")
    x = torch.zeros(1)

    def work() -> None:
        x.add_(1.0)

    for _ in range(3):
        assert graphs.capture(work) is not None

    first, *others = made
    assert first.given_pool is None
    assert [each.given_pool for each in others] == [first, first]
    assert graphs._first is first


def test_decode_steps_repeated_as_graphs_are_the_steps(made: Made, tmp_path: Path) -> None:
    save_tiny(tmp_path)
    config = EngineConfig(dtype=DType.FLOAT32, quantization=Quantization.NONE, rows_max=64)
    ops = select("cpu", "reference")
    logits = []
    for capture in (do_only, Graphs("cpu").capture):
        model = load_model(tmp_path, config, ops=replace(ops, capture=capture)).model
        cache = model.make_cache(8, BLOCK_SIZE)
        logits.append(
            [
                step_logits(model, cache, [[Chunk([5 + at, 9], 2 * at, (3, 5, 2))]])
                for at in range(5)
            ]
        )

    for plain, repeated in zip(*logits, strict=True):
        torch.testing.assert_close(plain, repeated)
    assert [each.num_replays for each in made] == [4]


class Inputs:
    """What `CapturedRounds` wants of a round's."""

    def __init__(self, x: torch.Tensor) -> None:
        self.x = x

    def tensors(self) -> tuple[torch.Tensor, ...]:
        return (self.x,)

    def shape(self) -> tuple[int, ...]:
        return (*self.x.shape, 1)

    def copied(self) -> Inputs:
        return Inputs(self.x.clone())


def test_result_of_a_repeated_round_is_the_recordings(made: Made) -> None:
    given: Any = Inputs(torch.ones(2))
    work: Callable[[Any], torch.Tensor] = lambda inputs: inputs.x * 3.0  # noqa: E731 - one line
    rounds = CapturedRounds(
        replace(select("cpu", "reference"), capture=Graphs("cpu").capture), work
    )

    first = rounds.run(given).tolist()
    given.x.fill_(4.0)
    second = rounds.run(given).tolist()

    assert (first, second) == ([3.0, 3.0], [12.0, 12.0])
    assert made[0].num_replays == 1


# Who has graphs


def test_graphs_are_by_name_alone_and_on_a_gpu_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    offered = {"gated_mul": REFERENCE["gated_mul"]}
    monkeypatch.setattr(dispatch, "_load", lambda name: offered)

    assert select("cuda:0", "triton").capture is do_only
    assert select("cuda:0").capture is do_only
    graphed = select("cuda:0", GRAPHS)
    assert graphed.name_of("gated_mul") == "triton"
    assert graphed.capture.__func__ is Graphs.capture  # type: ignore[attr-defined]  # a bound method
    withheld = select("cuda:0", GRAPHS, withheld={"capture": "wrong: other values"})
    assert withheld.capture is do_only
    with pytest.raises(ValueError, match="triton-graphs records steps on a GPU, and cpu is none"):
        select("cpu", GRAPHS)


def test_doctor_finds_a_repetition_right(made: Made) -> None:
    report = check_capture(REFERENCE, "cpu")

    assert report == OpReport(op="capture", outcome=Outcome.OK, cases=("steps as graphs",))
    assert made[0].num_replays == 3


def test_doctor_finds_a_repetition_wrong(made: Made, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(PlaybackGraph, "replay", lambda self: None)

    report = check_capture(REFERENCE, "cpu")

    assert report.outcome is Outcome.WRONG
    assert "other values than the ops" in report.reason


def test_doctor_finds_what_cannot_be_recorded_or_raises(made: Made) -> None:
    def waits(x: torch.Tensor, **kwargs: Any) -> torch.Tensor:
        x[0, 0].item()
        result: torch.Tensor = REFERENCE["gated_mul"](x, **kwargs)
        return result

    def raises(x: torch.Tensor, **kwargs: Any) -> torch.Tensor:
        raise RuntimeError("out of resources")

    waiting = check_capture({**REFERENCE, "gated_mul": waits}, "cpu")
    raising = check_capture({**REFERENCE, "gated_mul": raises}, "cpu")

    assert (waiting.outcome, raising.outcome) == (Outcome.RAISED, Outcome.RAISED)
    assert waiting.reason == "the ops cannot be recorded; the log says why"
    assert raising.reason == "RuntimeError: out of resources"
    assert {waiting.op, raising.op} == {"capture"}
    assert waiting.is_withheld


def test_verdict_tells_graphs_from_ops() -> None:
    key = Key(arch="gfx942", driver="", torch="", triton="", version="", shapes="")
    reports = (
        OpReport(op="rms_norm", outcome=Outcome.OK),
        OpReport(op="capture", outcome=Outcome.HUNG, reason="no end within 120 s"),
    )
    verdict = Verdict(key=key, chip="", host="", reports=reports)

    assert verdict.summary == "no graphs"
    assert verdict.withheld == {"capture": "hung: no end within 120 s"}
    text = report_text(verdict)
    assert any("capture" in line and "op by op" in line for line in text.splitlines())
    wrong = (OpReport(op="sample", outcome=Outcome.WRONG), *reports)
    both = Verdict(key=key, chip="", host="", reports=wrong)
    assert both.summary == "torch serves 1 of 2 ops: sample; no graphs"
