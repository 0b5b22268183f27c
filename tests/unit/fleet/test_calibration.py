"""What predictions were worth: coverage and bias against endpoints of known truth."""

from __future__ import annotations

import json
import random

import pytest

from gateway.errors import FailureClass
from gateway.fleet.calibration import COMPLETION, SPEED, TTFT, Calibration
from gateway.fleet.fleet import Fleet
from gateway.wire.pieces import Surface
from gateway.wire.usage import Usage
from tests.support.fleet_world import Clock, facts, failed, make_fleet, streamed, whole

ID = "fast/m"
STREAM = "chat/stream"


class CalmWorld:
    """One endpoint, log-normal in everything, asked once a second."""

    def __init__(self, *, ttft_sigma: float = 0.35, rate_sigma: float = 0.25) -> None:
        self.rng = random.Random(7)
        self.clock = Clock()
        self.fleet = make_fleet(clock=self.clock)
        self.ttft_sigma, self.rate_sigma = ttft_sigma, rate_sigma
        self.level = 1.0

    def streams(self, num: int, **changes: object) -> None:
        rng = self.rng
        for _ in range(num):
            self.clock.advance(1.0)
            self.fleet.view(facts(), [ID])
            self.fleet.started(ID, is_stream=True)
            outcome = streamed(
                self.clock.now_s,
                ttft_s=0.4 * self.level * rng.lognormvariate(0.0, self.ttft_sigma),
                rate=100.0 / self.level * rng.lognormvariate(0.0, self.rate_sigma),
                tokens=max(1, int(rng.lognormvariate(5.0, 0.9))),
                **changes,  # type: ignore[arg-type]
            )
            self.fleet.observe(outcome)

    def shown(self, figure: str, class_name: str = STREAM) -> dict[str, float]:
        return self.fleet.calibration(ID)[class_name][figure]


@pytest.mark.parametrize("figure", [TTFT, SPEED, COMPLETION])
def test_intervals_cover_what_they_promise_in_a_lognormal_world(figure: str) -> None:
    world = CalmWorld()
    world.streams(1_500)
    shown = world.shown(figure)

    assert 0.85 <= shown["coverage_90"] <= 0.95
    assert shown["coverage_50"] == pytest.approx(0.5, abs=0.07)
    # Of 1,500 in 25 minutes a sixth or so is forgotten.
    assert 1_000.0 < shown["n"] < 1_500.0


def test_predictions_of_speed_are_not_biased() -> None:
    world = CalmWorld()
    world.streams(1_000)

    assert abs(world.shown(TTFT)["bias_ln"]) < 0.03
    assert abs(world.shown(SPEED)["bias_ln"]) < 0.06
    # The logarithm of a sum with one wide part lies above that of the medians' sum.
    assert 0.0 < world.shown(COMPLETION)["bias_ln"] < 0.3


def test_too_narrow_a_belief_is_shown_and_the_published_interval_is_widened() -> None:
    """Clipping and pooling keep sigma below what this endpoint does: one in five is far off."""
    world = CalmWorld()
    told = _told(world.fleet)
    calibration = Calibration()
    for _ in range(800):
        _judge(world, calibration, told, sigma=3.0 * 0.45)
    shown = calibration.summary(world.clock.now_s)[STREAM][TTFT]

    assert shown["belief_coverage_90"] < 0.6
    assert shown["coverage_90"] > 0.84
    assert shown["width"] > 2.0


def test_too_wide_a_belief_is_shown_and_narrowed() -> None:
    world = CalmWorld()
    told = _told(world.fleet)
    calibration = Calibration()
    for _ in range(800):
        _judge(world, calibration, told, sigma=0.1)
    shown = calibration.summary(world.clock.now_s)[STREAM][TTFT]

    assert shown["belief_coverage_90"] > 0.99
    assert shown["coverage_90"] < 0.95
    assert shown["width"] < 0.4


def test_a_slowdown_shows_as_bias_before_it_is_learned() -> None:
    world = CalmWorld()
    world.streams(300)
    before = world.shown(TTFT)["bias_ln"]
    world.level = 3.0
    world.streams(4)

    assert world.shown(TTFT)["bias_ln"] > before + 0.005


def test_the_load_at_dispatch_is_part_of_the_prediction() -> None:
    """Alone 1 s, with two places and four in flight 2 s: neither is a surprise."""
    world = CalmWorld(ttft_sigma=0.2, rate_sigma=0.1)
    for round_ in range(400):
        num = 1 if round_ % 2 else 8
        world.level = max(1.0, num / 2.0)
        world.streams(1, in_flight=num)
    shown = world.shown(SPEED)

    assert abs(shown["bias_ln"]) < 0.12
    assert 0.85 <= shown["coverage_90"] <= 0.95


