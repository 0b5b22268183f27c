"""The log of what was decided about drafting: reasons at the start, events later, bounded."""

from __future__ import annotations

from backend.config import EngineConfig, KernelChoice
from backend.engine.interface import SpeculationLoad
from backend.serving.acceptance_alarm import AcceptanceCheck
from backend.serving.decisions import (
    AGAIN_S,
    CONFIGURED,
    DECISIONS_MAX,
    WHY_CHARACTERS_MAX,
    DecisionLog,
)


class Clock:
    now_s = 1_000.0

    def __call__(self) -> float:
        return self.now_s


def load(**steps: int) -> SpeculationLoad:
    return SpeculationLoad("dspark+ngram", 5, num_steps_by_why=steps)


def test_start_tells_method_number_and_measured_plain_steps_with_their_reasons() -> None:
    log = DecisionLog(Clock())
    config = EngineConfig(
        proposer="dspark+ngram", num_drafts_max=8, method_why="auto", drafts_why="asked for"
    )
    log.begin(config, SpeculationLoad("dspark+ngram", 5, {2: {0: 0.004}, 1: {0: 0.003, 5: 0.01}}))

    assert [(each.what, each.num_drafts, each.why) for each in log.entries] == [
        ("method", 5, "auto"),
        ("drafts", 5, "the method drafts no more; 8 were asked for"),
        ("plain_steps", 5, "a plain step by batch, measured first: 1: 3.00 ms, 2: 4.00 ms"),
    ]
    assert {each.method for each in log.entries} == {"dspark+ngram"}
    assert {each.at_unix_s for each in log.entries} == {1_000.0}


def test_without_a_method_there_is_one_entry_and_withheld_kernels_are_one_more() -> None:
    log = DecisionLog(Clock())
    kernels = KernelChoice("triton", {"rms_norm": "wrong by 0.1"}, "11 of 12")
    log.begin(EngineConfig(kernels=kernels), SpeculationLoad())

    assert [(each.what, each.why) for each in log.entries] == [
        ("method", CONFIGURED),
        ("kernels", "left to torch: rms_norm: wrong by 0.1"),
    ]


def test_an_event_that_goes_on_is_told_again_after_a_minute_only() -> None:
    clock = Clock()
    log = DecisionLog(clock)
    for num in range(1, 200):
        log.watch(load(no_room=num, full=7), ())
        clock.now_s += 1.0
    quiet = len(log.entries)
    for _ in range(200):
        log.watch(load(no_room=199, full=9), ())  # it has stopped
        clock.now_s += 1.0

    assert [each.what for each in log.entries] == ["no_room"] * 5
    assert quiet == 4  # at 1, 61, 121 and 181 s; the rest of them once it may be told
    assert [each.num_drafts for each in log.entries] == [0] * 5
    assert log.entries[0].why.endswith("in 1 steps since the start")
    assert log.entries[-1].at_unix_s - log.entries[-2].at_unix_s >= AGAIN_S


def test_alarm_is_told_when_it_begins_and_when_it_ends() -> None:
    log = DecisionLog(Clock())
    low = AcceptanceCheck("chat", 500, recorded=1.5, found=0.2, is_low=True)
    fine = AcceptanceCheck("chat", 1_000, recorded=1.5, found=1.4)
    for check in (AcceptanceCheck("chat"), low, low, fine, fine):
        log.watch(load(), (check,))

    assert [each.what for each in log.entries] == ["alarm", "alarm_over"]
    assert "0.20 drafts accepted a round, 1.50 after training" in log.entries[0].why


def test_the_last_entries_are_kept_and_a_reason_has_an_end() -> None:
    clock = Clock()
    log = DecisionLog(clock)
    for num in range(1, 3 * DECISIONS_MAX):
        log.watch(load(failed=num), ())
        clock.now_s += AGAIN_S
    log.begin(EngineConfig(method_why="w" * 10_000), SpeculationLoad())

    assert len(log.entries) == DECISIONS_MAX
    assert len(log.entries[-1].why) == WHY_CHARACTERS_MAX
    assert log.entries[0].at_unix_s > 1_000.0
