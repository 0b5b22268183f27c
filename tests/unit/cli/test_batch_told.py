"""What `looprouter batch` tells a person: the key it lacks, amounts and times as they are meant."""

from __future__ import annotations

import time

import pytest
from click.testing import CliRunner

from gateway.cli.batch import _about, _moment, _show_plan, batch

PLAN = {
    "lanes": [
        {
            "lane": "own/m#standard",
            "lines": 50_000,
            "cost_usd": "120.029980001",
            "start_at": 1_796_058_708.0,
            "finish_at": 1_796_059_308.0,
        }
    ],
    "cost_usd": "120.029980001",
    "list_price_usd": "120.02998",
    "saving": -8.3e-12,
    "finish_at": 1_796_059_308.0,
}


def test_a_missing_key_is_asked_for_by_option_and_variable(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.delenv("LOOPROUTER_API_KEY", raising=False)
    done = CliRunner().invoke(batch, ["list"])

    assert done.exit_code == 2
    assert "--key" in done.output
    assert "LOOPROUTER_API_KEY" in done.output


@pytest.mark.parametrize(
    ("usd", "told"),
    [
        ("0", "0.00"),
        ("0.00", "0.00"),
        ("120.029980001", "120.03"),
        ("1.5", "1.500"),
        ("0.00244", "0.002440"),
        ("0.000000123456", "0.0000001235"),
        ("123456.789", "123456.79"),
    ],
)
def test_a_predicted_amount_has_four_digits_and_at_least_cents(usd: str, told: str) -> None:
    assert _about(usd) == told


@pytest.mark.parametrize(
    ("saving", "told"),
    [
        (-8.3e-12, "; 0% below list price ($120.03)\n"),
        (0.5, "; 50% below list price ($120.03)\n"),
        (-0.25, "; 25% above list price ($120.03)\n"),
    ],
)
def test_a_plan_tells_its_saving_by_side(
    saving: float, told: str, capsys: pytest.CaptureFixture[str]
) -> None:
    _show_plan({**PLAN, "saving": saving})
    out = capsys.readouterr().out

    assert out.endswith(told)
    assert "120.029980001" not in out


def test_a_time_names_its_zone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TZ", "Asia/Shanghai")
    time.tzset()
    try:
        assert _moment(1_796_058_708.0) == "2026-12-01 01:11:48 CST"
    finally:
        monkeypatch.undo()
        time.tzset()
