"""The doctor with ops that go wrong in every way there is, each in a real process of its own."""

from __future__ import annotations

import os
import signal
import threading
import time
from dataclasses import replace
from pathlib import Path

import pytest

from kernels.dispatch import REFERENCE, build
from kernels.doctor import examine, process
from kernels.doctor.cache import VerdictCache
from kernels.doctor.checking import Task
from kernels.doctor.examine import Manner, NothingToExamine, Subject, known
from kernels.doctor.process import Child, ChildFailed
from kernels.doctor.shapes import Geometry
from kernels.doctor.verdict import OpReport, Outcome, Verdict, report_text
from tests.support import faulty_ops, leaving_ops

GEOMETRY = Geometry(
    shown="tiny", hidden_size=32, num_heads=4, num_kv_heads=2, head_dim=16, rotary_dim=16,
    intermediate_size=48, vocab_size=64, block_size=8, num_drafts=2,
)  # fmt: skip
FAULTY = Subject(device="cpu", geometry=GEOMETRY, dtype="float32", module=faulty_ops.__name__)
# The slow op is that one only against a clock, so all are timed though this is a CPU.
TIMED = Manner(op_s_max=4.0, is_timed=True)
SLOW = pytest.mark.slow  # each child imports torch


@pytest.fixture(scope="module")
def cache(tmp_path_factory: pytest.TempPathFactory) -> VerdictCache:
    return VerdictCache(tmp_path_factory.mktemp("verdicts"))


@pytest.fixture(scope="module")
def told() -> list[str]:
    return []


@pytest.fixture(scope="module")
def verdict(cache: VerdictCache, told: list[str]) -> Verdict:
    return examine.examine(FAULTY, cache, manner=TIMED, tell=told.append)


def report_of(verdict: Verdict, op: str) -> OpReport:
    (found,) = (each for each in verdict.reports if each.op == op)
    return found


@SLOW
@pytest.mark.parametrize(
    ("op", "outcome", "reason"),
    [
        ("rms_norm", Outcome.OK, ""),
        ("gated_mul", Outcome.WRONG, "silu: result 0: an error of "),
        ("rope_kv_write", Outcome.WRONG, "rotated: result 6: an error of "),
        ("sample", Outcome.WRONG, "greedy: result 0: 2 values differ"),
        ("row_stats", Outcome.RAISED, "warm: RuntimeError: out of resources: shared memory"),
        ("paged_attention", Outcome.CRASHED, "killed by SIGABRT: Memory access fault by GPU"),
        ("linear_int8", Outcome.CRASHED, "killed by SIGSEGV"),
        ("verify_rejection", Outcome.HUNG, "no end within 4 s"),
        ("residual_pick", Outcome.SLOW, " us, torch's own op "),
    ],
)
def test_each_fault_is_found_and_told(
    verdict: Verdict, told: list[str], op: str, outcome: Outcome, reason: str
) -> None:
    report = report_of(verdict, op)

    assert report.outcome is outcome
    assert reason in report.reason
    assert any(line.startswith(f"  {op}: {outcome}") for line in told)
    assert (op in verdict.withheld) is (outcome is not Outcome.OK)


@SLOW
def test_faulty_ops_alone_fall_back_to_torch(verdict: Verdict) -> None:
    ops = build(faulty_ops.load(), "faulty", withheld=verdict.withheld)

    assert ops.name_of("rms_norm") == "faulty"
    others = set(faulty_ops.load()) - {"rms_norm", "pack_int8"}
    assert {ops.name_of(op) for op in others} == {"reference"}
    assert ops.residual_pick is REFERENCE["residual_pick"]


@SLOW
def test_slow_op_shows_both_times(verdict: Verdict) -> None:
    slow = report_of(verdict, "residual_pick")

    assert slow.op_s is not None
    assert slow.reference_s is not None
    assert slow.op_s > faulty_ops.SLEPT_S
    assert slow.reference_s < slow.op_s


@SLOW
def test_report_can_be_attached_to_a_bug_report(verdict: Verdict) -> None:
    text = report_text(verdict)

    for word in (verdict.key.torch, verdict.key.triton, verdict.key.version, verdict.key.arch):
        assert word in text
    assert verdict.chip in text
    assert "shapes: tiny" in text
    assert "torch serves 8 of 9 ops" in text
    assert "paged_attention: killed by SIGABRT: Memory access fault" in text
    assert len([line for line in text.splitlines() if "  torch  " in line]) == 8


