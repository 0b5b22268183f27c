"""Losses in pieces are those of whole logits, to the last digits, and so are their gradients."""

from __future__ import annotations

from dataclasses import dataclass, replace

import pytest
import torch
from torch import Tensor
from torch.nn import functional

from backend.train import losses
from backend.train.losses import LossWeights, RowLosses, Rows, row_losses

NUM_ROWS, HIDDEN, RANK, VOCAB = 13, 24, 6, 37
TERMS = {
    "text": LossWeights(text=1.0),
    "soft": LossWeights(soft=1.0),
    "distance": LossWeights(distance=1.0),
    "mixed": LossWeights(text=0.1, soft=0.35, distance=0.9),
}
# What is summed over a row is float32, whatever the type of the states.
TOLERANCE = {torch.float32: 2e-6, torch.float64: 2e-6}


@dataclass
class Given:
    states: Tensor
    table: Tensor
    rows: Rows
    latent: Tensor
    bias_table: Tensor

    @property
    def learnt(self) -> tuple[Tensor, Tensor, Tensor]:
        return self.states, self.latent, self.bias_table


def given(dtype: torch.dtype, seed: int = 0, num_rows: int = NUM_ROWS) -> Given:
    """Three rows' tokens cannot be drafted; others have weights of their own."""
    rng = torch.Generator().manual_seed(seed)

    def made(*shape: int) -> Tensor:
        return torch.randn(*shape, generator=rng, dtype=torch.float64).to(dtype)

    labels = torch.randint(VOCAB, (num_rows,), generator=rng)
    labels[::5] = -1
    labels[1], labels[2] = 0, VOCAB - 1
    weights = torch.rand(num_rows, generator=rng) * (labels >= 0)
    return Given(
        made(num_rows, HIDDEN).requires_grad_(),
        made(VOCAB, HIDDEN) * 0.4,
        Rows(made(num_rows, HIDDEN), labels, weights / weights.sum()),
        made(num_rows, RANK).requires_grad_(),
        (made(VOCAB, RANK) * 0.5).requires_grad_(),
    )


def by_autograd(each: Given, weights: LossWeights, *, has_markov: bool) -> RowLosses:
    """By the formulas, on all logits at once, in float64."""
    states, table = each.states.double(), each.table.double()
    logits = states @ table.T
    if has_markov:
        logits = logits + each.latent.double() @ each.bias_table.double().T
    p = torch.softmax((each.rows.target_states.double() @ table.T).detach(), -1)
    log_q = torch.log_softmax(logits, -1)
    l1 = (log_q.exp() - p).abs().sum(-1)
    text = functional.cross_entropy(logits, each.rows.labels.clamp_min(0), reduction="none")
    terms = weights.text * text - weights.soft * (p * log_q).sum(-1) + weights.distance * l1
    return RowLosses(
        (terms * each.rows.weights.double()).sum(),
        1.0 - l1.detach() / 2,
        logits.argmax(-1) == each.rows.labels,
    )


def found_by_pieces(each: Given, weights: LossWeights, *, has_markov: bool) -> RowLosses:
    markov = {"latent": each.latent, "bias_table": each.bias_table} if has_markov else {}
    return row_losses(each.states, each.table, each.rows, weights, **markov)


def gradients(loss: Tensor, wanted: tuple[Tensor, ...]) -> list[Tensor]:
    return list(torch.autograd.grad(loss, wanted))


