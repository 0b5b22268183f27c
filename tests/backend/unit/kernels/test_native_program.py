"""Native calls repeated without the interpreter: the same work on the same memory, or none."""

from __future__ import annotations

from collections.abc import Callable
from threading import Thread

import pytest
import torch

from tests.support.native_kernels import native_ops

pytestmark = pytest.mark.compiler

WEIGHT = torch.tensor([1.0, 2.0])


def captured(work: Callable[[], None]) -> Callable[[], bool] | None:
    repeat: Callable[[], bool] | None = native_ops()["capture"](work)
    return repeat


def norm(x: torch.Tensor, out: torch.Tensor) -> None:
    native_ops()["rms_norm"](x, WEIGHT, eps=0.0, out=out, residual_out=x)


def test_what_was_done_is_done_again_with_what_is_there_then() -> None:
    x, middle, out = (torch.tensor([[3.0, 4.0]]) for _ in range(3))

    def work() -> None:
        norm(x, middle)
        native_ops()["gated_mul"](middle, out=out[:, :1])

    repeat = captured(work)
    first = out.clone()
    x.copy_(torch.tensor([[-1.0, 2.0]]))
    expected_middle = native_ops()["rms_norm"](x, WEIGHT, eps=0.0)[0]
    expected = native_ops()["gated_mul"](expected_middle)

    assert repeat is not None
    assert repeat()
    assert out[0, 0] == expected[0, 0]
    assert out[0, 0] != first[0, 0]


def test_nothing_runs_when_nothing_was_recorded() -> None:
    repeat = captured(lambda: None)

    assert repeat is not None
    assert repeat()


def test_work_of_torch_cannot_be_repeated() -> None:
    x, out = torch.tensor([[3.0, 4.0]]), torch.zeros(1, 2)

    def work() -> None:
        norm(x, out)
        out.add_(1.0)

    assert captured(work) is None
    assert out[0, 0] > 1.0  # but it was done


def test_a_copy_that_is_called_a_view_cannot_be_repeated() -> None:
    wide = torch.arange(8.0).view(2, 4)

    def work() -> None:
        with torch.inference_mode():
            norm(wide.t().reshape(4, 2), torch.empty(4, 2))

    assert captured(work) is None


def test_an_op_that_falls_back_to_torch_cannot_be_repeated() -> None:
    x = torch.ones(1, 2, dtype=torch.float64)

    assert captured(lambda: norm(x, torch.empty_like(x))) is None


def test_a_failing_op_says_so_and_ends_the_work() -> None:
    cos_sin = torch.tensor([[1.0, 0.0], [0.0, 1.0]])
    k_cache, v_cache = torch.zeros(2, 1, 2, 2), torch.zeros(2, 1, 2, 2)
    qkv, q_out = torch.ones(1, 6), torch.zeros(1, 1, 2)
    position, slot = torch.tensor([1]), torch.tensor([3])
    x, out = torch.tensor([[3.0, 4.0]]), torch.zeros(1, 2)

    def work() -> None:
        native_ops()["rope_kv_write"](
            *(qkv, position, cos_sin, slot, k_cache, v_cache),
            num_heads=1,
            rotary_dim=2,
            q_out=q_out,
        )
        norm(x, out)

    repeat = captured(work)
    assert repeat is not None
    out.zero_()
    position.fill_(7)

    assert not repeat()
    assert not out.any()


def test_an_error_in_the_work_comes_out_and_recording_ends() -> None:
    def work() -> None:
        raise RuntimeError("no")

    with pytest.raises(RuntimeError, match="no"):
        captured(work)

    out = torch.zeros(1, 2)
    norm(torch.tensor([[3.0, 4.0]]), out)
    assert out.any()


def test_what_another_thread_does_meanwhile_is_not_recorded() -> None:
    theirs_x, theirs = torch.tensor([[3.0, 4.0]]), torch.zeros(1, 2)
    x, out = torch.tensor([[3.0, 4.0]]), torch.zeros(1, 2)

    def work() -> None:
        other = Thread(target=norm, args=(theirs_x, theirs))
        other.start()
        other.join()
        norm(x, out)

    repeat = captured(work)
    theirs.zero_()
    out.zero_()

    assert repeat is not None
    assert repeat()
    assert out.any()
    assert not theirs.any()


def test_memory_that_the_work_asks_for_is_used_again() -> None:
    x, results = torch.tensor([[3.0, 4.0]]), []

    def work() -> None:
        normed = native_ops()["rms_norm"](x, WEIGHT, eps=0.0)[0]
        results.append(native_ops()["gated_mul"](normed))

    repeat = captured(work)
    taken = [torch.full((1, size), 7.0) for size in (1, 2) for _ in range(50)]
    x.copy_(torch.tensor([[-1.0, 2.0]]))
    normed = native_ops()["rms_norm"](x, WEIGHT, eps=0.0)[0]

    assert repeat is not None
    assert repeat()
    assert torch.equal(results[0], native_ops()["gated_mul"](normed))
    # What was between lay in memory that nobody was given meanwhile.
    assert all((each == 7.0).all() for each in taken)
