"""rope_kv_write in Triton: what becomes of the cache. All under the interpreter."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor

from kernels.cases.case import Call, Maker
from kernels.cases.rope_kv_write import Shape, turned
from kernels.ops.rope_kv_write import rope_kv_write

SMALL = Shape(num_rows=5, num_heads=4, num_kv_heads=2, head_dim=32, rotary_dim=32, page=8)
UNTOUCHED = 7.0


def made(shape: Shape = SMALL, dtype: torch.dtype = torch.float32) -> Call:
    call = shape.make(Maker("cpu"), dtype)
    for cache in call.args[4:6]:
        cache.fill_(UNTOUCHED)
    return call


def keys_and_values(shape: Shape, call: Call) -> tuple[Tensor, Tensor]:
    """float64 [R, KH, D] each, before any scale."""
    qkv, positions, cos_sin = call.args[:3]
    heads = qkv.view(shape.num_rows, -1, shape.head_dim)[:, shape.num_heads :].double()
    keys, values = heads.split(shape.num_kv_heads, dim=1)
    norm = call.kwargs["k_norm"]
    return turned(keys, cos_sin[positions], norm, shape.is_interleaved), values


def at_slots(cache: Tensor, slots: Tensor) -> Tensor:
    page = cache.shape[2]
    return cache[slots // page, :, slots % page].double()


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"is_interleaved": True},
        {"rotary_dim": 8},
        {"rotary_dim": 24, "is_interleaved": True, "has_norms": False},
        {"rotary_dim": 0},
        {"num_heads": 0},
        {"head_dim": 80, "rotary_dim": 80, "num_kv_heads": 3, "page": 24},
    ],
    ids=str,
)
def test_keys_are_turned_into_their_slots_and_values_copied(changes: dict[str, Any]) -> None:
    shape = replace(SMALL, **changes)
    call = made(shape)
    slots = call.args[3]
    keys, values = keys_and_values(shape, call)

    got = rope_kv_write(*call.args, **call.kwargs)

    assert got is call.kwargs["q_out"]
    torch.testing.assert_close(at_slots(call.args[4], slots), keys, atol=2e-6, rtol=2e-6)
    assert torch.equal(at_slots(call.args[5], slots), values)
    for cache in call.args[4:6]:
        num_written = shape.num_rows * shape.num_kv_heads * shape.head_dim
        assert int((cache == UNTOUCHED).sum()) == cache.numel() - num_written


def test_row_of_a_negative_slot_writes_nothing_but_gives_its_queries() -> None:
    call = made()
    want = rope_kv_write(*call.args, **call.kwargs).clone()
    skipping = made()
    skipping.args[3][2] = -1

    got = rope_kv_write(*skipping.args, **skipping.kwargs)

    assert torch.equal(got, want)
    slot = call.args[3][2]
    for cache, whole in zip(skipping.args[4:6], call.args[4:6], strict=True):
        assert bool((at_slots(cache, slot[None]) == UNTOUCHED).all())
        restored = cache.clone()
        restored[slot // 8, :, slot % 8] = whole[slot // 8, :, slot % 8]
        assert torch.equal(restored, whole)


@pytest.mark.parametrize("scale", [2.0, (0.5, 4.0)], ids=str)
def test_cache_of_8_bits_holds_what_was_divided_by_its_scale(scale: object) -> None:
    # Numbers that 8 bits hold, neither normed nor turned: the interpreter rounds others wrongly.
    shape = replace(SMALL, has_norms=False, rotary_dim=0)
    call = made(shape)
    call.args[0].copy_((call.args[0] * 2).round() / 2)
    caches = [torch.zeros(each.shape).to(torch.float8_e4m3fn) for each in call.args[4:6]]
    scales = torch.tensor(scale)

    kwargs = {**call.kwargs, "k_scale": scales, "v_scale": scales}
    rope_kv_write(*call.args[:4], *caches, **kwargs)

    for cache, want in zip(caches, keys_and_values(shape, call), strict=True):
        divided = (want / scales.double().reshape(-1, 1)).float().to(torch.float8_e4m3fn)
        assert torch.equal(at_slots(cache.float(), call.args[3]), divided.double())


def test_what_does_not_fit_into_8_bits_becomes_the_largest_number() -> None:
    call = made(replace(SMALL, has_norms=False))
    caches = [torch.zeros(each.shape).to(torch.float8_e4m3fn) for each in call.args[4:6]]
    tiny = torch.tensor(1e-12)

    kwargs = {**call.kwargs, "k_scale": tiny, "v_scale": tiny}
    rope_kv_write(*call.args[:4], *caches, **kwargs)

    for cache in caches:
        assert at_slots(cache.float(), call.args[3]).abs().unique().tolist() == [448.0]


def test_one_norm_alone_norms_its_own_heads_only() -> None:
    call = made()
    both = rope_kv_write(*call.args, **call.kwargs).clone()
    keys = call.args[4].clone()

    without = {**call.kwargs, "k_norm": None}
    assert torch.equal(rope_kv_write(*call.args, **without), both)
    assert not torch.equal(call.args[4], keys)


def test_rows_and_results_may_be_parts_of_wider_tensors() -> None:
    call = made()
    want = rope_kv_write(*call.args, **call.kwargs).clone()
    qkv = call.args[0]
    wide = torch.full((5, qkv.shape[1] + 16), torch.nan)
    wide[:, : qkv.shape[1]] = qkv
    out = torch.full((5, 6, 32), torch.nan)

    kwargs = {**call.kwargs, "q_out": out[:, 1:5]}
    rope_kv_write(wide[:, : qkv.shape[1]], *call.args[1:], **kwargs)

    assert torch.equal(out[:, 1:5], want)
    assert bool(out[:, 0].isnan().all() and out[:, 5].isnan().all())


def test_rows_whose_values_are_apart_are_copied() -> None:
    call = made()
    want = rope_kv_write(*call.args, **call.kwargs).clone()
    qkv, positions, cos_sin, slots = call.args[:4]
    turned_rows = qkv.t().contiguous().t()
    apart = [torch.stack((each, each - 3), dim=1)[:, 0] for each in (positions, slots)]
    assert turned_rows.stride(1) != 1
    assert apart[0].stride() == (2,)

    args = (turned_rows, apart[0], cos_sin, apart[1], *call.args[4:])
    assert torch.equal(rope_kv_write(*args, **call.kwargs), want)


def test_inputs_stay_as_they_are() -> None:
    call = made()
    before = call.args[0].clone()

    rope_kv_write(*call.args, **call.kwargs)

    assert torch.equal(call.args[0], before)


def test_table_and_cache_that_do_not_fit_are_refused() -> None:
    call = made()
    wide = torch.empty(5, 2, 8, 64)[..., :32]

    with pytest.raises(ValueError, match=r"cos_sin \[4096, 32\] is no contiguous table of 16"):
        rope_kv_write(*call.args, **{**call.kwargs, "rotary_dim": 16})
    with pytest.raises(ValueError, match="must be contiguous"):
        rope_kv_write(*call.args[:4], wide, wide, **call.kwargs)
    for out in (torch.empty(4, 4, 32), torch.empty(5, 4, 64)[..., ::2]):
        with pytest.raises(
            ValueError, match=r"must be \[5, 4, 32\], a head's entries side by side"
        ):
            rope_kv_write(*call.args, **{**call.kwargs, "q_out": out})
    with pytest.raises(ValueError, match=r"kv_slots \[3\] must be"):
        rope_kv_write(*call.args[:3], call.args[3][:3], *call.args[4:], **call.kwargs)
