"""What quantized linears would launch on real chips: tiles, and the float8 that a chip takes."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from kernels.interface import Fp8Weight, Int4Weight, Int8Weight
from kernels.ops.launching import UnsupportedOnTargetError, recording
from kernels.ops.linear_fp8 import linear_fp8, pack_fp8
from kernels.ops.linear_int8 import linear_int8
from kernels.ops.linear_weight_only import linear_weight_only
from kernels.ops.matmul_tiles import SKINNY_ROWS_MAX
from kernels.reference.linear_int8 import quantize_int8
from kernels.reference.linear_weight_only import quantize_int4
from kernels.targets import find

SKINNY = (1, 2, 4, 5, 8, 17, 32, 33, SKINNY_ROWS_MAX)


def on_meta(*shape: int, dtype: torch.dtype = torch.bfloat16) -> Tensor:
    return torch.empty(shape, dtype=dtype, device="meta")


def weight_of(group_size: int) -> Int8Weight | Int4Weight:
    values = on_meta(4096, 4096)
    return quantize_int4(values, group_size) if group_size else quantize_int8(values)


@pytest.mark.parametrize("arch", ["gfx942", "gfx950"])
@pytest.mark.parametrize("group_size", [0, 128])
def test_weight_is_read_once_for_one_to_64_rows(arch: str, group_size: int) -> None:
    """The same column tiles and parts at every count of rows, and one tile of rows."""
    weight, grids = weight_of(group_size), set()
    for num_rows in SKINNY:
        with recording(arch) as launches:
            linear_weight_only(on_meta(num_rows, 4096), weight)
        assert [each.name.startswith("_matmul") for each in launches] == [True, False], num_rows
        grids.add(launches[0].grid)

    assert len(grids) == 1
    assert grids.pop()[0] >= find(arch).num_cus


def test_parts_of_float_sums_are_the_same_above_64_rows_in_one_program() -> None:
    """What makes a row's sum the same whatever stands beside it."""
    parts = set()
    for num_rows in (5, 64, 65, 2048):
        with recording("gfx942") as launches:
            linear_weight_only(on_meta(num_rows, 4096), weight_of(0))
        is_skinny = num_rows <= SKINNY_ROWS_MAX
        assert len(launches) == (2 if is_skinny else 1)
        values = constants(launches[0])
        assert (values["PARTS_A_PROGRAM"] == 1) == is_skinny
        parts.add(
            launches[0].grid[0] // (4096 // values["BLOCK_N"])
            if is_skinny
            else values["PARTS_A_PROGRAM"]
        )

    assert len(parts) == 1
    assert parts.pop() > 1


def constants(launch: object) -> dict[str, object]:
    names = [parameter.name for parameter in launch.kernel.params]
    return {names[index]: value for (index,), value in launch.constexprs.items()}


def test_int8_digits_share_one_launch_and_one_reading_of_the_weight() -> None:
    with recording("gfx942") as launches:
        linear_int8(on_meta(5, 4096), quantize_int8(on_meta(24576, 4096)))

    assert [each.name for each in launches] == ["_quantize_int8", "_matmul_int8"]


@pytest.mark.parametrize(
    ("arch", "dtype"),
    [
        ("gfx942", torch.float8_e4m3fnuz),
        ("gfx950", torch.float8_e4m3fn),
        ("gfx1201", torch.float8_e4m3fn),
        ("sm_90", torch.float8_e4m3fn),
    ],
)
def test_each_chip_takes_its_own_float8(arch: str, dtype: torch.dtype) -> None:
    with recording(arch) as launches:
        weight = pack_fp8(on_meta(256, 512))
        linear_fp8(on_meta(5, 512), weight)

    kind = {torch.float8_e4m3fnuz: "*fp8e4b8", torch.float8_e4m3fn: "*fp8e4nv"}[dtype]
    assert weight.qweight.dtype == dtype
    product = next(each for each in launches if each.name == "_matmul_fp8")
    assert (product.signature["x"], product.signature["weight"]) == (kind, kind)


def test_float8_of_another_chip_is_refused() -> None:
    weight = Fp8Weight(on_meta(256, 512, dtype=torch.float8_e4m3fn), on_meta(256))

    with recording("gfx942"), pytest.raises(ValueError, match=r"takes torch\.float8_e4m3fnuz"):
        linear_fp8(on_meta(5, 512), weight)


def test_chip_without_float8_is_refused() -> None:
    weight = Fp8Weight(on_meta(256, 512, dtype=torch.float8_e4m3fn), on_meta(256))

    with recording("gfx90a"), pytest.raises(UnsupportedOnTargetError, match="take no float8; use"):
        linear_fp8(on_meta(5, 512), weight)
    with recording("gfx90a"), pytest.raises(UnsupportedOnTargetError, match="take no float8; use"):
        pack_fp8(on_meta(256, 512))
