"""What follows from a server's account: sums before ratios, colours, shares, and bounds."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from gateway.dashboard.backend_said import read_load
from gateway.dashboard.backend_view import (
    HEAT_LEVELS,
    ROUNDS_MIN,
    costs_of,
    level_of,
    reasons_of,
    verdict_of,
    worths,
)
from tests.support.backend_pages import FIGURES, LOAD, with_speculation


def test_kinds_of_work_are_added_before_ratios_are_taken() -> None:
    load = with_speculation(
        figures=[
            FIGURES,
            {**FIGURES, "workload": "tools/drawn", "num_drafts": 300, "num_accepted_tokens": 0,
             "num_at_risk": [300], "num_accepted": [0], "step_s": 6.0, "step_plain_s": 1.8},
            {"workload": "never drafted"},
        ]
    )  # fmt: skip
    said = read_load(msgspec.json.encode(load)).speculation
    assert said is not None

    together, chat, tools = worths(said.figures)

    assert [each.workload for each in (together, chat, tools)] == ["", "chat/greedy", "tools/drawn"]
    assert together.acceptance_length == pytest.approx(1 + 120 / 400)
    assert [(each.at_risk, each.accepted) for each in together.places] == [
        (400, 70), (70, 30), (30, 20),
    ]  # fmt: skip
    assert together.speed_up == pytest.approx(4.0 / 8.0)
    assert (chat.round_cost, chat.speed_up) == (pytest.approx(2.0), pytest.approx(1.1))
    assert [each.verdict for each in (together, chat, tools)] == ["loss", "gain", "loss"]
    assert worths([]) == []


@pytest.mark.parametrize(
    ("speed_up", "rounds", "verdict"),
    [(2.0, ROUNDS_MIN - 1, "unmeasured"), (None, 900, "unmeasured"), (0.96, ROUNDS_MIN, "loss"),
     (0.97, 900, "even"), (1.03, 900, "even"), (1.04, 900, "gain")],
)  # fmt: skip
def test_gain_and_loss_are_said_of_enough_rounds_only(
    speed_up: float | None, rounds: int, verdict: str
) -> None:
    assert verdict_of(speed_up, rounds) == verdict


def test_costs_keep_their_columns_and_frame_what_runs_now() -> None:
    load = read_load(msgspec.json.encode(with_speculation()))
    found = costs_of(load)
    assert found is not None
    one, four = found.rows

    assert found.drafts == [0, 1, 2, 3]
    assert [cell is None for cell in one.cells] == [False, True, True, False]
    assert one.cells[3] is not None
    assert (one.cells[3].cost, one.cells[3].num_steps, one.cells[3].is_now) == (2.0, 90, True)
    assert one.cells[0] is not None
    assert (one.cells[0].level, one.cells[0].is_now) == (0, False)
    assert four.cells[0] is not None
    assert four.cells[0].level == HEAT_LEVELS - 1
    idle = costs_of(read_load(msgspec.json.encode({**LOAD, "num_running": 0})))
    assert idle is not None
    assert not any(cell.is_now for row in idle.rows for cell in row.cells if cell is not None)
    assert costs_of(read_load(msgspec.json.encode({**with_speculation(step_s={}),
                                                   "decode_step_s": {}}))) is None  # fmt: skip


def test_levels_are_even_in_the_logarithm() -> None:
    assert [level_of(each, 0.001, 0.1) for each in (0.001, 0.01, 0.1, 0.099)] == [0, 4, 7, 7]
    assert level_of(0.5, 0.5, 0.5) == 0


def test_reasons_are_shares_of_all_steps_the_most_frequent_first() -> None:
    found = reasons_of({"ending": 1, "full": 3, "failed": 0})

    assert [(each.why, each.num_steps, each.share) for each in found] == [
        ("full", 3, 0.75), ("ending", 1, 0.25),
    ]  # fmt: skip
    assert reasons_of({}) == []


@pytest.mark.parametrize(
    "changes",
    [
        {"decisions": [{"at_unix_s": 1, "what": "x"}] * 65},
        {"figures": [FIGURES] * 33},
        {"figures": [{**FIGURES, "num_at_risk": [1] * 65}]},
        {"step_s": {str(batch): {} for batch in range(65)}},
        {"method": "m" * 201},
    ],
)
def test_tables_lists_and_words_have_an_end(changes: dict[str, Any]) -> None:
    with pytest.raises(msgspec.ValidationError):
        read_load(msgspec.json.encode(with_speculation(**changes)))
