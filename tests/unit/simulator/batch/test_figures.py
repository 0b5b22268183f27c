"""The figures asked of the batch planner, on few seeds and on all twenty."""

from __future__ import annotations

import json
from pathlib import Path

import msgspec
import pytest
from click.testing import CliRunner

from gateway.cli import cli
from gateway.simulator.batch.bench import (
    RATIO_MAX,
    SAVING_MIN,
    WorldResult,
    run_task,
    summarise,
    tasks_of,
)
from gateway.simulator.batch.report import as_markdown, verdicts
from gateway.simulator.batch.worlds import COIN_FLIP, WORLDS


def _result(world: str = "calm") -> WorldResult:
    return WorldResult(
        world=world,
        seeds=(1, 2),
        num_jobs=32,
        num_possible=32,
        missed=(),
        ratio=(1.02, 1.01, 1.03),
        ratio_max=1.03,
        saving=0.5,
        bound_saving=0.52,
        escalated_share=0.01,
        moved_share=0.02,
        num_plans=10,
    )


@pytest.mark.slow
def test_two_seeds_keep_every_deadline_and_are_printed(tmp_path: Path) -> None:
    run = CliRunner().invoke(
        cli, ["bench", "batch", "--seeds", "2", "--jobs", "1", "--out", str(tmp_path)]
    )

    assert run.exit_code == 0, run.output
    told = json.loads((tmp_path / "report.json").read_bytes())
    assert [each["world"] for each in told["worlds"]] == list(WORLDS)
    assert len(told["seeds"]) == 2 * len(WORLDS)
    for each in told["worlds"]:
        assert each["missed"] == [], each["world"]
        assert each["num_possible"] == each["num_jobs"] == 32
        assert 1.0 <= each["ratio"][0] <= (1.10 if each["world"] != COIN_FLIP else 1.6)
    assert "Every deadline kept that the reference keeps: yes" in run.output
    assert "| calm | 32 of 32 |" in (tmp_path / "report.md").read_text()


def test_an_unknown_world_is_wrong_usage() -> None:
    run = CliRunner().invoke(cli, ["bench", "batch", "--worlds", "clam", "--seeds", "1"])

    assert run.exit_code == 2
    assert "there is no world 'clam'" in run.output


def test_verdicts_name_the_world_that_falls_short() -> None:
    fine = _result()
    late = msgspec.structs.replace(fine, world="late", missed=((1, "j"),))
    dear = msgspec.structs.replace(fine, world="dear", ratio=(1.06, None, None))
    poor = msgspec.structs.replace(fine, world="poor", saving=0.44)
    hard = msgspec.structs.replace(fine, world="hard", saving=0.3, bound_saving=0.4)
    flip = msgspec.structs.replace(fine, world=COIN_FLIP, ratio=(1.5, 1.4, 1.6), saving=0.3)

    told = verdicts([fine, late, dear, poor, hard, flip])

    assert told[0].endswith("not in late (1)")
    assert told[1].endswith("not in dear (1.060x)")
    assert "(calm, late, dear, poor)" in told[2]
    assert told[2].endswith("not in poor (44.0%)")
    assert "| dear | 32 of 32 | 1.060x | 1.030x |" in as_markdown([dear], "x")


@pytest.mark.slow
def test_twenty_seeds_hold_the_three_figures() -> None:
    results = summarise([run_task(task) for task in tasks_of(WORLDS, 20)])

    for result in results:
        assert result.num_possible == result.num_jobs == 320
        assert result.keeps_deadlines, (result.world, result.missed)
        assert result.is_near_bound in (True, None), (result.world, result.ratio, RATIO_MAX)
        assert result.saves_enough in (True, None), (result.world, result.saving, SAVING_MIN)
    judged = {result.world for result in results if result.saves_enough}
    assert judged >= {"calm", "slow-native", "expiring-native", "busy-backend", "native-outage"}
    assert [result.world for result in results if result.is_near_bound is None] == [COIN_FLIP]
