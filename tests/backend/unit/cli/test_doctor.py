"""`doctor` and what `serve` does with a verdict; the search itself is tests/kernels/doctor."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest
from click.testing import CliRunner

from backend.cli.doctor import doctor
from backend.cli.doctoring import NUM_DRAFTS, examined, geometry_of, subject_of, usable_cache
from backend.config import EngineConfig, KernelChoice
from backend.errors import SetupError
from backend.layers.ops import ops_of
from backend.models.loading import read_description
from kernels.doctor import examine
from kernels.doctor.cache import VerdictCache
from kernels.doctor.examine import NothingToExamine, Subject
from kernels.doctor.process import ChildFailed
from kernels.doctor.verdict import Key, OpReport, Outcome, Verdict
from tests.support.tiny_checkpoints import save_tiny

GPU = EngineConfig(device="cuda")
KEY = Key(arch="gfx942", driver="d", torch="t", triton="3", version="v", shapes="s")
REASON = "an error of 1.0e-01 is beyond 3.2e-02"


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("models") / "tiny-qwen3"
    save_tiny(directory, "qwen3")
    return directory


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> VerdictCache:
    """A home of its own, and a key as a GPU has it."""
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setattr(Subject, "key", lambda subject: KEY)
    return usable_cache(pytest.fail)


def verdict(*, is_whole: bool = True) -> Verdict:
    reports = (
        OpReport(op="rms_norm", outcome=Outcome.OK),
        OpReport(op="sample", outcome=Outcome.WRONG, reason=REASON),
    )
    return Verdict(key=KEY, chip="MI300X", host="Linux", reports=reports, is_whole=is_whole)


def giving(found: Verdict | Exception) -> Callable[..., Verdict]:
    def run(subject: Subject, *args: Any, **kwargs: Any) -> Verdict:
        assert subject.geometry is not None
        if isinstance(found, Exception):
            raise found
        return found

    return run


def test_geometry_is_the_models(model: Path) -> None:
    config, _ = read_description(model)
    of = geometry_of(config, "tiny")

    assert (of.hidden_size, of.num_heads, of.num_kv_heads, of.head_dim) == (64, 4, 2, 32)
    assert (of.intermediate_size, of.vocab_size, of.rotary_dim) == (112, 320, 32)
    assert (of.block_size, of.num_drafts, of.has_qk_norm) == (32, NUM_DRAFTS, True)
    assert subject_of("cpu", "float32", model).geometry == geometry_of(config, "tiny-qwen3")


def test_serve_tries_unknown_kernels_says_so_and_leaves_the_bad_ones_to_torch(
    model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(examine, "examine", giving(verdict()))
    said: list[str] = []
    config = examined(GPU, model, said.append)

    assert config.kernels == KernelChoice(
        "auto", {"sample": f"wrong: {REASON}"}, "torch serves 1 of 2 ops: sample"
    )
    assert "--no-doctor" in said[0]
    assert "torch serves 1 of 2 ops: sample" in said[1]


def test_serve_takes_a_known_verdict_in_silence(
    model: Path, cache: VerdictCache, monkeypatch: pytest.MonkeyPatch
) -> None:
    cache.write(verdict())
    monkeypatch.setattr(examine, "examine", giving(AssertionError("it was tried again")))

    assert examined(GPU, model, pytest.fail).kernels.withheld == {"sample": f"wrong: {REASON}"}


def test_serve_stops_where_the_gpu_stopped_answering(
    model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(examine, "examine", giving(verdict(is_whole=False)))

    with pytest.raises(SetupError, match="does not answer any more since sample was tried; reset"):
        examined(GPU, model, lambda line: None)


def test_serve_goes_on_with_torch_where_there_is_no_triton(
    model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(examine, "examine", giving(NothingToExamine("no triton here")))

    assert examined(GPU, model, lambda line: None).kernels == KernelChoice(
        "auto", {}, "no triton here"
    )


@pytest.mark.parametrize("error", [ChildFailed("no memory"), OSError(28, "No space left")])
def test_what_stops_the_doctor_itself_is_told_in_one_line(
    model: Path, monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    monkeypatch.setattr(examine, "examine", giving(error))

    with pytest.raises(SetupError, match="cannot be tried"):
        examined(GPU, model, lambda line: None)


@pytest.mark.parametrize(
    "config",
    [
        EngineConfig(),
        EngineConfig(device="cuda", kernels=KernelChoice("reference")),
    ],
)
def test_nothing_is_tried_where_no_triton_kernel_serves(config: EngineConfig, model: Path) -> None:
    assert examined(config, model, pytest.fail) is config


def test_folder_that_cannot_be_written_costs_the_memory_not_the_start(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path / "file"))
    (tmp_path / "file").write_text("no folder")
    said: list[str] = []

    made = usable_cache(said.append)

    assert "forgotten at the end" in said[0]
    made.write(verdict())
    assert made.read(KEY) is not None


def test_doctor_without_a_gpu_says_what_it_needs() -> None:
    result = CliRunner().invoke(doctor, ["--device", "cpu"])

    assert isinstance(result.exception, SetupError)
    assert "TRITON_INTERPRET=1" in str(result.exception)


def test_doctor_prints_what_belongs_into_a_bug_report(
    cache: VerdictCache, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(examine, "_offered", lambda subject: ("rms_norm", "sample"))
    cache.write(verdict())

    shown = CliRunner().invoke(doctor, ["--device", "cpu"])
    as_json = CliRunner().invoke(doctor, ["--device", "cpu", "--json"])

    assert shown.exit_code == 0, shown.output
    for words in ("gfx942 (MI300X), driver d", f"sample: {REASON}", "torch serves 1 of 2 ops"):
        assert words in shown.stdout
    assert msgspec.json.decode(as_json.stdout, type=Verdict) == cache.read(KEY)


def test_withheld_ops_of_an_engine_are_torchs() -> None:
    withheld = {"rms_norm": "slow", "linear_int8": "hung"}
    ops = ops_of(EngineConfig(kernels=KernelChoice("auto", withheld)))

    assert {ops.name_of(op) for op in withheld} == {"reference"}
    with pytest.raises(SetupError, match="need a GPU"):
        ops_of(EngineConfig(kernels=KernelChoice("triton")))
