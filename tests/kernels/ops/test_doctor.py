"""`looprouter-backend doctor` with the real Triton ops, in child processes that interpret them."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest
from click.testing import CliRunner

from backend.cli.doctor import doctor
from kernels.doctor import examine
from kernels.doctor.checking import offered
from kernels.doctor.verdict import Outcome, Verdict
from tests.support.tiny_checkpoints import save_tiny

# Of the cheap ones: all of them take a minute and a half, and a test of their own each.
OPS = ("rms_norm", "rope_kv_write", "sample")


@pytest.mark.slow
def test_doctor_finds_the_triton_ops_as_they_should_be_at_a_models_sizes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    assert set(OPS) < set(offered("kernels.ops"))
    monkeypatch.setattr(examine, "offered", lambda module: OPS)
    save_tiny(tmp_path / "tiny-qwen3", "qwen3", num_hidden_layers=1, vocab_size=128)
    asked = ["--model", str(tmp_path / "tiny-qwen3"), "--dtype", "float32", "--device", "cpu"]

    shown = CliRunner().invoke(doctor, asked)
    again = CliRunner().invoke(doctor, [*asked, "--json"])

    assert shown.exit_code == 0, shown.output
    assert "all 3 kernels are as they should be" in shown.stdout
    verdict = msgspec.json.decode(again.stdout, type=Verdict)
    assert {each.op: each.outcome for each in verdict.reports} == dict.fromkeys(OPS, Outcome.OK)
    assert verdict.key.arch == "cpu, interpreted"
    assert "tiny-qwen3" in verdict.key.shapes
    # An interpreter's times say nothing; the second time nothing was tried.
    assert all(each.op_s is None for each in verdict.reports)
    assert again.stderr == ""