@SLOW
def test_known_verdict_is_not_found_again(
    verdict: Verdict, cache: VerdictCache, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(examine, "Child", no_child)

    assert examine.examine(FAULTY, cache, tell=pytest.fail) == verdict
    assert known(FAULTY, cache) == verdict
    assert known(replace(FAULTY, geometry=None), cache) is None
    with pytest.raises(AssertionError, match="a process was started"):
        examine.examine(FAULTY, cache, manner=Manner(is_again=True))


def no_child() -> Child:
    raise AssertionError("a process was started")


class Scripted:
    """In place of child processes: what each op did, and whether the device lives on."""

    def __init__(self, reports: dict[str, Outcome], lost_after: str = "") -> None:
        self.asked: list[str] = []
        self.reports, self.lost_after = reports, lost_after

    def try_op(self, task: Task, limit_s: float) -> OpReport:
        self.asked.append(task.op)
        return OpReport(op=task.op, outcome=self.reports.get(task.op, Outcome.OK), reason="so")

    def answers(self, subject: Subject) -> bool:
        return self.asked[-1] != self.lost_after

    def close(self) -> bool:
        return True


@pytest.fixture
def scripted(monkeypatch: pytest.MonkeyPatch) -> Scripted:
    script = Scripted({"paged_attention": Outcome.HUNG}, lost_after="paged_attention")
    monkeypatch.setattr(examine, "Child", lambda: script)
    monkeypatch.setattr(examine, "_answers", script.answers)
    return script


def test_device_that_stops_answering_ends_the_search_and_it_goes_on_later(
    scripted: Scripted, tmp_path: Path
) -> None:
    cache = VerdictCache(tmp_path)
    broken_off = examine.examine(FAULTY, cache, tell=lambda line: None)

    assert scripted.asked == ["rms_norm", "rope_kv_write", "paged_attention"]
    assert not broken_off.is_whole
    assert "stopped answering" in report_text(broken_off)
    assert known(FAULTY, cache) is None

    whole = examine.examine(FAULTY, cache, tell=lambda line: None)

    # What hung it is not tried a second time, nor what was right.
    assert scripted.asked[3:] == [op for op in REFERENCE if op in faulty_ops.load()][3:]
    assert whole.is_whole
    assert whole.withheld == {"paged_attention": "hung: so"}
    assert known(FAULTY, cache) == whole


def test_every_finding_is_kept_at_once(
    scripted: Scripted, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whoever stops the doctor, or the machine itself, costs only what was not tried yet."""
    cache = VerdictCache(tmp_path)

    def stop(line: str) -> None:
        if "rope_kv_write" in line:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        examine.examine(FAULTY, cache, tell=stop)
    kept = cache.read(FAULTY.fitted().key())

    assert kept is not None
    assert [each.op for each in kept.reports] == ["rms_norm"]
    assert not kept.is_whole


def test_a_cpu_without_the_interpreter_has_nothing_to_examine(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(examine, "IS_INTERPRETED", False)

    with pytest.raises(NothingToExamine, match="no GPU here"):
        examine.examine(Subject(device="cpu"), VerdictCache(tmp_path))


def test_a_second_doctor_waits_for_the_first(scripted: Scripted, tmp_path: Path) -> None:
    cache, done = VerdictCache(tmp_path), threading.Event()

    def examine_too() -> None:
        examine.examine(FAULTY, VerdictCache(tmp_path), tell=lambda line: None)
        done.set()

    with cache.locked():
        second = threading.Thread(target=examine_too)
        second.start()
        assert not done.wait(0.3)
        assert scripted.asked == []
    second.join(10)
    assert done.is_set()


def test_a_child_that_does_not_start_says_why(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(process.sys, "executable", "/bin/false")
    child = Child()

    with pytest.raises(ChildFailed, match="does not start"):
        child.try_op(FAULTY.task("rms_norm", is_timed=False), 5.0)
    child.close()


@SLOW
def test_a_hung_child_and_what_it_started_are_gone(tmp_path: Path) -> None:
    child = Child()
    report = child.try_op(FAULTY.task("verify_rejection", is_timed=False), 0.5)

    assert report.outcome is Outcome.HUNG
    assert 0.5 <= report.took_s < 5.0
    with pytest.raises(ProcessLookupError):
        os.killpg(child._process.pid, 0)


@SLOW
def test_an_exit_without_a_word_is_a_crash() -> None:
    child = Child()
    leaving = replace(FAULTY, module=leaving_ops.__name__)
    report = child.try_op(leaving.task("rms_norm", is_timed=False), 20.0)
    child.close()

    assert (report.outcome, report.reason) == (Outcome.CRASHED, "exit code 3")


@SLOW
def test_a_child_nobody_needs_ends_by_itself() -> None:
    child = Child()
    assert child._process.stdin is not None
    child._process.stdin.close()
    deadline_s = time.monotonic() + 60.0
    while child._process.poll() is None and time.monotonic() < deadline_s:
        time.sleep(0.05)

    assert child._process.returncode == 0
    child.close()


@SLOW
def test_a_hung_child_ends_by_itself_when_nobody_is_left_to_end_it() -> None:
    child = Child()
    task = FAULTY.task("verify_rejection", is_timed=False)
    hung = process.msgspec.structs.replace(task, limit_s=0.5)
    assert child._process.stdin is not None
    child._process.stdin.write(process.msgspec.json.encode(hung) + b"\n")
    child._process.stdin.flush()

    assert child._process.wait(60) == -signal.SIGALRM
    child.close()


@SLOW
def test_device_is_asked_for_a_sum_by_a_process_of_its_own() -> None:
    child = Child()
    report = child.try_op(FAULTY.task("", is_timed=False), 60.0)
    child.close()

    assert report.outcome is Outcome.OK
    assert not examine._answers(Subject(device="cuda:63"))
