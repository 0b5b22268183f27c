"""Recursive least squares against the batch solution."""

from __future__ import annotations

import numpy as np
import pytest

from gateway.stats.rls import LineFit


def test_without_forgetting_it_equals_ridge_regression() -> None:
    rng = np.random.default_rng(5)
    rows = rng.normal(size=(80, 2))
    y = rows @ np.array([0.3, 2.0]) + rng.normal(0, 0.1, 80)
    prior, variance = np.array([1.0, 1.0]), np.array([4.0, 0.5])
    fit = LineFit((1.0, 1.0), (4.0, 0.5), memory=1e15)
    for (x0, x1), target in zip(rows, y, strict=True):
        fit.add(float(x0), float(x1), float(target))

    precision = np.diag(1.0 / variance)
    exact = np.linalg.solve(rows.T @ rows + precision, rows.T @ y + precision @ prior)
    assert (fit.theta0, fit.theta1) == pytest.approx(tuple(exact), rel=1e-6)


def test_forgetting_follows_a_line_that_changed() -> None:
    rng = np.random.default_rng(6)
    fit = LineFit((0.0, 0.0), (1.0, 1.0), memory=50.0)
    for slope in (1.0, 3.0):
        for _ in range(400):
            x = float(rng.uniform(0, 1))
            fit.add(1.0, x, 0.5 + slope * x + float(rng.normal(0, 0.05)))

    assert fit.theta1 == pytest.approx(3.0, abs=0.1)
    assert fit.theta0 == pytest.approx(0.5, abs=0.1)


def test_equal_prompts_for_hours_do_not_blow_the_fit_up() -> None:
    # Without a bound forgetting inflates the unexcited direction exponentially (wind-up).
    rng = np.random.default_rng(7)
    fit = LineFit((0.5, 0.1), (2.0, 0.2), memory=200.0)
    for _ in range(50_000):
        fit.add(1.0, 1.0, 0.6 + float(rng.normal(0, 0.1)))

    assert fit.theta0 + fit.theta1 == pytest.approx(0.6, abs=0.05)
    assert abs(fit.theta0) < 2.0
    fit.add(1.0, 3.0, 0.8)
    assert abs(fit.theta1) < 1.0


def test_export_and_load_carry_on_exactly() -> None:
    first, second = (LineFit((0.5, 0.1), (2.0, 0.2), memory=200.0) for _ in range(2))
    for x in (1.0, 2.0, 5.0):
        first.add(1.0, x, 0.2 * x)
    second.load(first.export())
    first.add(1.0, 4.0, 0.9)
    second.add(1.0, 4.0, 0.9)

    assert second.export() == first.export()
