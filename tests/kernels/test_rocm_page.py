"""The table of docs/rocm.md is what the roofline says, and arithmetic on it."""

from __future__ import annotations

import re
from collections.abc import Iterator

import pytest

from kernels.targets import find
from kernels.tools.models import MODELS, step
from kernels.tools.roofline import CONTEXT, cost, in_turn_s
from tests.support.source_tree import ROOT

CHIPS = ("gfx942", "gfx950")
ROW = re.compile(
    r"^\| (?P<model>[\w.-]*) ?\| (?P<batch>\d+) \| (?P<step_ms>[\d.]+ / [\d.]+) "
    r"\| (?P<rate>[\d,]+ / [\d,]+) \| (?P<costs>[\d.]+, [\d.]+, [\d.]+) \|$",
    re.MULTILINE,
)


def rows() -> Iterator[tuple[str, re.Match[str]]]:
    """A model's name stands in its first row only."""
    name = ""
    for row in ROW.finditer((ROOT / "docs/rocm.md").read_text()):
        name = row["model"] or name
        yield name, row


def pair(text: str) -> list[float]:
    return [float(each.replace(",", "")) for each in text.split(" / ")]


def test_every_model_is_there_at_every_batch() -> None:
    found = [(name, int(row["batch"])) for name, row in rows()]

    assert found == [(name, batch) for name in MODELS for batch in (1, 32, 256)]


@pytest.mark.parametrize(("name", "row"), list(rows()), ids=lambda each: str(each)[:40])
def test_figures_are_those_of_the_roofline(name: str, row: re.Match[str]) -> None:
    model, batch = MODELS[name], int(row["batch"])
    for chip, step_ms, rate in zip(CHIPS, pair(row["step_ms"]), pair(row["rate"]), strict=True):
        step_s = in_turn_s(step(model, batch=batch, tokens=1, context=CONTEXT), find(chip))
        assert step_ms == pytest.approx(step_s * 1e3, rel=0.01)
        assert rate == pytest.approx(batch / step_s, rel=0.01)
    for tokens, shown in zip((4, 6, 9), row["costs"].split(", "), strict=True):
        assert float(shown) == pytest.approx(cost(model, find("gfx942"), batch, tokens), abs=0.006)