@pytest.fixture(params=[1, 3, 5, 100], ids=lambda size: f"pieces of {size}")
def piece_rows(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> int:
    """Rows that are taken at a time."""
    monkeypatch.setattr(losses, "PIECE_NUMBERS", request.param * VOCAB + VOCAB - 1)
    return int(request.param)


@pytest.mark.usefixtures("piece_rows")
@pytest.mark.parametrize("has_markov", [False, True], ids=["plain", "markov"])
@pytest.mark.parametrize("dtype", TOLERANCE)
@pytest.mark.parametrize("weights", TERMS.values(), ids=TERMS)
def test_values_and_gradients_are_those_of_plain_autograd(
    weights: LossWeights, dtype: torch.dtype, has_markov: bool
) -> None:
    each, tolerance = given(dtype), TOLERANCE[dtype]
    wanted = each.learnt if has_markov else each.learnt[:1]

    found = found_by_pieces(each, weights, has_markov=has_markov)
    expected = by_autograd(each, weights, has_markov=has_markov)

    assert float((found.loss.double() - expected.loss).detach().abs()) < tolerance
    assert float((found.overlap.double() - expected.overlap).abs().max()) < tolerance
    assert torch.equal(found.is_hit, expected.is_hit)
    # As a part of a larger loss.
    own, plain = (gradients(3.0 * each.loss + 1.0, wanted) for each in (found, expected))
    for tensor, mine, theirs in zip(wanted, own, plain, strict=True):
        assert mine.dtype is tensor.dtype
        assert float(theirs.abs().max()) > 1e-3
        assert float((mine - theirs).abs().max()) < tolerance


def test_the_table_may_learn_too() -> None:
    """Only by what it does to the head's logits, not to the target's."""
    each = given(torch.float32)
    each.table.requires_grad_()
    found = found_by_pieces(each, TERMS["mixed"], has_markov=True)
    expected = by_autograd(each, TERMS["mixed"], has_markov=True)

    (own,), (plain,) = (gradients(one.loss, (each.table,)) for one in (found, expected))

    assert float((own - plain).abs().max()) < 2e-6


@pytest.mark.usefixtures("piece_rows")
def test_a_row_without_weight_changes_nothing() -> None:
    each = given(torch.float32)
    undraftable = each.rows.labels < 0
    assert int(undraftable.sum()) == 3
    kept = ~undraftable
    fewer = Given(
        each.states[kept].detach().requires_grad_(),
        each.table,
        Rows(each.rows.target_states[kept], each.rows.labels[kept], each.rows.weights[kept]),
        each.latent[kept].detach().requires_grad_(),
        each.bias_table,
    )

    all_rows = found_by_pieces(each, TERMS["mixed"], has_markov=True)
    without = found_by_pieces(fewer, TERMS["mixed"], has_markov=True)

    assert float((all_rows.loss - without.loss).detach().abs()) < 1e-6
    states, latent, bias = gradients(all_rows.loss, each.learnt)
    assert not states[undraftable].any()
    assert not latent[undraftable].any()
    fewer_states, _, fewer_bias = gradients(without.loss, fewer.learnt)
    assert float((states[kept] - fewer_states).abs().max()) < 1e-6
    assert float((bias - fewer_bias).abs().max()) < 1e-6
    # It is no hit, and its overlap is known all the same.
    assert not all_rows.is_hit[undraftable].any()
    assert float(all_rows.overlap[undraftable].min()) > 0


def test_what_agrees_wholly_overlaps_wholly() -> None:
    each = given(torch.float32)
    same = replace(each.rows, target_states=each.states.detach().clone())

    found = row_losses(each.states, each.table, same, LossWeights(distance=1.0))

    assert 0.0 <= float(found.loss.detach()) < 1e-6
    assert float((found.overlap - 1.0).abs().max()) < 1e-6
    assert torch.equal(found.is_hit, by_autograd(each, TERMS["soft"], has_markov=False).is_hit)


def test_without_gradients_the_values_are_the_same() -> None:
    each = given(torch.float32)
    learning = found_by_pieces(each, TERMS["mixed"], has_markov=True)
    with torch.no_grad():
        measured = found_by_pieces(each, TERMS["mixed"], has_markov=True)

    assert learning.loss.requires_grad
    assert not measured.loss.requires_grad
    assert float(measured.loss) == float(learning.loss.detach())
    assert torch.equal(measured.overlap, learning.overlap)
    assert torch.equal(measured.is_hit, learning.is_hit)


def test_only_the_loss_learns() -> None:
    found = found_by_pieces(given(torch.float32), TERMS["mixed"], has_markov=True)

    assert not found.overlap.requires_grad
    assert not found.is_hit.requires_grad


def test_no_rows_are_worth_nothing() -> None:
    each = given(torch.float32)
    none = Rows(each.rows.target_states[:0], each.rows.labels[:0], each.rows.weights[:0])
    states = each.states[:0].detach().requires_grad_()

    found = row_losses(states, each.table, none, TERMS["mixed"])

    assert float(found.loss.detach()) == 0.0
    assert found.overlap.shape == found.is_hit.shape == (0,)
    assert gradients(found.loss, (states,))[0].shape == (0, HIDDEN)


def test_large_logits_do_not_overflow() -> None:
    each = given(torch.float32)
    large = Given(
        (each.states.detach() * 400).requires_grad_(),
        each.table,
        replace(each.rows, target_states=each.rows.target_states * 400),
        each.latent,
        each.bias_table,
    )

    found = found_by_pieces(large, TERMS["mixed"], has_markov=True)

    assert torch.isfinite(found.loss)
    expected = by_autograd(large, TERMS["mixed"], has_markov=True)
    assert float(found.loss.detach()) == pytest.approx(float(expected.loss.detach()), rel=1e-5)
    assert all(torch.isfinite(part).all() for part in gradients(found.loss, large.learnt))


@pytest.mark.usefixtures("piece_rows")
def test_bfloat16_is_near_what_float32_gives() -> None:
    each = given(torch.bfloat16)

    found = found_by_pieces(each, TERMS["mixed"], has_markov=True)
    expected = by_autograd(each, TERMS["mixed"], has_markov=True)

    assert found.loss.dtype is torch.float32
    assert float(found.loss.detach()) == pytest.approx(float(expected.loss.detach()), rel=0.02)
    assert float((found.overlap - expected.overlap).abs().max()) < 0.02
    for mine, theirs in zip(
        gradients(found.loss, each.learnt), gradients(expected.loss, each.learnt), strict=True
    ):
        assert mine.dtype is torch.bfloat16
        scale = float(theirs.abs().max())
        assert float((mine.float() - theirs.float()).abs().max()) < 0.03 * scale
