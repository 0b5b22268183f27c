"""sample in C++ against the reference: the same tokens, whatever the filters and the threads."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from kernels.reference.sample import sample as reference
from tests.support.native_kernels import native_ops, threads

pytestmark = pytest.mark.compiler

# Less than a vector, a block and one more, several blocks, a real vocabulary.
VOCAB_SIZES = (1, 7, 16, 33, 513, 5000, 49_152)
FILTERS = (
    (),
    ("top_k",),
    ("top_p",),
    ("min_p",),
    ("top_k", "top_p"),
    ("top_k", "top_p", "min_p"),
)
ROWS = 6


def native(logits: Tensor, uniforms: Tensor, **given: Any) -> Tensor:
    result: Tensor = native_ops()["sample"](logits, uniforms, **given)
    return result


class Case:
    """Random rows with every kind of setting among them."""

    def __init__(self, vocab_size: int, seed: int) -> None:
        generator = torch.Generator().manual_seed(seed)

        def unit() -> Tensor:
            return torch.rand(ROWS, generator=generator, dtype=torch.float64)

        self.logits = torch.randn(ROWS, vocab_size, generator=generator) * (1 + seed)
        if seed % 2:
            self.logits = (self.logits * 2).round() / 2  # ties
        self.uniforms = unit()
        self.temperature = unit() * 1.5 + 0.05
        self.temperature[0], self.temperature[1] = 0.0, 1.0
        self.filters: dict[str, Tensor] = {
            "top_k": torch.randint(0, 2 * vocab_size, (ROWS,), generator=generator),
            "top_p": unit(),
            "min_p": unit() * 0.3,
        }
        self.filters["top_p"][2] = 1.0
        self.filters["min_p"][2] = 0.0
        self.filters["top_k"][3] = 1

    def given(self, names: tuple[str, ...]) -> dict[str, Tensor]:
        return {"temperature": self.temperature} | {name: self.filters[name] for name in names}


@pytest.mark.parametrize("filters", FILTERS, ids="+".join)
@pytest.mark.parametrize("vocab_size", VOCAB_SIZES)
def test_it_draws_what_the_reference_draws(vocab_size: int, filters: tuple[str, ...]) -> None:
    for seed in range(3):
        case = Case(vocab_size, seed)
        given = case.given(filters)

        drawn = native(case.logits, case.uniforms, **given)

        assert drawn.tolist() == reference(case.logits, case.uniforms, **given).tolist()


@pytest.mark.parametrize("vocab_size", VOCAB_SIZES)
def test_without_a_temperature_every_row_is_greedy(vocab_size: int) -> None:
    logits = Case(vocab_size, 1).logits

    assert native(logits, torch.empty(0)).tolist() == logits.argmax(1).tolist()


def test_a_row_knows_neither_the_others_nor_the_threads() -> None:
    case = Case(5000, 2)
    given = case.given(("top_k", "top_p", "min_p"))
    with threads(3):
        together = native(case.logits, case.uniforms, **given)

    for row in range(ROWS):
        alone = {name: value[row : row + 1] for name, value in given.items()}
        only = native(case.logits[row : row + 1], case.uniforms[row : row + 1], **alone)
        assert only.tolist() == [int(together[row])]


def test_all_of_the_distribution_is_drawn() -> None:
    """Uniforms over the whole range give each token its share."""
    logits = torch.tensor([[0.5, 0.25, 0.125, 0.125]]).log().repeat(1000, 1)
    uniforms = (torch.arange(1000, dtype=torch.float64) + 0.5) / 1000

    drawn = native(logits, uniforms, temperature=torch.ones(1000))

    assert torch.bincount(drawn, minlength=4).tolist() == [500, 250, 125, 125]


def test_rows_may_be_parts_of_longer_ones() -> None:
    case = Case(1000, 0)
    part = case.logits[:, :700]

    drawn = native(part, case.uniforms, temperature=case.temperature)

    expected = native(part.contiguous(), case.uniforms, temperature=case.temperature)
    assert drawn.tolist() == expected.tolist()


@pytest.mark.parametrize("value", [torch.nan, torch.inf, -torch.inf])
def test_logits_that_are_no_numbers_give_some_token(value: float) -> None:
    logits = torch.full((2, 70), value)
    logits[1, 3] = 1.0
    given = {
        "temperature": torch.ones(2),
        "top_k": torch.tensor([5, 5]),
        "top_p": torch.tensor([0.5, 0.5]),
    }

    drawn = native(logits, torch.rand(2), **given)

    assert all(0 <= token < 70 for token in drawn.tolist())
    assert drawn[1] == 3 or value == torch.inf


def test_it_writes_where_it_is_told() -> None:
    case = Case(33, 0)
    out = torch.zeros(ROWS, dtype=torch.int64)

    assert native(case.logits, case.uniforms, temperature=case.temperature, out=out) is out
    assert out.tolist() == native(case.logits, case.uniforms, temperature=case.temperature).tolist()


def test_settings_for_another_number_of_rows_are_refused() -> None:
    case = Case(33, 0)

    with pytest.raises(ValueError, match="5 rows"):
        native(case.logits, case.uniforms, temperature=case.temperature[:5])


def test_other_types_go_to_the_reference() -> None:
    case = Case(33, 1)
    logits = case.logits.bfloat16()

    drawn = native(logits, case.uniforms, temperature=case.temperature)

    assert drawn.tolist() == reference(logits, case.uniforms, temperature=case.temperature).tolist()
