"""gated_delta in Triton: both ways against float64, hard gates and keys, states in place."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

import kernels.ops.gated_delta as module
from kernels.ops.gated_delta import CHUNKED_ROWS_MIN, HEAD_MAX, gated_delta
from kernels.targets import find

Q = CHUNKED_ROWS_MIN + 9  # one whole chunk, and a part of one
NAMES = ("q", "k", "v", "gate", "beta", "state")


class Given:
    def __init__(self, num_rows: int = Q, s: int = 1, heads: int = 2, d: int = 16) -> None:
        random = torch.Generator().manual_seed(num_rows)

        def made(*shape: int) -> Tensor:
            return torch.randn(*shape, generator=random)

        self.q, self.k, self.v = (made(s, num_rows, heads, d) / d**0.5 for _ in range(3))
        self.gate = -0.3 * made(s, num_rows, heads).abs()
        self.beta = made(s, num_rows, heads).sigmoid()
        self.state = made(s, heads, d, d)

    def run(self, **outs: Any) -> tuple[Tensor, Tensor]:
        return gated_delta(*(getattr(self, name) for name in NAMES), scale=0.3, **outs)

    def exact(self) -> tuple[Tensor, Tensor]:
        """Results, and the state after every row."""
        q, k, v, gate, beta, state = (getattr(self, name).double() for name in NAMES)
        results, states = [], []
        for row in range(q.shape[1]):
            state = state * gate[:, row].exp()[..., None, None]
            change = v[:, row] - torch.einsum("shde,shd->she", state, k[:, row])
            change = change * beta[:, row].unsqueeze(2)
            state = state + torch.einsum("shd,she->shde", k[:, row], change)
            results.append(torch.einsum("shde,shd->she", state, q[:, row]) * 0.3)
            states.append(state)
        return torch.stack(results, dim=1), torch.stack(states, dim=1)

    def check(self) -> None:
        (results, state), (want, states) = self.run(), self.exact()
        for got, truth in ((results, want), (state, states[:, -1])):
            assert float((got.double() - truth).abs().max() / truth.abs().max()) < 1e-5


@pytest.fixture
def launched(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The names of the kernels that are launched."""
    names: list[str] = []
    launch = module.launch

    def noted(kernel: Any, *args: Any, **kwargs: Any) -> None:
        names.append(kernel.fn.__name__)
        launch(kernel, *args, **kwargs)

    monkeypatch.setattr(module, "launch", noted)
    return names


def test_the_number_of_rows_chooses_the_way(launched: list[str]) -> None:
    Given(CHUNKED_ROWS_MIN - 1).check()
    assert launched == ["delta_rows"]
    Given(CHUNKED_ROWS_MIN).check()
    assert launched == ["delta_rows", "chunk_parts", "chunk_scan"]


def test_a_gpu_without_float32_matrix_units_goes_row_by_row(
    launched: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "current_target", lambda: find("gfx1201"))

    Given().check()

    assert launched == ["delta_rows"]


def test_every_rows_state_is_given_however_many_rows(launched: list[str]) -> None:
    given = Given()
    every = torch.full((1, Q, 2, 16, 16), torch.nan)

    results, got = given.run(state_out=every)

    assert launched == ["delta_rows"]
    assert got is every
    want, states = given.exact()
    torch.testing.assert_close(every.double(), states, atol=1e-5, rtol=1e-5)
    torch.testing.assert_close(results.double(), want, atol=1e-5, rtol=1e-5)


def test_chunks_stand_keys_that_are_all_the_same() -> None:
    # Powers of the triangular matrix reach 10**18 here, and its inverse only 1.
    given = Given()
    given.k[:] = torch.nn.functional.normalize(given.k[:, :1], dim=3)
    given.gate[:], given.beta[:] = 0.0, 1.0

    given.check()


@pytest.mark.parametrize("strength", [20.0, 500.0, torch.inf])
def test_chunks_stand_gates_that_shut(strength: float) -> None:
    given = Given()
    given.gate[:, 5::9] = -strength

    given.check()


@pytest.mark.parametrize("num_rows", [1, 5, Q])
def test_padding_leaves_the_state_alone(num_rows: int) -> None:
    given = Given(num_rows)
    given.gate[:], given.beta[:] = 0.0, 0.0

    assert torch.equal(given.run()[1], given.state)


@pytest.mark.parametrize("num_rows", [3, Q])
def test_results_and_state_are_written_where_they_are_wanted(num_rows: int) -> None:
    given, plain = Given(num_rows), Given(num_rows).run()
    out = torch.full((1, num_rows, 2, 32), torch.nan)[..., ::2]

    results, state = given.run(out=out, state_out=given.state)

    assert results is out
    assert state is given.state
    assert torch.equal(out, plain[0])
    assert torch.equal(state, plain[1])


@pytest.mark.parametrize("num_rows", [3, Q])
def test_heads_of_fused_rows_and_states_of_a_pool(num_rows: int) -> None:
    given, want = Given(num_rows, s=2), Given(num_rows, s=2).run()
    fused = torch.cat([each.flatten(2) for each in (given.q, given.k, given.v)], dim=2)
    given.q, given.k, given.v = (
        each.unflatten(2, (2, 16)) for each in fused.split(32, dim=2)
    )  # fmt: skip
    pool = torch.stack([given.state, torch.full_like(given.state, torch.nan)], dim=1)
    given.state = pool[:, 0]

    got = given.run(state_out=pool[:, 1])

    assert torch.equal(got[0], want[0])
    assert torch.equal(pool[:, 1], want[1])


def test_rows_one_by_one_or_in_parts_come_to_the_same() -> None:
    whole, given = Given().run(), Given()
    parts, first = [], 0
    for rows in (68, 1, Q - 69):
        part = Given()
        for name in NAMES[:5]:
            setattr(part, name, getattr(given, name)[:, first : first + rows])
        part.state = given.state
        result, given.state = part.run()
        parts.append(result)
        first += rows

    torch.testing.assert_close(torch.cat(parts, dim=1), whole[0], atol=1e-5, rtol=1e-5)
    torch.testing.assert_close(given.state, whole[1], atol=1e-5, rtol=1e-5)


def test_no_sequences_and_no_rows() -> None:
    assert Given(3, s=0).run()[0].shape == (0, 3, 2, 16)
    empty = Given(0)
    assert torch.equal(empty.run()[1], empty.state)


def test_heads_too_wide_for_registers_are_refused() -> None:
    with pytest.raises(ValueError, match=f"at most {HEAD_MAX} values, not 512"):
        Given(1, d=512).run()
