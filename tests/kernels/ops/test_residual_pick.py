"""residual_pick in Triton: residuals without mass, rows without numbers, results in place."""

from __future__ import annotations

import torch
from torch import Tensor

from kernels.ops.residual_pick import residual_pick
from kernels.reference.residual_pick import residual_pick as reference


def made(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed)) * 2


def test_a_residual_without_mass_falls_back_to_the_target() -> None:
    logits, uniforms = made(6, 2, 30), torch.linspace(0.0, 0.99, 6)
    given = {
        "temperature": torch.ones(6),
        "draft_ids": torch.zeros(6, 1, dtype=torch.int64),
        "draft_probs": torch.softmax(logits[:, :1].double(), dim=2) + 1e-9,
    }
    accepted = torch.zeros(6, dtype=torch.int64)

    got = residual_pick(logits, accepted, uniforms, **given)

    plain = residual_pick(logits, accepted, uniforms, temperature=torch.ones(6))
    assert got.tolist() == plain.tolist()
    assert got.tolist() == reference(logits, accepted, uniforms, **given).tolist()


def test_a_target_that_has_only_the_refused_draft_gives_it() -> None:
    logits = torch.full((2, 2, 20), -torch.inf)
    logits[:, 0, 13] = 1.0

    got = residual_pick(logits, torch.zeros(2, dtype=torch.int64), torch.tensor([0.0, 0.9]),
                        temperature=torch.ones(2), draft_ids=torch.full((2, 1), 13))  # fmt: skip

    assert got.tolist() == [13, 13]


def test_the_refused_draft_is_never_said_again() -> None:
    logits = made(1, 2, 50).expand(6, 2, 50)
    best = int(logits[0, 0].argmax())
    uniforms = torch.linspace(0.0, 1.0 - 2.0**-24, 6)
    given = {"temperature": torch.ones(6), "draft_ids": torch.full((6, 1), best)}
    accepted = torch.zeros(6, dtype=torch.int64)

    got = residual_pick(logits, accepted, uniforms, **given)

    assert best not in got.tolist()
    assert got.tolist() == reference(logits, accepted, uniforms, **given).tolist()


def test_rows_of_nan_give_some_token_and_harm_no_other() -> None:
    logits, uniforms = made(4, 3, 40), torch.linspace(0.1, 0.9, 4)
    accepted, drafts = torch.tensor([0, 1, 2, 1]), torch.full((4, 2), 5)
    given = {
        "temperature": torch.ones(4),
        "draft_ids": drafts,
        "draft_probs": torch.softmax(made(4, 2, 40, seed=1), dim=2),
    }
    want = reference(logits, accepted, uniforms, **given)
    logits[1], logits[2] = torch.nan, -torch.inf

    got = residual_pick(logits, accepted, uniforms, **given)

    assert got[[0, 3]].tolist() == want[[0, 3]].tolist()
    assert ((got >= 0) & (got < 40)).all()


def test_one_row_may_stand_for_two_places() -> None:
    # As the block rule gives it: the row that was chosen, expanded, and always place 0.
    row = made(5, 1, 33)
    probs, drafts = torch.softmax(made(5, 1, 33, seed=3), dim=2), torch.full((5, 1), 7)
    drafts[3] = -1
    accepted, uniforms = torch.zeros(5, dtype=torch.int64), torch.linspace(0.05, 0.95, 5)
    given = {"temperature": torch.full((5,), 0.8), "draft_ids": drafts, "draft_probs": probs}
    out, elsewhere = torch.full((5,), -9), torch.full((10,), -9)[::2]

    got = residual_pick(row.expand(-1, 2, -1), accepted, uniforms, out=out, **given)
    residual_pick(row.expand(-1, 2, -1), accepted, uniforms, out=elsewhere, **given)

    assert got is out
    assert out.tolist() == elsewhere.tolist()
    assert out.tolist() == reference(row.expand(-1, 2, -1), accepted, uniforms, **given).tolist()


def test_probabilities_without_a_bound_leave_nothing_of_their_token() -> None:
    logits, probs = torch.zeros(3, 2, 6), torch.zeros(3, 1, 6)
    probs[:, 0, :5] = torch.inf
    given = {"temperature": torch.ones(3), "draft_ids": torch.zeros(3, 1, dtype=torch.int64)}

    got = residual_pick(logits, torch.zeros(3, dtype=torch.int64), torch.tensor([0.0, 0.5, 0.9]),
                        draft_probs=probs, **given)  # fmt: skip

    assert got.tolist() == [5, 5, 5]


def test_no_sequences_are_no_work() -> None:
    got = residual_pick(torch.empty(0, 3, 9), torch.empty(0, dtype=torch.int64), torch.empty(0),
                        temperature=torch.empty(0))  # fmt: skip

    assert got.shape == (0,)
