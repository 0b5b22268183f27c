"""Two sides of the same records: differences request by request, and no claim from too few."""

from __future__ import annotations

import random

import numpy as np
import pytest

from gateway.policy.backtest import Judged, Outcome, Predicted, Record
from gateway.policy.backtest_summary import Comparison, Interval, Sent, claim_of, compare
from tests.support.deciding import facts_of, policy_of, view_of

VIEW = view_of(policy_of("a", "b"))


def sent(time_s: float, expected_s: float = 1.0, *, num_attempts: int = 1) -> Sent:
    outcome = Outcome(time_s=time_s, cost_nanos=10, output_tokens=5.0, num_attempts=num_attempts)
    predicted = Predicted(
        time_s=expected_s,
        time_p5_s=0.5 * expected_s,
        time_p95_s=2.0 * expected_s,
        cost_nanos=10,
        success_p=1.0,
    )
    record = Record(facts=facts_of(), view=VIEW, seed=1, chosen="a/x", outcome=outcome)
    return Sent(record, predicted)


def real(time_s: float, cost_nanos: int = 10**9) -> Judged:
    return Judged(endpoint_id="a/x", time_s=time_s, cost_nanos=cost_nanos)


def predicted(time_s: float, cost_nanos: int = 10**9, expected_s: float = 1.0) -> Judged:
    return Judged(
        endpoint_id="b/x",
        is_predicted=True,
        time_s=time_s,
        expected_s=expected_s,
        cost_nanos=cost_nanos,
    )


def times(num: int, seed: int = 1) -> list[float]:
    rng = random.Random(seed)
    return [rng.lognormvariate(0.0, 0.8) for _ in range(num)]


def compared(old: list[Judged], new: list[Judged], told: list[Sent] | None = None) -> Comparison:
    told = told or [sent(each.time_s or 1.0) for each in old]
    return compare(told, old, new, np.random.default_rng(1))


def test_the_same_choices_differ_by_exactly_nothing() -> None:
    old = [real(each) for each in times(200)]
    found = compared(old, old)

    assert (found.num_changed, found.new.num_predicted) == (0, 0)
    differences = found.differences
    assert differences is not None
    for figure in (differences.cost_usd, differences.mean_s, differences.p50_s, differences.p95_s):
        assert (figure.value, figure.low, figure.high) == (0.0, 0.0, 0.0)
    assert found.old.p50_s.value == found.new.p50_s.value


def test_a_small_gain_shows_through_a_spread_that_is_much_larger() -> None:
    """The requests' own spread is in both sides, so it drops out of the difference."""
    old = [real(each) for each in times(200)]
    rng = random.Random(3)
    new = [predicted((each.time_s or 0.0) * rng.gauss(0.93, 0.1), 10**8) for each in old]
    found = compared(old, new)
    differences = found.differences

    assert differences is not None
    assert differences.mean_s.is_clear
    assert differences.mean_s.value < 0.0
    assert differences.mean_s.value == pytest.approx(
        np.mean([n.time_s for n in new]) - np.mean([o.time_s for o in old])
    )
    assert differences.cost_usd.value == pytest.approx(-0.9 * 200)
    highest, lowest = found.old.p50_s.high, found.new.p50_s.low
    assert highest is not None
    assert lowest is not None
    assert highest > lowest  # which the two sides alone would not have shown


def test_what_is_only_noise_is_no_difference() -> None:
    old = [real(each) for each in times(300, 1)]
    new = [predicted(each) for each in times(300, 2)]
    differences = compared(old, new).differences

    assert differences is not None
    assert not differences.mean_s.is_clear
    assert not differences.p95_s.is_clear


