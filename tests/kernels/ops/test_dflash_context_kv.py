"""dflash_context_kv in Triton: what its cases cannot say. All under the interpreter."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from kernels.cases.case import Call, Maker
from kernels.cases.dflash_context_kv import Shape
from kernels.ops import dflash_context_kv as op
from kernels.ops.dflash_context_kv import dflash_context_kv
from kernels.reference.dflash_context_kv import dflash_context_kv as reference

SMALL = Shape(
    num_rows=5, num_layers=3, hidden=64, num_kv_heads=2, head_dim=32, rotary_dim=32, page=8
)  # fmt: skip


def made(shape: Shape = SMALL) -> Call:
    return shape.make(Maker("cpu"), torch.float32)


def test_all_layers_take_one_launch(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[str] = []
    monkeypatch.setattr(op, "launch", lambda kernel, *_, **__: seen.append(kernel.fn.__name__))
    call = made()

    dflash_context_kv(*call.args, **call.kwargs)

    assert seen == ["project_and_write"]


def test_caches_are_those_of_the_reference() -> None:
    call, want = made(), made()

    got = dflash_context_kv(*call.args, **call.kwargs)

    assert got[0] is call.kwargs["k_caches"]
    assert got[1] is call.kwargs["v_caches"]
    for given, wanted in zip(got, reference(*want.args, **want.kwargs), strict=True):
        torch.testing.assert_close(given, wanted, atol=5e-6, rtol=5e-6)


def test_rows_and_norms_may_be_parts_of_wider_tensors() -> None:
    call, want = made(), made()
    wanted = dflash_context_kv(*want.args, **want.kwargs)
    states, weight, positions, cos_sin, slots = call.args
    apart = [torch.stack((each, each - 3), dim=1)[:, 0] for each in (positions, slots)]
    norm = torch.cat((call.kwargs["k_norm"], call.kwargs["k_norm"]), dim=1)[:, :32]
    assert not norm.is_contiguous()

    got = dflash_context_kv(
        states, weight, apart[0], cos_sin, apart[1], **{**call.kwargs, "k_norm": norm}
    )

    assert all(torch.equal(a, b) for a, b in zip(got, wanted, strict=True))


def test_layers_may_lie_apart() -> None:
    call, want = made(), made()
    wide = [torch.cat((cache, cache), dim=1) for cache in want.kwargs.values() if _is_cache(cache)]
    num_blocks = want.kwargs["k_caches"].shape[1]
    parts = {
        name: cache[:, :num_blocks]
        for name, cache in zip(("k_caches", "v_caches"), wide, strict=True)
    }

    got = dflash_context_kv(*want.args, **{**want.kwargs, **parts})

    wanted = dflash_context_kv(*call.args, **call.kwargs)
    assert all(torch.equal(a, b) for a, b in zip(got, wanted, strict=True))


def _is_cache(value: object) -> bool:
    return isinstance(value, torch.Tensor) and value.dim() == 5


def test_row_of_a_negative_slot_writes_nothing() -> None:
    call = made()
    before = call.kwargs["k_caches"].clone(), call.kwargs["v_caches"].clone()
    call.args[4].fill_(-1)

    got = dflash_context_kv(*call.args, **call.kwargs)

    assert all(torch.equal(a, b) for a, b in zip(got, before, strict=True))


def test_no_rows_are_no_launch() -> None:
    call = made()
    states, weight, positions, cos_sin, slots = call.args
    before = call.kwargs["k_caches"].clone()

    dflash_context_kv(states[:0], weight, positions[:0], cos_sin, slots[:0], **call.kwargs)

    assert torch.equal(call.kwargs["k_caches"], before)


def test_many_rows_are_those_of_few() -> None:
    shape = replace(SMALL, num_rows=140, num_layers=1, num_kv_heads=1)
    call, apart = made(shape), made(shape)
    whole = dflash_context_kv(*call.args, **call.kwargs)

    for begin in range(0, 140, 70):
        part = slice(begin, begin + 70)
        states, weight, positions, cos_sin, slots = apart.args
        dflash_context_kv(
            states[part], weight, positions[part], cos_sin, slots[part], **apart.kwargs
        )

    torch.testing.assert_close(apart.kwargs["k_caches"], whole[0], atol=1e-6, rtol=1e-6)
    torch.testing.assert_close(apart.kwargs["v_caches"], whole[1], atol=1e-6, rtol=1e-6)


def test_tensors_that_do_not_fit_are_refused() -> None:
    call = made()
    states, weight, *rest = call.args

    with pytest.raises(ValueError, match=r"the weight must be \[384, 64\], cos_sin 32 wide"):
        dflash_context_kv(states, weight[1:], *rest, **call.kwargs)
    with pytest.raises(ValueError, match="states must be contiguous"):
        dflash_context_kv(states.t().contiguous().t(), weight, *rest, **call.kwargs)
    caches = {**call.kwargs, "v_caches": call.kwargs["v_caches"][:, 1:]}
    with pytest.raises(ValueError, match="must be of one layout"):
        dflash_context_kv(states, weight, *rest, **caches)