def test_failures_replays_and_lost_clients_are_not_judged() -> None:
    world = CalmWorld()
    world.fleet.view(facts(), [ID])
    for outcome in (
        failed(world.clock.now_s, FailureClass.SERVER_ERROR.value),
        streamed(world.clock.now_s, client_gone=True),
        streamed(world.clock.now_s, is_cached_answer=True),
    ):
        world.fleet.observe(outcome)
    assert world.fleet.calibration(ID) == {}


def test_whole_answers_are_a_class_of_their_own() -> None:
    world = CalmWorld()
    for _ in range(600):
        world.clock.advance(1.0)
        world.fleet.view(facts(stream=False), [ID])
        tokens = int(world.rng.lognormvariate(5.0, 0.5)) + 1
        seconds = (0.5 + tokens / 100.0) * world.rng.lognormvariate(0.0, 0.2)
        world.fleet.observe(whole(world.clock.now_s, seconds=seconds, tokens=tokens))
    shown = world.fleet.calibration(ID)

    assert set(shown) == {"chat/whole"}
    assert set(shown["chat/whole"]) == {SPEED, COMPLETION}  # nothing has a first token
    for figure in (SPEED, COMPLETION):
        assert 0.85 <= shown["chat/whole"][figure]["coverage_90"] <= 0.95
    assert shown["chat/whole"][SPEED]["width"] < 0.8  # the belief's spread is that of TTFT: 0.45


def test_embeddings_have_no_length_to_be_unsure_of() -> None:
    world = CalmWorld()
    for _ in range(50):
        world.clock.advance(1.0)
        world.fleet.view(facts(), [ID])
        outcome = whole(
            world.clock.now_s, seconds=0.1, tokens=0, surface=Surface.EMBEDDINGS,
            usage=Usage(input=100), visible_chars=0,
        )  # fmt: skip
        world.fleet.observe(outcome)
    shown = world.fleet.calibration(ID)["embeddings/whole"]
    assert shown[SPEED]["coverage_90"] == shown[COMPLETION]["coverage_90"]


def test_memory_is_bounded_whatever_comes() -> None:
    world = CalmWorld()
    for surface in Surface:
        for model in ("a", "b", "c"):
            world.streams(2, surface=surface, model=model, key_id=f"key-{model}")
    state = world.fleet.by_key["fast|https://fast.example/v1|m"].calibration.export(0.0)

    assert len(state) <= 2 * len(Surface)
    assert all(len(tally) == 12 for figures in state.values() for tally in figures.values())


def test_counts_halve_in_an_hour_and_coverage_stays() -> None:
    world = CalmWorld()
    world.streams(200)
    before = world.shown(SPEED)
    world.clock.advance(3_600.0)
    after = world.shown(SPEED)
    world.clock.advance(40 * 3_600.0)
    world.streams(1)

    assert after["n"] == pytest.approx(before["n"] / 2.0, rel=0.01)
    assert after["coverage_90"] == before["coverage_90"]
    assert world.shown(SPEED)["n"] == pytest.approx(1.0, abs=0.01)


def test_a_restart_keeps_it() -> None:
    world = CalmWorld()
    world.streams(200)
    exported = json.loads(json.dumps(world.fleet.export_state()))
    later = Clock(world.clock.now_s)
    fleet = make_fleet(clock=later)

    assert fleet.import_state(exported)
    assert fleet.calibration(ID)[STREAM][SPEED] == pytest.approx(world.shown(SPEED), abs=1e-3)
    del exported["calibrations"]
    assert make_fleet(clock=later).import_state(exported)  # one written before there were any


def test_the_interval_of_a_request_at_hand_follows_its_length_and_what_was_learned() -> None:
    world = CalmWorld()
    untried = world.fleet.calibrated(facts())[ID]
    world.streams(300)
    known = world.fleet.calibrated(facts())[ID]

    assert (untried.n, untried.coverage_90) == (0.0, None)
    assert known.n > 250.0
    assert known.coverage_90 == pytest.approx(world.shown(COMPLETION)["coverage_90"])
    assert known.length_variance == pytest.approx(0.81, rel=0.35)
    assert world.fleet.calibrated(facts(stream=False))[ID].n == 0.0


def _told(fleet: Fleet) -> object:
    return fleet.snapshot().stats[ID]


def _judge(world: CalmWorld, calibration: Calibration, told: object, *, sigma: float) -> None:
    """One stream of an endpoint about which nothing more is ever told."""
    from gateway.fleet.lengths import Length
    from gateway.fleet.sample import read_sample

    outcome = streamed(
        world.clock.now_s,
        ttft_s=0.5 * world.rng.lognormvariate(0.0, sigma) * (1.0 + 1_000 / 3_500.0),
    )
    sample = read_sample(outcome, 4.0)
    length = Length(200.0, 10.0, 0.8)
    calibration.judge(told, sample, outcome, length, 1.0, world.clock.now_s)  # type: ignore[arg-type]  # told is EndpointStats
