"""verify_rejection and residual_pick in Triton: together they say what the target would say."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from kernels.ops.residual_pick import residual_pick
from kernels.ops.verify_rejection import verify_rejection
from kernels.reference.residual_pick import residual_pick as reference_pick
from kernels.reference.verify_rejection import verify_rejection as reference

P, Q = torch.tensor([6.0, 4.0, 2.0]) / 12, torch.tensor([3.0, 3.0, 6.0]) / 12
STEPS = (torch.arange(12, dtype=torch.float64) + 0.5) / 12  # stand for all uniforms: see below


def test_one_draft_and_its_correction_have_the_targets_distribution() -> None:
    """By enumeration: every bound a uniform is compared with is a multiple of 1/12, so that the
    middles of 12 steps count as an integral does.
    """
    temperature = torch.full((36,), 0.5, dtype=torch.float64)
    logits = (P.double().log() * 0.5).float().expand(36, 2, 3)
    drafts = torch.arange(3).repeat_interleave(12).unsqueeze(1)
    probs = Q.expand(36, 1, 3)

    accepted = verify_rejection(logits, drafts, torch.ones(36, dtype=torch.int64),
                                STEPS.repeat(3).unsqueeze(1), temperature=temperature,
                                draft_probs=probs)  # fmt: skip
    picked = residual_pick(logits[:12], torch.zeros(12, dtype=torch.int64), STEPS,
                           temperature=temperature[:12], draft_ids=drafts[24:],
                           draft_probs=probs[:12])  # fmt: skip

    chance = accepted.view(3, 12).double().mean(dim=1)
    residual = torch.bincount(picked, minlength=3).double() / 12
    said = Q.double() * chance + (1.0 - (Q.double() * chance).sum()) * residual
    assert chance.tolist() == pytest.approx([1.0, 1.0, 1 / 3])
    assert said.tolist() == pytest.approx(P.tolist())


def case(s: int, n: int, v: int, seed: int = 0) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    random = torch.Generator().manual_seed(seed)
    logits = torch.randn(s, n + 1, v, generator=random) * 2
    probs = torch.softmax(logits[:, :n] + torch.randn(s, n, v, generator=random) * 0.3, dim=2)
    drafts = torch.multinomial(probs.flatten(0, 1), 1, generator=random).view(s, n)
    num_valid = torch.randint(0, n + 1, (s,), generator=random)
    return logits, drafts, num_valid, torch.rand(s, n, generator=random), probs


@pytest.mark.parametrize("has_probs", [False, True])
def test_many_short_sequences_are_the_references(has_probs: bool) -> None:
    logits, drafts, num_valid, uniforms, probs = case(12, 3, 7)
    temperature = torch.where(torch.arange(12) % 5 == 0, 0.0, 1.1)
    given = {"temperature": temperature, "draft_probs": probs if has_probs else None}

    got = verify_rejection(logits, drafts, num_valid, uniforms, **given)

    assert got.tolist() == reference(logits, drafts, num_valid, uniforms, **given).tolist()
    assert len(got.unique()) > 1


def test_drafts_that_no_vocabulary_has_and_rows_of_nan() -> None:
    logits, drafts, _, uniforms, _ = case(5, 2, 40)
    num_valid = torch.tensor([2, 2, 2, 2, -1])
    drafts[:, 0] = logits[:, 0].argmax(dim=1)
    drafts[0, 0], drafts[1, 1] = -1, -7
    logits[2, 0] = torch.nan
    logits[3, 1] = -torch.inf
    uniforms[:] = 0.0

    for temperature in (None, torch.ones(5), torch.tensor([0.0, 1.0, 0.0, 1.0, 1.0])):
        got = verify_rejection(logits, drafts, num_valid, uniforms, temperature=temperature)
        want = reference(logits, drafts, num_valid, uniforms, temperature=temperature)
        assert got.tolist() == want.tolist(), temperature


def test_drafts_the_target_rules_out_never_stand() -> None:
    logits = torch.zeros(1, 2, 5)
    logits[0, 0, 3] = -torch.inf

    got = verify_rejection(logits, torch.tensor([[3]]), torch.tensor([1]), torch.zeros(1, 1),
                           temperature=torch.ones(1))  # fmt: skip

    assert got.tolist() == [0]


def test_draft_exactly_at_its_bar_stands() -> None:
    # p = 1/2, a draft that is certain: u · q ≤ p holds up to one half, and no further.
    logits, temperature = torch.zeros(3, 2, 2), torch.ones(3)
    uniforms = torch.tensor([[0.5], [0.5 + 2.0**-20], [0.0]])
    drafts, num_valid = torch.zeros(3, 1, dtype=torch.int64), torch.ones(3, dtype=torch.int64)

    for op in (verify_rejection, reference):
        got = op(logits, drafts, num_valid, uniforms, temperature=temperature)
        assert got.tolist() == [1, 0, 1], op


def test_rows_apart_and_results_where_they_are_wanted() -> None:
    logits, drafts, num_valid, uniforms, probs = case(4, 3, 30)
    wide = torch.stack([logits, logits + 1.0], dim=2)[:, :, 0]  # rows that do not follow each other
    turned = probs.transpose(1, 2).contiguous().transpose(1, 2)
    given = {"temperature": torch.full((8,), 0.9)[::2], "draft_probs": turned}
    out, elsewhere = torch.full((4,), -9), torch.full((8,), -9)[::2]

    got = verify_rejection(wide, drafts.t().contiguous().t(), num_valid, uniforms, out=out, **given)
    verify_rejection(logits, drafts, num_valid, uniforms, out=elsewhere, **given)

    assert got is out
    assert out.tolist() == elsewhere.tolist()
    assert out.tolist() == reference(logits, drafts, num_valid, uniforms, **given).tolist()


@pytest.mark.parametrize(("s", "n"), [(0, 3), (3, 0)])
def test_without_sequences_or_drafts_nothing_stands(s: int, n: int) -> None:
    got = verify_rejection(torch.zeros(s, n + 1, 9), torch.zeros(s, n, dtype=torch.int64),
                           torch.zeros(s, dtype=torch.int64), torch.zeros(s, n),
                           temperature=torch.ones(s))  # fmt: skip

    assert got.tolist() == [0] * s


def test_picks_of_short_sequences_are_the_references() -> None:
    logits, drafts, _, uniforms, probs = case(9, 2, 7, seed=2)
    accepted = torch.arange(9) % 3
    temperature = torch.where(torch.arange(9) % 7 == 0, 0.0, 1.1)
    drafts[::5] = -1

    for given in ({}, {"draft_ids": drafts}, {"draft_ids": drafts, "draft_probs": probs}):
        got = residual_pick(logits, accepted, uniforms[:, 0], temperature=temperature, **given)
        want = reference_pick(logits, accepted, uniforms[:, 0], temperature=temperature, **given)
        assert got.tolist() == want.tolist(), list(given)
