"""moe_matmul and gated_delta against loops in float64."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from kernels.reference.gated_delta import gated_delta
from kernels.reference.moe_matmul import moe_matmul

EXPERTS, CHOSEN, K, N = 8, 2, 24, 20
S, Q, HEADS, D, DV = 2, 5, 3, 8, 6


def made(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def routed(rows: int) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    scores = made(rows, EXPERTS, seed=2).softmax(dim=1).topk(CHOSEN, dim=1)
    return made(rows, K), made(EXPERTS, N, K, seed=1), scores.indices, scores.values


def mixed(x: Tensor, weight: Tensor, ids: Tensor, factors: Tensor) -> Tensor:
    rows = [
        sum(
            factors[row, place].double() * (weight[ids[row, place]].double() @ x[row].double())
            for place in range(ids.shape[1])
        )
        for row in range(x.shape[0])
    ]
    return torch.stack(rows)


@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float32, 1e-5), (torch.bfloat16, 0.05)])
@pytest.mark.parametrize("rows", [1, 4, 5, 30])  # both ways to the weights
def test_experts_are_weighted_and_summed(rows: int, dtype: torch.dtype, tolerance: float) -> None:
    x, weight, ids, factors = routed(rows)
    x, weight = x.to(dtype), weight.to(dtype)
    out = torch.full((rows, N), torch.nan, dtype=dtype)

    got = moe_matmul(x, weight, ids, factors, out=out)

    assert got is out
    torch.testing.assert_close(
        got.double(), mixed(x, weight, ids, factors), atol=tolerance, rtol=tolerance
    )


@pytest.mark.parametrize("rows", [2, 30])
def test_one_expert_of_weight_one_is_the_plain_product(rows: int) -> None:
    x, weight, ids, _ = routed(rows)

    got = moe_matmul(x, weight, ids[:, :1], torch.ones(rows, 1))

    want = torch.stack([weight[ids[row, 0]] @ x[row] for row in range(rows)])
    torch.testing.assert_close(got, want)


@pytest.mark.parametrize("rows", [2, 30])
def test_expert_that_was_not_chosen_cannot_spoil_a_row(rows: int) -> None:
    x, weight, ids, factors = routed(rows)
    want = moe_matmul(x, weight, ids % (EXPERTS - 1), factors)
    weight[EXPERTS - 1] = torch.nan

    assert torch.equal(moe_matmul(x, weight, ids % (EXPERTS - 1), factors), want)


class Delta:
    def __init__(self) -> None:
        self.q, self.k = made(S, Q, HEADS, D), made(S, Q, HEADS, D, seed=1) / D**0.5
        self.v = made(S, Q, HEADS, DV, seed=2)
        self.gate = -made(S, Q, HEADS, seed=3).abs()
        self.beta = made(S, Q, HEADS, seed=4).sigmoid()
        self.state = made(S, HEADS, D, DV, seed=5)

    def run(self, **outs: Tensor) -> tuple[Tensor, Tensor]:
        given = (self.q, self.k, self.v, self.gate, self.beta, self.state)
        return gated_delta(*given, scale=0.3, **outs)

    def exact(self) -> tuple[Tensor, Tensor]:
        """Equation 10 as it stands, with a matrix per head: results, and the state of each row."""
        results = torch.zeros(S, Q, HEADS, DV, dtype=torch.float64)
        states = torch.zeros(S, Q, HEADS, D, DV, dtype=torch.float64)
        for s in range(S):
            for h in range(HEADS):
                state = self.state[s, h].double().t()  # [DV, D], as the paper has it
                for row in range(Q):
                    key, value = self.k[s, row, h].double(), self.v[s, row, h].double()
                    alpha, beta = self.gate[s, row, h].double().exp(), self.beta[s, row, h].double()
                    erased = torch.eye(D, dtype=torch.float64) - beta * torch.outer(key, key)
                    state = state @ (alpha * erased) + beta * torch.outer(value, key)
                    results[s, row, h] = state @ self.q[s, row, h].double() * 0.3
                    states[s, row, h] = state.t()
        return results, states


def close(got: Tensor, want: Tensor) -> None:
    torch.testing.assert_close(got.double(), want, atol=2e-5, rtol=2e-5)


def test_delta_rule_is_the_papers() -> None:
    case = Delta()
    results, states = case.exact()

    got, state = case.run()

    close(got, results)
    close(state, states[:, -1])


def test_delta_rule_goes_on_from_its_state() -> None:
    case, whole = Delta(), Delta().run()
    parts = []
    for rows in (slice(0, 2), slice(2, 5)):
        part = Delta()
        for name in ("q", "k", "v", "gate", "beta"):
            setattr(part, name, getattr(case, name)[:, rows])
        part.state = case.state
        result, case.state = part.run()
        parts.append(result)

    assert torch.equal(torch.cat(parts, dim=1), whole[0])
    assert torch.equal(case.state, whole[1])


def test_delta_rule_writes_where_it_is_wanted() -> None:
    case, (results, state) = Delta(), Delta().run()
    out = torch.full((S, Q, HEADS, DV), torch.nan)

    got, new_state = case.run(out=out, state_out=case.state)

    assert got is out
    assert new_state is case.state
    assert torch.equal(out, results)
    assert torch.equal(case.state, state)


def test_delta_rule_gives_the_state_of_every_row() -> None:
    case = Delta()
    every = torch.full((S, Q, HEADS, D, DV), torch.nan)

    _, got = case.run(state_out=every)

    assert got is every
    close(every, case.exact()[1])


def test_row_of_padding_leaves_the_state_alone() -> None:
    case = Delta()
    case.gate[:, 3:] = 0.0
    case.beta[:, 3:] = 0.0
    every = torch.empty(S, Q, HEADS, D, DV)

    _, states = case.run(state_out=every)

    assert torch.equal(states[:, 4], states[:, 2])
