"""Figures of speculation: counted as defined, and timed against plain steps of the same batch."""

from __future__ import annotations

import pytest

from backend.engine.interface import RoundFigures, SpeculationWish
from backend.engine.rounds import OTHER_WORKLOADS, WORKLOADS_MAX, RoundMeter, SequenceStep
from tests.backend.unit.engine.test_speculation import drafting, prompts, texts
from tests.support.drafting_world import GuessingProposer, knowing
from tests.support.engine_world import MakeWorld, Tiny


def rounds(*pairs: tuple[int, int], workload: str = "chat") -> list[SequenceStep]:
    """(drafted, accepted) each."""
    return [SequenceStep(workload, drafted, accepted + 1) for drafted, accepted in pairs]


def only(meter: RoundMeter) -> RoundFigures:
    (figures,) = meter.figures()
    return figures


def test_drafts_of_different_lengths_are_counted_by_place() -> None:
    meter = RoundMeter("m")
    meter.observe(rounds((3, 3), (3, 0), (3, 1), (1, 1), (2, 2), (0, 0)))

    figures = only(meter)

    assert (figures.method, figures.workload) == ("m", "chat")
    assert (figures.num_drafts, figures.num_draft_tokens, figures.num_accepted_tokens) == (5, 12, 7)
    assert figures.num_at_risk == (5, 3, 1)
    assert figures.num_accepted == (4, 2, 1)
    assert figures.acceptance_by_position == (4 / 5, 2 / 3, 1.0)
    assert figures.acceptance_rate == 7 / 12
    assert figures.mean_acceptance_length == 1 + 7 / 5


def test_where_every_draft_has_n_tokens_the_identities_hold() -> None:
    """Σ of the unconditional rates = mean length - 1 = N · acceptance rate."""
    meter = RoundMeter("m")
    meter.observe(rounds((4, 4), (4, 2), (4, 0), (4, 1), (4, 2)))
    figures = only(meter)

    unconditional = [each / figures.num_drafts for each in figures.num_accepted]
    assert figures.mean_acceptance_length is not None
    assert figures.acceptance_rate is not None
    assert sum(unconditional) == pytest.approx(figures.mean_acceptance_length - 1)
    assert sum(unconditional) == pytest.approx(4 * figures.acceptance_rate)


def test_a_round_costs_what_it_takes_in_plain_steps_of_its_own_batch() -> None:
    meter = RoundMeter("m")
    meter.time(9.0, 4, 3, rounds((3, 0)))  # no plain step of four yet
    for seconds in (1.0, 1.0, 50.0):
        meter.time(seconds, 4, 0, [])
    meter.time(2.0, 1, 0, [])
    meter.time(3.0, 1, 3, rounds((3, 2)))
    meter.time(1.5, 4, 3, rounds((3, 1), (0, 0)))

    figures = only(meter)

    assert meter.step_s == {4: {0: 1.0, 3: 5.25}, 1: {0: 2.0, 3: 3.0}}
    assert (figures.num_timed_rounds, figures.num_timed_steps) == (2, 3)
    assert figures.round_cost == (3.0 + 1.5) / (2.0 + 1.0)
    # Three tokens of two seconds and two and one of one second, in 3 + 1.5 + 1.5 seconds.
    assert figures.speed_up == (3 * 2.0 + 2 * 1.0 + 1 * 1.0) / (3.0 + 1.5 + 1.5)


def test_nothing_seen_has_no_figures_but_no_error() -> None:
    meter = RoundMeter("m")
    assert meter.figures() == ()
    meter.observe(rounds((1, 0)))

    figures = only(meter)

    assert figures.acceptance_rate == 0.0
    assert figures.mean_acceptance_length == 1.0
    assert figures.round_cost is None
    assert figures.speed_up is None


def test_kinds_of_work_are_told_apart_and_their_number_is_bounded() -> None:
    meter = RoundMeter("m")
    for number in range(3 * WORKLOADS_MAX):
        meter.observe(rounds((1, number % 2), workload=f"kind {number:03}"))

    names = [each.workload for each in meter.figures()]

    assert names == [*(f"kind {number:03}" for number in range(WORKLOADS_MAX)), OTHER_WORKLOADS]
    assert sum(each.num_drafts for each in meter.figures()) == 3 * WORKLOADS_MAX
    assert sum(each.num_accepted_tokens for each in meter.figures()) == 3 * WORKLOADS_MAX // 2


def test_the_engine_s_figures_are_those_of_its_events(tiny: Tiny, make_world: MakeWorld) -> None:
    asked = prompts(4)
    written = texts(tiny, asked, 21)
    world = drafting(make_world, GuessingProposer(knowing(written, hit_rate=0.7)))
    names = [world.add(prompt, max_tokens=20) for prompt in asked]
    plain = world.add(asked[0], max_tokens=20, speculation=SpeculationWish(is_off=True))
    world.run()

    load = world.engine.load().speculation
    (figures,) = load.figures
    events = [event for name in names for event in world.answers[name].events[1:]]
    num_tokens = sum(len(event.token_ids) for event in events)
    # The last token of an answer needs no draft.
    num_rounds = sum(event.num_generated - len(event.token_ids) < 19 for event in events)
    assert (load.method, load.num_drafts_max, figures.method) == ("guessing", 3, "guessing")
    assert figures.num_drafts == num_rounds
    assert figures.num_accepted_tokens == num_tokens - len(events)
    assert figures.num_at_risk[0] == num_rounds
    assert len(world.answers[plain].events) == 20


def test_the_engine_times_rounds_against_plain_steps(tiny: Tiny, make_world: MakeWorld) -> None:
    """Plain steps take the world's 10 ms; with drafts the clock is set to run slower."""
    (prompt,) = prompts(1)
    (text,) = texts(tiny, [prompt], 24)
    proposer = GuessingProposer(knowing([text]))
    world = drafting(make_world, proposer)
    world.ask(prompt, max_tokens=9, speculation=SpeculationWish(is_off=True))
    world.step_s = 0.025
    world.ask(prompt, max_tokens=21)

    (figures,) = world.engine.load().speculation.figures

    assert world.engine.load().speculation.step_s == {
        1: {0: pytest.approx(0.01), 3: pytest.approx(0.025)}
    }
    assert figures.round_cost == pytest.approx(2.5)
    assert figures.mean_acceptance_length == 4.0
    assert figures.speed_up == pytest.approx(4 / 2.5)
