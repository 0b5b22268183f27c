"""Paged attention in Triton: what its cases cannot say. All under the interpreter."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any

import pytest
import torch
import triton
import triton.language as tl
from torch import Tensor

from kernels.cases.case import Call, Maker
from kernels.cases.paged_attention import Shape
from kernels.ops import attention_plan
from kernels.ops import paged_attention as op
from kernels.ops.attention_plan import Sizes, plan
from kernels.ops.blocks import neighbours_together
from kernels.ops.launching import recording
from kernels.ops.paged_attention import paged_attention
from kernels.reference.paged_attention import paged_attention as reference

SMALL = Shape(
    context_lens=(150, 5), query_len=5, num_heads=2, num_kv_heads=1, head_dim=32, page=8,
    num_splits=2,
)  # fmt: skip


def made(shape: Shape, dtype: torch.dtype = torch.float32) -> Call:
    return shape.make(Maker("cpu"), dtype)


def error(got: Tensor, shape: Shape, call: Call) -> float:
    (want,) = shape.truth(call)
    return float((got.double() - want).abs().max())


@dataclass
class Launches:
    """What was started, and every argument of it, beside running it."""

    names: list[str] = field(default_factory=list)
    given: list[dict[str, Any]] = field(default_factory=list)


@pytest.fixture
def launches(monkeypatch: pytest.MonkeyPatch) -> Launches:
    seen, start = Launches(), op.launch

    def launch(kernel: Any, grid: tuple[int, ...], config: Any, **arguments: Any) -> None:
        seen.names.append(kernel.fn.__name__)
        seen.given.append({"grid": grid, "config": config, **arguments})
        start(kernel, grid, config, **arguments)

    monkeypatch.setattr(op, "launch", launch)
    return seen


def test_split_without_keys_says_so_and_its_sums_are_not_read(launches: Launches) -> None:
    call = made(SMALL)

    got = paged_attention(*call.args, **call.kwargs)

    assert launches.names == ["attention_part", "attention_sum"]
    stats = launches.given[0]["stats"].view(2, 5, 2, 2, 2)  # [S, Q, QH, splits, 2]
    # Five keys fill one tile: the other split has none.
    assert stats[1, :, :, 1].unique(dim=0).unique().tolist() == pytest.approx([-1e30, 0.0])
    assert bool((stats[0, :, :, :, 1] > 0).all())
    launches.given[0]["parts"].view(2, 5, 2, 2, 32)[1, :, :, 1] = torch.nan
    again = launches.given[1]
    again["out"].fill_(torch.nan)
    op.launch(op.attention_sum, again.pop("grid"), again.pop("config"), **again)
    assert error(got, SMALL, call) < 1e-6


@pytest.mark.parametrize("mask", ["causal", "block", "bits"])
@pytest.mark.parametrize("query_len", [1, 5, 9])
def test_any_mask_and_query_length_is_split(launches: Launches, mask: Any, query_len: int) -> None:
    shape = replace(SMALL, mask=mask, query_len=query_len, context_lens=(150,))
    call = made(shape)

    got = paged_attention(*call.args, **call.kwargs)

    assert launches.names == ["attention_part", "attention_sum"]
    assert error(got, shape, call) < 1e-6


def test_number_of_splits_does_not_change_the_result() -> None:
    call = made(replace(SMALL, context_lens=(300,)))
    whole = paged_attention(*call.args, **{**call.kwargs, "num_splits": 1, "out": None})

    for num_splits in (2, 3, 4):
        kwargs = {**call.kwargs, "num_splits": num_splits, "out": None}
        torch.testing.assert_close(
            paged_attention(*call.args, **kwargs), whole, atol=1e-6, rtol=1e-6
        )


def test_splits_are_summed_a_few_at_a_time(
    launches: Launches, monkeypatch: pytest.MonkeyPatch
) -> None:
    """More of them than are taken at once: each by its own largest score."""
    monkeypatch.setattr(op, "SPLITS_AT_ONCE", 2)
    shape = replace(SMALL, context_lens=(300, 5), query_len=1, num_splits=4)
    call = made(shape)

    got = paged_attention(*call.args, **call.kwargs)

    summed = launches.given[1]
    assert (summed["num_splits"], summed["AT_ONCE"]) == (4, 2)
    assert error(got, shape, call) < 1e-6


@pytest.mark.parametrize("page", [8, 64])
def test_pool_beyond_32_bits_is_read_by_wide_offsets(
    launches: Launches, monkeypatch: pytest.MonkeyPatch, page: int
) -> None:
    call = made(replace(SMALL, context_lens=(70,), page=page, num_splits=1))
    want = paged_attention(*call.args, **call.kwargs).clone()
    monkeypatch.setattr(op, "BUFFER_BYTES_MAX", call.args[1].nbytes - 1)

    assert torch.equal(paged_attention(*call.args, **call.kwargs), want)
    assert [each["IS_WIDE"] for each in launches.given] == [False, True]


def test_rows_behind_the_context_are_those_of_the_reference() -> None:
    # A chunk of 5 with 3 real rows: the last two stand behind the end.
    call = made(replace(SMALL, context_lens=(43,), num_splits=1))
    args = (*call.args[:5], torch.tensor([40], dtype=torch.int32))

    got = paged_attention(*args, **call.kwargs)

    kwargs = {**call.kwargs, "out": None}
    torch.testing.assert_close(got, reference(*args, **kwargs), atol=1e-6, rtol=1e-6)


@pytest.mark.parametrize("mask", ["causal", "block", "bits"])
def test_keys_of_a_window_are_split_among_as_many(launches: Launches, mask: Any) -> None:
    shape = replace(SMALL, mask=mask, context_lens=(300, 140), window=150)
    call = made(shape)

    got = paged_attention(*call.args, **call.kwargs)

    assert launches.given[0]["num_splits"] == 2
    assert error(got, shape, call) < 1e-6


@pytest.mark.parametrize("window", [3, 30])
def test_window_in_a_tree_goes_by_places_in_it_not_by_rows(window: int) -> None:
    """Rows near the root with high numbers, beside a branch that is deep and late."""
    shape = replace(SMALL, context_lens=(90,), query_len=40, num_splits=1, window=window)
    call = made(shape)
    words = [1]
    for row in range(1, 40):
        words.append(words[0 if row < 36 else row - 1] | 1 << row)
    kwargs = {**call.kwargs, "mask": "bits", "mask_bits": torch.tensor([words])}

    got = paged_attention(*call.args, **kwargs)

    assert error(got, replace(shape, mask="bits"), Call(call.args, kwargs)) < 1e-6


def test_stale_keys_in_front_of_the_window_do_not_reach_the_result() -> None:
    shape = replace(SMALL, context_lens=(90,), window=9, num_splits=1)
    call = made(shape)
    want = paged_attention(*call.args, **call.kwargs).clone()
    _, keys, values, tables = call.args[:4]
    # A cache with a window gives blocks back that no row will see again.
    for cache in (keys, values):
        cache[tables[0, :9].long()] = torch.nan

    assert torch.equal(paged_attention(*call.args, **call.kwargs), want)


def test_queries_and_results_may_be_parts_of_wider_tensors() -> None:
    call = made(SMALL)
    want = paged_attention(*call.args, **call.kwargs).clone()
    q = call.args[0]
    wide = torch.full((q.shape[0], 4, 32), torch.nan)
    wide[:, 1:3] = q
    out = torch.full((q.shape[0], 3, 32), torch.nan)

    got = paged_attention(wide[:, 1:3], *call.args[1:], **{**call.kwargs, "out": out[:, :2]})

    assert torch.equal(got, want)
    assert torch.equal(out[:, :2], want)
    assert bool(out[:, 2].isnan().all())


def test_queries_whose_entries_are_apart_are_copied() -> None:
    call = made(SMALL)
    want = paged_attention(*call.args, **call.kwargs).clone()
    turned = call.args[0].transpose(1, 2).contiguous().transpose(1, 2)
    assert turned.stride(2) != 1

    assert torch.equal(paged_attention(turned, *call.args[1:], **call.kwargs), want)
    with pytest.raises(ValueError, match="a head's entries must be neighbours"):
        paged_attention(*call.args, **{**call.kwargs, "out": torch.empty_like(turned)})


def test_tables_and_masks_may_be_parts_of_wider_tensors() -> None:
    shape = replace(SMALL, mask="bits", context_lens=(90, 40))
    call = made(shape)
    want = paged_attention(*call.args, **call.kwargs).clone()

    def within(tensor: Tensor) -> Tensor:
        """The same in every second row of one that is as wide again."""
        wide = torch.full((2 * len(tensor), *(2 * size for size in tensor.shape[1:])), -77)
        part = wide.to(tensor.dtype)[::2][tuple(slice(size) for size in tensor.shape)]
        return part.copy_(tensor)

    args = (*call.args[:3], *map(within, call.args[3:]))
    kwargs = {**call.kwargs, "mask_bits": within(call.kwargs["mask_bits"])}
    assert not args[3].is_contiguous()

    assert torch.equal(paged_attention(*args, **kwargs), want)


@pytest.mark.parametrize("scale", [(0.5, 4.0), ((0.5, 2.0), (4.0, 0.25))])
def test_cache_of_8_bits_is_multiplied_by_its_scales(scale: tuple[object, object]) -> None:
    shape = replace(SMALL, context_lens=(41, 9), num_heads=4, num_kv_heads=2, num_splits=1)
    call = made(shape)
    # The interpreter has one of the two encodings.
    caches = [cache.to(torch.float8_e4m3fn) for cache in call.args[1:3]]
    scales = {"k_scale": torch.tensor(scale[0]), "v_scale": torch.tensor(scale[1])}
    args = (call.args[0], *caches, *call.args[3:])

    got = paged_attention(*args, **call.kwargs, **scales)

    want = reference(*args, **{**call.kwargs, "out": None}, **scales)
    torch.testing.assert_close(got, want, atol=5e-6, rtol=2e-6)


def test_group_without_sequences_gives_nothing() -> None:
    call = made(SMALL)
    args = (call.args[0][:0], *call.args[1:3], *(each[:0] for each in call.args[3:]))

    assert paged_attention(*args, **{**call.kwargs, "out": None}).shape == (0, 2, 32)


def test_tables_without_width_give_zeros() -> None:
    call = made(replace(SMALL, context_lens=(5,)))
    args = (*call.args[:3], call.args[3][:, :0], *call.args[4:])

    got = paged_attention(*args, **call.kwargs)

    assert got.unique().tolist() == [0.0]


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"mask": "tree"}, "'tree' is unknown; use causal, block, bits"),
        ({"mask": "bits"}, "needs mask_bits"),
        ({"mask": "bits", "mask_bits": torch.ones(1, 64), "query_len": 64}, "words of 63 bits"),
        ({"mask": "bits", "mask_bits": torch.ones(2, 4)}, r"mask_bits are \[2, 4\], and the rows"),
        ({"query_len": 6}, "10 queries, 6 a sequence, block_tables .* do not fit each other"),
        ({"out": torch.empty(9, 2, 32)}, r"out is \[9, 2, 32\], the queries are \[10, 2, 32\]"),
    ],
    ids=["mask", "no bits", "long", "rows", "lengths", "out"],
)
def test_arguments_that_do_not_fit_are_refused(changes: dict[str, Any], message: str) -> None:
    call = made(SMALL)

    with pytest.raises(ValueError, match=message):
        paged_attention(*call.args, **{**call.kwargs, **changes})


@pytest.mark.parametrize(
    ("cache", "message"),
    [
        ((4, 1, 24, 32), "blocks of 24 keys and heads of 32 have no kernel"),
        ((4, 1, 16, 640), "blocks of 16 keys and heads of 640 have no kernel"),
        ((4, 3, 16, 32), "do not fit each other"),
    ],
)
def test_shapes_without_a_kernel_are_refused(cache: tuple[int, ...], message: str) -> None:
    call = made(SMALL)
    empty = torch.empty(cache)

    with pytest.raises(ValueError, match=message):
        paged_attention(call.args[0], empty, empty, *call.args[3:], **call.kwargs)


def test_cache_that_is_not_contiguous_is_refused() -> None:
    call = made(SMALL)
    cache = torch.empty(4, 1, 8, 64)[..., :32]

    with pytest.raises(ValueError, match="must be contiguous"):
        paged_attention(call.args[0], cache, cache, *call.args[3:], **call.kwargs)


SIZES = Sizes(
    num_sequences=16, query_len=8, num_heads=32, num_kv_heads=8, head_dim=128, itemsize=2,
    num_keys_max=8192, has_tree_window=False,
)  # fmt: skip


@pytest.mark.parametrize(
    ("changes", "num_splits"),
    [
        ({}, 8),  # 128 programs; 608 give each SIMD of 304 units two waves
        ({"num_sequences": 1}, 128),
        ({"num_sequences": 1, "num_keys_max": 2048}, 32),  # 64 keys each
        ({"num_sequences": 128}, 1),  # the chip is full
        ({"num_sequences": 1, "num_keys_max": 512}, 1),  # read before a second launch begins
        ({"num_sequences": 0}, 1),
        ({"num_keys_max": 0}, 1),
    ],
    ids=str,
)
def test_splits_fill_the_chip_and_no_more(changes: dict[str, Any], num_splits: int) -> None:
    with recording("gfx942"):
        assert plan(replace(SIZES, **changes)).num_splits == num_splits


def test_splits_asked_for_are_bounded_by_keys_and_memory() -> None:
    with recording("gfx942"):
        assert plan(SIZES, 3).num_splits == 3
        assert plan(SIZES, 10_000).num_splits == 128
        assert plan(replace(SIZES, num_keys_max=256), 128).num_splits == 4
        long = plan(replace(SIZES, query_len=512), 128)
    assert long.num_splits == attention_plan.PARTS_BYTES_MAX // (16 * 512 * 32 * 128 * 4)


def test_rows_of_a_group_are_one_tile_and_long_prompts_many() -> None:
    with recording("gfx942"):
        assert (plan(SIZES).block_m, plan(SIZES).num_row_tiles) == (32, 1)
        prompt = plan(replace(SIZES, query_len=1000))
    assert (prompt.block_m, prompt.num_row_tiles) == (128, 32)


@triton.jit
def write_place(places, NUM_XCDS: tl.constexpr):
    program = tl.program_id(0)
    tl.store(places + program, neighbours_together(program, tl.num_programs(0), NUM_XCDS))


@pytest.mark.parametrize("num_programs", [1, 7, 8, 64, 77])
def test_neighbours_share_an_xcd_and_each_place_is_given_once(num_programs: int) -> None:
    places = torch.full((num_programs,), -1)

    write_place[(num_programs,)](places, NUM_XCDS=8)

    assert sorted(places.tolist()) == list(range(num_programs))
    for xcd in range(min(8, num_programs)):
        own = places[xcd::8].tolist()
        assert own == list(range(own[0], own[0] + len(own)))
