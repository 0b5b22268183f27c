"""How soon and how late whole answers are, learned from those that came."""

from __future__ import annotations

import pytest

from gateway.fleet.estimator import EndpointEstimator
from gateway.fleet.whole_times import whole_quick_s, whole_slow_line
from tests.support.fleet_world import whole


def learned(num: int) -> EndpointEstimator:
    """Of answers of 20 and 200 tokens, at 1 s and a hundredth of one a token, a tenth off."""
    estimator, now_s = EndpointEstimator(0.0), 0.0
    for step in range(num):
        now_s += 1.0
        tokens = 20 if step % 2 else 200
        seconds = (1.0 + 0.01 * tokens) * (0.9, 1.0, 1.0, 1.1)[step // 2 % 4]
        estimator.observe(whole(now_s, seconds=seconds, tokens=tokens), now_s)
    return estimator


@pytest.mark.parametrize("tokens", [20, 200])
def test_most_answers_lie_between_the_quick_and_the_slow(tokens: int) -> None:
    estimator = learned(400)
    middle_s = 1.0 + 0.01 * tokens

    quick_s = whole_quick_s(estimator, tokens)
    line = whole_slow_line(estimator)

    assert quick_s is not None
    assert line is not None
    assert 0.8 * middle_s <= quick_s <= 0.95 * middle_s
    assert 1.05 * middle_s <= line[0] + line[1] * tokens <= 1.2 * middle_s


def test_below_twenty_answers_nothing_is_known() -> None:
    assert whole_quick_s(learned(19), 20) is None
    assert whole_slow_line(learned(19)) is None
