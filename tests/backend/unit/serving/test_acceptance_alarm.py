"""The alarm about a head that does not fit: like is held against like, and chance is silent."""

from __future__ import annotations

import random
from collections.abc import Iterable
from typing import Any

import pytest
from prometheus_client.parser import text_string_to_metric_families
from structlog.testing import capture_logs

from backend.engine.interface import EngineLoad, SpeculationLoad
from backend.engine.rounds import RoundMeter, SequenceStep
from backend.serving.acceptance_alarm import WINDOW, AcceptanceAlarm
from backend.serving.metrics import Metrics
from backend.speculate.heads.identity import HeadIdentity

STEPS_BETWEEN = 20  # of two looks of the alarm; the engine's thread looks after every step
RATES = (0.7, 0.6, 0.5, 0.5)
ALL_PLACES = (0.7 + 0.42 + 0.21 + 0.105) / 4  # accepted of drafted, as training records it


def identity(**changes: Any) -> HeadIdentity:
    given = {"acceptance": {"": ALL_PLACES}, "notes": {"acceptance_by_place": [*RATES]}}
    return HeadIdentity("eagle3", "tiny", ("w",), ("t",), "off", **{**given, **changes})


class Served:
    """Rounds of an engine with one draft method, as the alarm is shown them."""

    def __init__(self, head: HeadIdentity | None, seed: int = 0) -> None:
        self.alarm = AcceptanceAlarm(head)
        self.load = SpeculationLoad("eagle3")
        self._meter = RoundMeter("eagle3")
        self._rng = random.Random(seed)
        self._num_rounds = 0

    def draft(
        self,
        rates: Iterable[float],
        num_rounds: int = WINDOW,
        workload: str = "chat/greedy",
        cut: Iterable[int] = (),
    ) -> None:
        """`cut`: of every so many rounds one has fewer drafts, as at an answer's end."""
        rates, cut = tuple(rates), tuple(cut)
        for number in range(num_rounds):
            num_drafted = min([len(rates), *(n + 1 for n in cut if number % (n + 2) == 0)])
            num_accepted = 0
            while num_accepted < num_drafted and self._rng.random() < rates[num_accepted]:
                num_accepted += 1
            self._meter.observe([SequenceStep(workload, num_drafted, num_accepted + 1)])
            self._num_rounds += 1
            if self._num_rounds % STEPS_BETWEEN == 0 or number == num_rounds - 1:
                self.load = SpeculationLoad("eagle3", len(rates), {}, self._meter.figures())
                self.alarm.observe(self.load)

    @property
    def is_low(self) -> dict[str, bool]:
        return {each.workload: each.is_low for each in self.alarm.checks}


def test_what_was_recorded_is_no_alarm_however_few_are_drafted() -> None:
    """Of one draft a round more stands than of four: neither is held against the other."""
    for num_drafts in (1, 2, 4):
        served = Served(identity(), seed=num_drafts)
        with capture_logs() as said:
            served.draft(RATES[:num_drafts], 12 * WINDOW, cut=(0, 1))
        (check,) = served.alarm.checks
        assert not said
        assert check.num_rounds == 12 * WINDOW
        assert check.recorded == pytest.approx(sum((0.7, 0.42, 0.21, 0.105)[:num_drafts]))
        assert check.found == pytest.approx(check.recorded, rel=0.2)


def test_a_head_recorded_by_its_first_place_alone_may_be_served_with_more() -> None:
    served = Served(identity(acceptance={"": 0.7}, notes={"acceptance_by_place": [0.7]}))
    served.draft((0.7, 0.1, 0.1), 4 * WINDOW)

    assert served.is_low == {"": False}


@pytest.mark.parametrize(
    "rates", [(0.2, 0.6, 0.5, 0.5), (0.7, 0.05, 0.0, 0.0), (0.0,) * 4, (0.3,), (0.35, 0.35)]
)
def test_far_fewer_are_told_in_one_line_with_its_causes(rates: tuple[float, ...]) -> None:
    """At the first place, behind it, at all of them; with fewer drafts than it was trained for."""
    served = Served(identity())
    with capture_logs() as said:
        served.draft(rates, WINDOW - 1)
        assert not said
        assert served.alarm.checks[0].found is None
        served.draft(rates, 5 * WINDOW + 1)

    assert served.is_low == {"": True}
    (line,) = said
    assert line["log_level"] == "warning"
    for cause in ("template", "thinking", "weights", "quantization", "temperature", "training"):
        assert cause in line["likely_causes"]
    assert (line["trained_for"], line["trained_thinking"]) == ("tiny", "off")
    assert line["accepted_a_round"] < 0.6 * line["recorded"]
    assert (line["rounds"], line["workload"]) == (WINDOW, "all")


