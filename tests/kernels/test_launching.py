"""What is written down of a launch is what triton's own launcher would derive."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import pytest
import torch
import triton
import triton.language as tl
from triton._C.libtriton import native_specialize_impl
from triton.backends.amd.compiler import HIPBackend
from triton.backends.nvidia.compiler import CUDABackend

from kernels.ops import launching
from kernels.ops.launching import BUFFER_BYTES_MAX, Config, current_target, launch, recording
from kernels.targets import find

FP8 = {"gfx942": torch.float8_e4m3fnuz, "gfx950": torch.float8_e4m3fn}


@triton.jit
def _scaled(x, y, n, factor, bias, TILE: tl.constexpr, HAS_MORE: tl.constexpr = False):  # type: ignore[no-untyped-def]
    i = tl.program_id(0) * TILE + tl.arange(0, TILE)
    v = tl.load(x + i, mask=i < n, other=0.0).to(tl.float32) * factor
    if bias is not None:
        v += tl.load(bias + i, mask=i < n, other=0.0)
    tl.store(y + i, v, mask=i < n)


def empty(*shape: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    return torch.empty(shape, dtype=dtype, device="meta")


def index_of(name: str) -> tuple[int]:
    return (next(p.num for p in _scaled.params if p.name == name),)


def written(arch: str = "gfx942", **arguments: object) -> object:
    given = {
        **dict(x=empty(100, dtype=torch.bfloat16), y=empty(100), n=100, factor=0.5, bias=None),
        **dict(TILE=128, **arguments),
    }
    with recording(arch) as launches:
        launch(_scaled, (1,), Config(num_warps=2, nonkdim=16, waves_per_eu=2), **given)
    [found] = launches
    return found


def test_types_constants_and_defaults_are_written_down() -> None:
    found = written()

    assert found.name == "_scaled"
    assert found.grid == (1,)
    assert dict(found.signature) == {
        **dict(x="*bf16", y="*fp32", n="i32", factor="fp32"),
        **dict(bias="constexpr", TILE="constexpr", HAS_MORE="constexpr"),
    }
    assert dict(found.constexprs) == {
        index_of("bias"): None,
        index_of("TILE"): 128,
        index_of("HAS_MORE"): False,
    }


@pytest.mark.parametrize(
    ("value", "kind"), [(100, "i32"), (2**31, "i64"), (-(2**31), "i32"), (1, "constexpr")]
)
def test_integer_takes_the_width_it_needs_and_one_is_a_constant(value: int, kind: str) -> None:
    assert written(n=value).signature["n"] == kind


def test_promises_are_of_alignment_and_of_reach() -> None:
    found = written(n=96)
    aligned, in_reach = ["tt.divisibility", 16], ["tt.pointer_range", 32]

    assert found.attrs[index_of("x")] == [aligned, in_reach]
    assert found.attrs[index_of("n")] == [aligned]
    assert index_of("n") not in written(n=100).attrs
    assert written("sm_90").attrs[index_of("x")] == [aligned]


@pytest.mark.parametrize(
    ("arch", "backend"), [("gfx942", HIPBackend), ("sm_90", CUDABackend)], ids=["amd", "nvidia"]
)
@pytest.mark.parametrize(
    "value",
    [
        *(torch.empty(4, dtype=kind) for kind in (torch.bool, torch.uint8, torch.float8_e4m3fnuz)),
        *(torch.empty(num_bytes, dtype=torch.int8) for num_bytes in (2**31 - 1, 2**31)),
        *(0, 1, -16, 100, 2**31, 2**35, True, 0.5, None),
    ],
    ids=lambda value: f"{value.dtype} {value.numel()}" if isinstance(value, torch.Tensor) else None,
)
def test_argument_is_written_down_as_tritons_launcher_sees_it(
    arch: str, backend: type, value: object
) -> None:
    kind, promise = native_specialize_impl(backend, value, False, True, True)
    promises = {"D": ["tt.divisibility", 16], "S": ["tt.pointer_range", 32]}

    found = written(arch, bias=value)

    assert found.signature["bias"] == kind
    if kind != "constexpr":
        wanted = [promises[letter] for letter in promise or ""]
        assert found.attrs.get(index_of("bias"), []) == wanted


def test_pool_beyond_a_buffers_reach_is_not_promised_to_be_in_it() -> None:
    pool = empty(BUFFER_BYTES_MAX // 2 + 1, dtype=torch.bfloat16)

    assert written(x=pool).attrs[index_of("x")] == [["tt.divisibility", 16]]
    # A view is as far from the start of its storage as the storage is large.
    assert written(x=pool[:10]).attrs[index_of("x")] == [["tt.divisibility", 16]]


@pytest.mark.parametrize("arch", ["gfx942", "gfx950"])
def test_fp8_is_written_as_the_tensors_own_type(arch: str) -> None:
    kind = {"gfx942": "*fp8e4b8", "gfx950": "*fp8e4nv"}[arch]

    assert written(arch, x=empty(100, dtype=FP8[arch])).signature["x"] == kind


def test_options_of_amd_stay_with_amd() -> None:
    amd = {"num_warps": 2, "num_stages": 2, "waves_per_eu": 2, "matrix_instr_nonkdim": 16}

    assert written("gfx950").options == amd
    assert written("sm_90").options == {"num_warps": 2, "num_stages": 2}
    assert Config().options(find("gfx942")) == {"num_warps": 4, "num_stages": 2}


def test_recordings_nest_and_end() -> None:
    with recording("gfx942") as outer:
        with recording("gfx950") as inner:
            assert current_target().arch == "gfx950"
            launch(_scaled, (1,), Config(), x=empty(8), y=empty(8), n=8, factor=1.0, TILE=8)
        assert current_target().arch == "gfx942"

    assert (len(outer), len(inner)) == (0, 1)


class OnSecondGpu(torch.Tensor):
    """What a launch asks of a tensor there."""

    is_cuda = True
    device = torch.device("cuda", 1)


@pytest.mark.parametrize(("current", "made_current"), [(0, [OnSecondGpu.device]), (1, [])])
def test_kernel_starts_on_the_gpu_of_its_tensors(
    monkeypatch: pytest.MonkeyPatch, current: int, made_current: list[torch.device]
) -> None:
    entered: list[torch.device] = []
    started: list[tuple[object, int]] = []

    @contextmanager
    def on(device: torch.device) -> Iterator[None]:
        entered.append(device)
        yield

    def start(**arguments: object) -> None:
        started.append((arguments["x"], len(entered)))

    monkeypatch.setattr(torch.cuda, "device", on)
    monkeypatch.setattr(torch.cuda, "current_device", lambda: current)
    monkeypatch.setattr(launching, "_target_of", lambda device: find("gfx942"))
    there = torch.empty(4).as_subclass(OnSecondGpu)

    launch({(2,): start}, (2,), Config(), n=1, x=there)
    launch({}, (0,), Config(), x=there)

    assert entered == made_current
    assert started == [(there, len(made_current))]
