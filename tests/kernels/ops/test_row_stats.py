"""row_stats in Triton: rows without a finite logit, and rows that are not numbers."""

from __future__ import annotations

import pytest
import torch

from kernels.ops.row_stats import row_stats
from kernels.reference.row_stats import row_stats as reference
from kernels.reference.sample import VOCAB_SIZE_MAX


def test_infinite_and_nan_logits_are_as_in_the_reference() -> None:
    logits = torch.randn(7, 100, generator=torch.Generator().manual_seed(0))
    logits[0] = -torch.inf
    logits[1, 70] = torch.nan
    logits[2, :60] = -torch.inf  # whole blocks without a token
    logits[3, 5] = torch.inf
    logits[4, :] = -1e30
    logits[5, 2] = 3e38

    got = row_stats(logits)

    torch.testing.assert_close(got, reference(logits), equal_nan=True)


def test_rows_apart_and_temperatures_of_any_type() -> None:
    logits = torch.randn(2, 6, 33, generator=torch.Generator().manual_seed(1))[:, 2]
    temperature = torch.tensor([[0.0, 9.0], [0.3, 9.0]], dtype=torch.float64)[:, 0]

    got = row_stats(logits, temperature=temperature)

    torch.testing.assert_close(got, reference(logits, temperature=temperature))


def test_no_rows_are_no_work() -> None:
    assert [each.shape for each in row_stats(torch.empty(0, 50))] == [(0,), (0,)]


@pytest.mark.parametrize("vocab_size", [0, VOCAB_SIZE_MAX + 1])
def test_vocabularies_out_of_range_are_refused(vocab_size: int) -> None:
    with pytest.raises(ValueError, match=f"1 to {VOCAB_SIZE_MAX} can"):
        row_stats(torch.empty(1, vocab_size))