def test_it_ends_when_acceptance_is_back_and_begins_again_silently() -> None:
    """Old rounds, good or bad, are not weighed against new ones."""
    served = Served(identity())
    with capture_logs() as said:
        found = []
        for rates in (RATES, RATES, RATES, (0.1,) * 4, RATES, (0.1,) * 4):
            served.draft(rates)
            found.append(served.is_low[""])

    assert found == [False, False, False, True, False, True]
    assert len(said) == 1


def test_a_low_rate_by_chance_is_no_alarm() -> None:
    """2 % recorded: below 0.6 of that are many windows; the bound keeps them silent."""
    served = Served(identity(acceptance={"": 0.02}, notes={}))
    num_below = 0
    for _ in range(40):
        served.draft((0.02,))
        (check,) = served.alarm.checks
        assert not check.is_low
        assert check.found is not None
        num_below += check.found < 0.6 * 0.02

    assert num_below > 0


def test_kinds_of_work_are_held_against_their_own_rates() -> None:
    head = identity(acceptance={"": ALL_PLACES, "chat": 0.2, "tools/greedy": 0.6, "math": 0.9})
    served = Served(head)
    with capture_logs() as said:
        served.draft(RATES, 2 * WINDOW, "chat/greedy")
        served.draft(RATES, 2 * WINDOW, "chat/drawn")
        served.draft((0.3,) * 4, WINDOW, "tools/greedy")
        served.draft((0.1,) * 4, WINDOW, "tools/drawn")

    assert served.is_low == {"": True, "chat": False, "math": False, "tools/greedy": True}
    counts = {each.workload: each.num_rounds for each in served.alarm.checks}
    assert counts == {"": 6 * WINDOW, "chat": 4 * WINDOW, "math": 0, "tools/greedy": WINDOW}
    assert len(said) == 1


@pytest.mark.parametrize(
    "notes",
    [
        {},
        {"acceptance_by_place": "0.7"},
        {"acceptance_by_place": []},
        {"acceptance_by_place": [0.7, None]},
        {"acceptance_by_place": [70, 60]},
        {"acceptance_by_place": [0.0, 0.5]},
    ],
)
def test_without_rates_by_place_the_first_is_held_against_that_of_all(notes: Any) -> None:
    """Which it is never below."""
    well, badly = Served(identity(notes=notes)), Served(identity(notes=notes))
    well.draft(RATES)
    badly.draft((0.1, 0.9, 0.9, 0.9))

    assert (well.is_low, badly.is_low) == ({"": False}, {"": True})
    assert well.alarm.checks[0].recorded == ALL_PLACES


@pytest.mark.parametrize("head", [None, identity(acceptance={}), identity(acceptance={"": 0.0})])
def test_where_nothing_was_recorded_nothing_is_watched(head: HeadIdentity | None) -> None:
    served = Served(head)
    served.draft((0.0,) * 4, 2 * WINDOW)

    assert served.alarm.checks == ()


def test_the_gauge_is_there_from_the_start_and_shows_the_last_window() -> None:
    served, metrics = Served(identity(acceptance={"": ALL_PLACES, "chat": 0.01})), Metrics("tiny")
    found = []
    for rates in ((), (0.1,) * 4, RATES):
        served.draft(rates, WINDOW if rates else 0)
        load = EngineLoad(0, 0, 0, 8, 0, 0.0, 0.0, 0, speculation=served.load)
        page = metrics.exposition(load, served.alarm.checks).decode()
        found.append(
            {
                (sample.labels["method"], sample.labels["model"], sample.labels["workload"]): (
                    sample.value
                )
                for family in text_string_to_metric_families(page)
                for sample in family.samples
                if sample.name == "backend_speculation_acceptance_low"
            }
        )

    everything, chat = ("eagle3", "tiny", ""), ("eagle3", "tiny", "chat")
    assert found == [{everything: low, chat: 0.0} for low in (0.0, 1.0, 0.0)]
