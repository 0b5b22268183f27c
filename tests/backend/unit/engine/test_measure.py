"""Step costs and rates against a clock that the test turns."""

from __future__ import annotations

import pytest

from backend.engine.measure import Rate, StepCosts, weighted_median


class Clock:
    now_s = 100.0

    def __call__(self) -> float:
        return self.now_s


@pytest.fixture
def clock() -> Clock:
    return Clock()


def test_a_rate_covers_the_last_ten_seconds(clock: Clock) -> None:
    rate = Rate(clock)
    rate.add(30)
    at_once = rate.per_s()
    clock.now_s += 5.0
    rate.add(20)
    early = rate.per_s()
    clock.now_s += 5.0
    later = rate.per_s()
    clock.now_s += 5.0

    assert (at_once, early, later, rate.per_s()) == (30.0, 10.0, 2.0, 0.0)


def test_decode_steps_are_medians_by_batch_size(clock: Clock) -> None:
    costs = StepCosts(clock)
    for seconds in (0.010, 0.500, 0.011, 0.012, 0.009):
        costs.observe(seconds, num_sequences=4, tokens_each=1.0, num_prompt_tokens=0)
    costs.observe(0.030, num_sequences=8, tokens_each=3.0, num_prompt_tokens=0)

    assert costs.decode_step_s == {4: 0.011, 8: 0.010}
    assert [costs.decode_s(each) for each in (0, 1, 4, 5, 99)] == [0.0, 0.011, 0.011, 0.01, 0.01]


def test_old_samples_are_forgotten(clock: Clock) -> None:
    costs = StepCosts(clock)
    for seconds in [0.01] * 40 + [0.02] * 20:
        costs.observe(seconds, num_sequences=1, tokens_each=1.0, num_prompt_tokens=0)

    assert costs.decode_step_s == {1: 0.02}


def test_a_reader_s_table_does_not_change_in_its_hands(clock: Clock) -> None:
    costs = StepCosts(clock)
    costs.observe(0.01, num_sequences=1, tokens_each=1.0, num_prompt_tokens=0)
    table = costs.decode_step_s
    costs.observe(0.02, num_sequences=2, tokens_each=1.0, num_prompt_tokens=0)

    assert table == {1: 0.01}


def test_a_prompt_token_costs_what_a_mixed_step_takes_beyond_its_decodes(clock: Clock) -> None:
    costs = StepCosts(clock)
    costs.observe(0.010, num_sequences=4, tokens_each=1.0, num_prompt_tokens=0)
    costs.observe(0.110, num_sequences=4, tokens_each=1.0, num_prompt_tokens=100)
    assert costs.prefill_token_s == pytest.approx(0.001)

    costs.observe(0.001, num_sequences=4, tokens_each=1.0, num_prompt_tokens=8)

    assert costs.prefill_token_s == pytest.approx(0.001)
    assert costs.decode_step_s == {4: 0.010}


def test_long_prompts_weigh_more_than_short_ones(clock: Clock) -> None:
    assert weighted_median([(5.0, 1), (4.0, 1), (1.0, 10)]) == 1.0
    assert weighted_median([]) == 0.0
