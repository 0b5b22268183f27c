"""What an explanation says of when a request will be complete, and how far to believe it."""

from __future__ import annotations

from math import exp, log
from random import Random

import pytest

from gateway.core import RequestFacts
from gateway.policy.decide import decide
from gateway.policy.explain import explain
from gateway.stats.predictive import NORMAL_ENDS, Calibrated
from tests.support.deciding import facts_of, policy_of, view_of


def _shown(
    known: dict[str, Calibrated] | None, facts: RequestFacts | None = None, **stats: float
) -> list[dict[str, object]]:
    policy = policy_of("a", "b")
    view = view_of(policy, {"a": {"rate": 90.0} | stats}, output_tokens_expected=180.0)
    facts = facts or facts_of()
    plan = decide(facts, view, policy, Random(1), seed=1)
    candidates = explain(plan, facts, view, policy, calibrated=known)["candidates"]
    assert isinstance(candidates, list)
    return candidates


def test_without_calibration_no_interval_is_claimed() -> None:
    assert all("predicted" not in each for each in _shown(None))


def test_an_untried_endpoint_has_the_beliefs_interval_and_no_coverage() -> None:
    first, second = _shown({"a/x": Calibrated(length_variance=0.5)})

    assert first["predicted"]["coverage_90"] is None  # type: ignore[index]  # a dict, as shown
    assert first["predicted"]["n"] == 0.0  # type: ignore[index]  # a dict, as shown
    assert "predicted" not in second


def test_the_interval_lies_around_the_predicted_time() -> None:
    first = _shown({"a/x": Calibrated(length_variance=0.5, coverage_90=0.91, n=120.0)})[0]
    predicted, terms = first["predicted"], first["terms"]
    assert isinstance(predicted, dict)
    assert isinstance(terms, dict)

    assert predicted["completion_p5_s"] < terms["time_s"] < predicted["completion_p95_s"]
    assert (predicted["coverage_90"], predicted["n"]) == (0.91, 120.0)


def test_learned_ends_and_unknown_lengths_widen_it() -> None:
    def width(**known: object) -> float:
        shown = _shown({"a/x": Calibrated(**known)})[0]["predicted"]  # type: ignore[arg-type]  # by name
        assert isinstance(shown, dict)
        return log(shown["completion_p95_s"] / shown["completion_p5_s"])

    twice = tuple(2.0 * end for end in NORMAL_ENDS)
    assert width(ends=twice) == pytest.approx(2.0 * width(), rel=1e-3)
    assert width(length_variance=0.8) > 1.5 * width()


def test_a_request_without_output_has_its_first_part_only() -> None:
    """At an infinite rate all that is left is the log-normal of the first token."""
    shown = _shown({"a/x": Calibrated()}, rate_mu=20.0)[0]["predicted"]
    assert isinstance(shown, dict)
    ratio = shown["completion_p95_s"] / shown["completion_p5_s"]
    assert ratio == pytest.approx(exp(2.0 * NORMAL_ENDS[3] * 0.3), rel=0.02)
