"""The gated delta rule in Triton: row after row for decode and verify, in chunks for prefill."""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from kernels.ops.configs import tuned
from kernels.ops.delta_chunks import chunk_parts, chunk_scan
from kernels.ops.launching import Config, current_target, launch
from kernels.targets import Target

HEAD_MAX = 256  # columns of a state held in registers
CHUNK = 64
CHUNKED_ROWS_MIN = 64  # fewer are done sooner one after the other


@triton.jit(do_not_specialize=["num_rows"])
def delta_rows(
    q, k, v, gate, beta, state, out, state_out, scale, num_rows, num_heads, q_sequence_stride,
    q_row_stride, q_head_stride, k_sequence_stride, k_row_stride, k_head_stride,
    v_sequence_stride, v_row_stride, v_head_stride, out_sequence_stride, out_row_stride,
    out_head_stride, state_stride, state_out_stride, state_row_stride, D: tl.constexpr,
    DV: tl.constexpr, BLOCK_D: tl.constexpr, WIDTH: tl.constexpr, IS_EVERY_STATE: tl.constexpr,
) -> None:  # fmt: skip
    """`WIDTH` columns of one head's state, through all rows of its sequence (equation 10)."""
    head = tl.program_id(0)
    sequence = (head // num_heads).to(tl.int64)
    own = head % num_heads
    wide = tl.arange(0, BLOCK_D)
    columns = tl.program_id(1) * WIDTH + tl.arange(0, WIDTH)
    is_wide, is_column = wide < D, columns < DV
    inner = own * D * DV + wide[:, None] * DV + columns[None, :]
    is_state = is_wide[:, None] & is_column[None, :]
    current = tl.load(state + sequence * state_stride + inner, mask=is_state, other=0.0)
    current = current.to(tl.float32)
    q += sequence * q_sequence_stride + own * q_head_stride
    k += sequence * k_sequence_stride + own * k_head_stride
    v += sequence * v_sequence_stride + own * v_head_stride
    out += sequence * out_sequence_stride + own * out_head_stride
    state_out += sequence * state_out_stride
    small = sequence * num_rows * num_heads + own
    for row in range(num_rows):
        key = tl.load(k + row * k_row_stride + wide, mask=is_wide, other=0.0).to(tl.float32)
        query = tl.load(q + row * q_row_stride + wide, mask=is_wide, other=0.0).to(tl.float32)
        value = tl.load(v + row * v_row_stride + columns, mask=is_column, other=0.0)
        kept = tl.exp(tl.load(gate + small + row * num_heads).to(tl.float32))
        strength = tl.load(beta + small + row * num_heads).to(tl.float32)
        current *= kept
        recalled = tl.sum(current * key[:, None], axis=0)
        change = (value.to(tl.float32) - recalled) * strength
        current += key[:, None] * change[None, :]
        result = tl.sum(current * (query * scale)[:, None], axis=0)
        at = out + row * out_row_stride + columns
        tl.store(at, result.to(out.dtype.element_ty), mask=is_column)
        if IS_EVERY_STATE:
            tl.store(state_out + inner, current, mask=is_state)
            state_out += state_row_stride
    if not IS_EVERY_STATE:
        tl.store(state_out + inner, current, mask=is_state)


def gated_delta(
    q: Tensor,  # [S, Q, heads, D]
    k: Tensor,
    v: Tensor,  # [S, Q, heads, Dv]
    gate: Tensor,  # [S, Q, heads]: logarithm of what the state keeps, at most 0
    beta: Tensor,  # [S, Q, heads]: how strongly the state corrects itself
    state: Tensor,  # [S, heads, D, Dv] float32
    *,
    scale: float,
    state_out: Tensor | None = None,  # [S, heads, D, Dv], or [S, Q, heads, D, Dv] for every row's
    out: Tensor | None = None,
) -> tuple[Tensor, Tensor]:
    """(results [S, Q, heads, Dv] in v's dtype, state after the last row or after every row), as the
    reference's (Yang et al., 2024, "Gated Delta Networks").

    From CHUNKED_ROWS_MIN rows on it goes by chunks, unless every row's state is wanted, or the GPU
    multiplies no float32 matrices (RDNA). Raises ValueError for heads wider than HEAD_MAX.
    """
    if max(q.shape[3], v.shape[3]) > HEAD_MAX:
        raise ValueError(
            f"gated_delta holds heads of at most {HEAD_MAX} values, not "
            f"{q.shape[3]} (keys) and {v.shape[3]} (values)"
        )
    q, k, v = _packed(q, 1), _packed(k, 1), _packed(v, 1)
    gate, beta, state = gate.contiguous(), beta.contiguous(), _packed(state, 3)
    results = torch.empty(v.shape, dtype=v.dtype, device=v.device)
    if out is not None and _is_packed(out, 1):
        results = out
    is_every = state_out is not None and state_out.dim() == 5
    last = torch.empty(state.shape, dtype=torch.float32, device=state.device)
    if state_out is not None:
        last = (
            state_out
            if _is_packed(state_out, 3)
            else torch.empty_like(state_out, memory_format=torch.contiguous_format)
        )
    if q.shape[1] >= CHUNKED_ROWS_MIN and not is_every and _precision(current_target()):
        _by_chunks((q, k, v, gate, beta, state), scale, results, last)
    else:
        _by_rows((q, k, v, gate, beta, state), scale, results, last)
    if state_out is not None and last is not state_out:
        last = state_out.copy_(last)
    return (results if out is None or results is out else out.copy_(results)), last


def _by_rows(given: tuple[Tensor, ...], scale: float, out: Tensor, state_out: Tensor) -> None:
    q, k, v, gate, beta, state = given
    num_sequences, num_rows, num_heads, d = q.shape
    block_d, dv = triton.next_power_of_2(d), v.shape[3]
    values = tuned("gated_delta", f"D={d} Q=1", {"width": 32, "num_warps": 4})
    width = min(values["width"], triton.next_power_of_2(dv))
    is_every = state_out.dim() == 5
    launch(
        delta_rows, (num_sequences * num_heads, triton.cdiv(dv, width)),
        Config(num_warps=values["num_warps"], num_stages=1),
        q=q, k=k, v=v, gate=gate, beta=beta, state=state, out=out, state_out=state_out,
        scale=scale, num_rows=num_rows, num_heads=num_heads, **_strides("q", q),
        **_strides("k", k), **_strides("v", v), **_strides("out", out),
        state_stride=state.stride(0), state_out_stride=state_out.stride(0),
        state_row_stride=state_out.stride(1) if is_every else 0, D=d, DV=dv, BLOCK_D=block_d,
        WIDTH=width, IS_EVERY_STATE=is_every,
    )  # fmt: skip


def _by_chunks(given: tuple[Tensor, ...], scale: float, out: Tensor, state_out: Tensor) -> None:
    q, k, v, gate, beta, state = given
    num_sequences, num_rows, num_heads, d = q.shape
    dv, num_chunks = v.shape[3], triton.cdiv(num_rows, CHUNK)
    # Matrix instructions take 16 columns at the least.
    block_d, block_v = (max(16, triton.next_power_of_2(size)) for size in (d, dv))
    values = tuned(
        "gated_delta", f"D={d}", {"part": 64, "width": 32, "num_warps": 4, "waves_per_eu": 0}
    )
    heads = num_sequences * num_heads
    config = Config(
        num_warps=values["num_warps"], num_stages=1, waves_per_eu=values["waves_per_eu"],
        nonkdim=16,
    )  # fmt: skip
    from_state, from_rows, scores = (
        torch.empty(heads, num_chunks, CHUNK, size, dtype=torch.float32, device=q.device)
        for size in (block_d, block_v, CHUNK)
    )
    shared = {
        "q": q, "k": k, "gate": gate, "from_state": from_state, "from_rows": from_rows,
        "scores": scores, "scale": scale, "num_rows": num_rows, "num_heads": num_heads,
        "D": d, "DV": dv, "BLOCK_D": block_d, "BLOCK_V": block_v, "CHUNK": CHUNK,
        "PRECISION": _precision(current_target()),
        **_strides("q", q), **_strides("k", k),
    }  # fmt: skip
    launch(
        chunk_parts, (heads, num_chunks), config,
        v=v, beta=beta, PART=min(values["part"], block_d, block_v),
        LEVELS=CHUNK.bit_length() - 1, **_strides("v", v), **shared,
    )  # fmt: skip
    width = min(values["width"], block_v)
    launch(
        chunk_scan, (heads * (block_v // width),), config,
        state=state, out=out, state_out=state_out, num_chunks=num_chunks, **_strides("out", out),
        state_stride=state.stride(0), state_out_stride=state_out.stride(0), WIDTH=width,
        NUM_XCDS=current_target().num_xcds, **shared,
    )  # fmt: skip


def _precision(target: Target) -> str:
    """How Triton multiplies float32 matrices on matrix units without losing digits: CDNA's take
    them as they are, NVIDIA's in three products of TF32. Empty where none do.
    """
    if not target.is_hip:
        return "tf32x3"
    return "ieee" if target.warp_size == 64 else ""


def _strides(name: str, tensor: Tensor) -> dict[str, int]:
    sequence, row, head = tensor.stride()[:3]
    return {
        f"{name}_sequence_stride": sequence, f"{name}_row_stride": row,
        f"{name}_head_stride": head,
    }  # fmt: skip


def _is_packed(tensor: Tensor, num_dims: int) -> bool:
    """Whether the last dimensions follow each other without gaps."""
    stride = 1
    for dim in range(tensor.dim() - 1, tensor.dim() - 1 - num_dims, -1):
        if tensor.shape[dim] > 1 and tensor.stride(dim) != stride:
            return False
        stride *= tensor.shape[dim]
    return True


def _packed(tensor: Tensor, num_dims: int) -> Tensor:
    return tensor if _is_packed(tensor, num_dims) else tensor.contiguous()