def test_requests_that_one_side_refuses_or_nobody_answered_are_not_compared() -> None:
    old = [real(1.0), real(2.0), Judged(endpoint_id="a/x"), real(3.0)]
    new = [real(1.0), Judged(refusal="price_max"), Judged(endpoint_id="b/x"), predicted(9.0)]
    found = compared(old, new)

    assert (found.num_requests, found.num_compared, found.num_changed) == (4, 2, 3)
    assert found.old.cost_usd.value == found.new.cost_usd.value == 2.0
    assert (found.new.num_refused, found.new.refusals) == (1, {"price_max": 1})
    assert {name: share.value for name, share in found.new.shares.items()} == {
        "b/x": 0.5,
        "a/x": 0.25,
    }


@pytest.mark.parametrize(("num", "said"), [(1, "too few"), (29, "too few"), (99, "p95"), (100, "")])
def test_too_few_are_called_too_few(num: int, said: str) -> None:
    old = [real(each) for each in times(num)]
    found = compared(old, old)

    assert said in found.too_few
    assert bool(found.too_few) == bool(said)
    assert found.num_compared == num


def test_nothing_to_compare_says_so() -> None:
    refused = [Judged(refusal="capacity")] * 3
    found = compared([real(1.0)] * 3, refused)

    assert found.differences is None
    assert "no request was answered" in found.too_few
    with pytest.raises(ValueError, match="records"):
        compare([], [], [], np.random.default_rng(1))


def test_the_prediction_is_checked_on_what_was_really_sent() -> None:
    told = [sent(1.2 if idx % 4 else 9.0) for idx in range(40)]
    told += [sent(50.0, num_attempts=2)] * 20  # the way to the next endpoint is not predicted
    old = [real(1.0)] * 60
    check = compared(old, old, told).check

    assert check is not None
    assert check.num == 40
    assert check.real_over_predicted.value == pytest.approx(1.2)
    assert check.inside_90.value == pytest.approx(0.75)
    assert check.cost_real_over_predicted == 1.0


def test_an_error_common_to_both_predictions_drops_out_of_their_difference() -> None:
    """Really it takes twice as long as is believed, everywhere: against the real times of the old
    side the new one looks twice as fast as it is, against its prediction it does not."""
    old = [real(2.0) for _ in range(50)]
    new = [predicted(1.0, expected_s=1.0) for _ in range(50)]
    found = compared(old, new, [sent(2.0, 1.0) for _ in range(50)])

    assert found.differences is not None
    assert found.differences.mean_s.value == pytest.approx(-1.0)
    assert found.differences.mean_expected_s is not None
    assert found.differences.mean_expected_s.value == pytest.approx(0.0)


def test_without_the_policy_of_the_time_the_difference_of_predictions_is_left_out() -> None:
    record = sent(2.0).record
    old, new = [real(2.0)] * 5, [predicted(1.0)] * 5
    found = compared(old, new, [Sent(record, None)] * 5)

    assert found.differences is not None
    assert found.differences.mean_expected_s is None
    assert found.check is None


@pytest.mark.parametrize(
    ("figure", "num", "is_p95", "claim"),
    [
        ((-2.0, -3.0, -1.0), 29, False, ("too_few", None)),
        ((-2.0, -3.0, -1.0), 30, False, ("less", 0.5)),
        ((2.0, 1.0, 3.0), 99, True, ("too_few", None)),
        ((2.0, 1.0, 3.0), 100, True, ("more", 0.5)),
        ((-1.0, -3.0, 1.0), 100, False, ("none", None)),
        ((0.0, 0.0, 0.0), 100, False, ("same", None)),
    ],
)
def test_what_may_be_claimed_of_a_difference(
    figure: tuple[float, float, float], num: int, is_p95: bool, claim: tuple[str, float | None]
) -> None:
    value, low, high = figure
    found = claim_of(
        Interval(value=value, low=low, high=high), num, Interval(value=4.0), is_p95=is_p95
    )

    assert found == claim
    if claim[1] is not None:
        alone = claim_of(Interval(value=value, low=low, high=high), num)
        assert alone == (claim[0], None)
