"""What `policy simulate` predicts, against what the same world then really does."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from click.testing import CliRunner

from gateway.cli import cli
from gateway.simulator.routing.bench import Cell, Task
from gateway.simulator.routing.foretold import (
    PAIRS,
    Error,
    Foretold,
    errors,
    errors_table,
    foretell,
    pairs_of,
)


def _task(world: str = "calm", seed: int = 1, minutes: float = 4.0) -> Task:
    return Task(cell=Cell(world=world), seed=seed, duration_s=minutes * 60.0, routers=())


def test_the_policy_of_the_log_is_foretold_exactly() -> None:
    """Nothing is predicted then: every request goes where it went, so its outcome is its own."""
    for each in foretell(_task("outage"), (("fastest", "fastest"), ("cheapest", "cheapest"))):
        assert each.predicted_share == 0.0
        assert each.share_error == each.share_change == 0.0
        assert each.predicted == each.real == each.before
        assert each.num_compared > 1_000


@pytest.mark.slow
def test_the_error_of_a_prediction_is_within_bounds_where_load_is_no_matter() -> None:
    found = [each for seed in (1, 2) for each in foretell(_task(seed=seed), PAIRS)]
    by_pair = {(each.logged, each.tried): each for each in errors(found)}
    error = by_pair["fastest", "balanced"]
    assert error.predicted_share > 0.3
    assert 0.75 < error.over_real["usd"][0] < 1.15
    assert 0.85 < error.over_real["p50_s"][0] < 1.15
    assert 0.8 < error.over_real["p95_s"][0] < 1.35
    # It is worth more than to expect that nothing changes.
    assert abs(error.over_real["usd"][0] - 1.0) < abs(1.0 / error.changed["usd"][0] - 1.0)
    assert error.share_error < error.share_change
    # The price list is all that `cheapest` goes by.
    assert by_pair["fastest", "cheapest"].over_real["usd"][0] == pytest.approx(1.0, abs=0.05)


@pytest.mark.slow
def test_crowding_by_its_own_choices_is_not_foretold() -> None:
    """The limit that the documents name: where `cheapest` fills its endpoint up, times double."""
    task = Task(cell=Cell(world="calm", load=3.0), seed=1, duration_s=180.0, routers=())
    (found,) = foretell(task, (("fastest", "cheapest"),))
    assert found.predicted["p95_s"] < 0.8 * found.real["p95_s"]


def test_figures_are_of_the_same_requests_and_errors_of_pairs() -> None:
    rows = [
        _foretold(seed, predicted_usd, real_usd)
        for seed, (predicted_usd, real_usd) in enumerate(((1.0, 2.0), (1.5, 2.0)), 1)
    ]
    (error,) = errors(rows)
    assert isinstance(error, Error)
    assert error.over_real["usd"][0] == pytest.approx(0.625)
    assert error.changed["usd"][0] == pytest.approx(0.5)
    head, _, row = errors_table([error])
    assert head.count("|") == row.count("|")
    assert "`fastest` → `balanced` | 50% | -50% |" in row


def test_pairs_are_read_and_others_refused() -> None:
    assert pairs_of("fastest:balanced, cheapest:fastest") == (
        ("fastest", "balanced"),
        ("cheapest", "fastest"),
    )
    for text in ("fastest", "fastest:", "round_robin:fastest"):
        with pytest.raises(ValueError, match="is no pair LOGGED:TRIED of fastest"):
            pairs_of(text)


def test_the_command_writes_its_table_and_json(tmp_path: Path) -> None:
    done = CliRunner().invoke(
        cli,
        [
            *("bench", "prediction", "--worlds", "calm", "--loads", "1", "--seeds", "1"),
            *("--minutes", "1", "--pairs", "fastest:balanced", "--jobs", "1"),
            *("--out", str(tmp_path)),
        ],
    )
    assert done.exit_code == 0, done.output
    assert (tmp_path / "prediction.md").read_text() in done.output
    (found,) = json.loads((tmp_path / "prediction.json").read_bytes())
    assert (found["logged"], found["tried"], found["num_seeds"]) == ("fastest", "balanced", 1)
    assert CliRunner().invoke(cli, ["bench", "prediction", "--pairs", "x:y"]).exit_code == 2


def _foretold(seed: int, predicted_usd: float, real_usd: float) -> Foretold:
    def figures(usd: float) -> dict[str, float]:
        return {"usd": usd, "mean_s": 1.0, "p50_s": 1.0, "p95_s": 1.0}

    return Foretold(
        cell=Cell(world="calm"),
        seed=seed,
        logged="fastest",
        tried="balanced",
        num_compared=10,
        predicted_share=0.5,
        before=figures(4.0),
        predicted=figures(predicted_usd),
        real=figures(real_usd),
        share_error=0.1,
        share_change=0.2,
    )
