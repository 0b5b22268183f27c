"""Calls of the ops as a served model makes them, from the sizes of that model.

An op that the model does not call, or that no sizes are known for, is tried by the cases of its own
file (`kernels.cases`).
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping
from typing import Any

import msgspec
import torch
from torch import Tensor

from kernels.cases import table
from kernels.cases.case import Call, Case, Maker, Size, Work
from kernels.reference.linear_int8 import quantize_int8
from kernels.tools.checking import ERROR_MAX

TEMPERATURE = 0.8


class Geometry(msgspec.Struct, frozen=True, kw_only=True):
    """Sizes of a model and of the steps it runs; `shown` names it for people."""

    shown: str
    hidden_size: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    rotary_dim: int
    intermediate_size: int
    vocab_size: int
    block_size: int
    num_drafts: int
    is_interleaved: bool = False
    has_qk_norm: bool = False
    num_sequences: int = 4
    context_len: int = 1024  # the longest of a step
    prompt_rows: int = 64

    def small(self) -> Geometry:
        """The same model in steps that an interpreter gets through."""
        return msgspec.structs.replace(self, num_sequences=2, context_len=40, prompt_rows=5)

    def digest(self) -> str:
        return hashlib.sha256(msgspec.json.encode(self)).hexdigest()[:12]

    @property
    def num_verify_rows(self) -> int:
        """A step with drafts: all of them and the token before."""
        return self.num_sequences * (self.num_drafts + 1)


def cases_of(op: str, geometry: Geometry | None, size: Size) -> tuple[Case, ...]:
    """What `op` is tried with; perhaps nothing."""
    if geometry is not None and op in _MAKERS:
        return _MAKERS[op](geometry)
    return tuple(case for case in table.cases() if case.op == op and case.size == size)


def _case(op: str, name: str, make: Callable[[Maker, torch.dtype], Call], **more: Any) -> Case:
    """What the doctor compares with is the reference, so there is no truth here and no roofline."""
    return Case(
        op, name, "serving", make, lambda _: Work(0.0), dtypes=tuple(ERROR_MAX), **more,
    )  # fmt: skip


def _rms_norm(of: Geometry) -> tuple[Case, ...]:
    def make(maker: Maker, dtype: torch.dtype) -> Call:
        shape = (of.num_verify_rows, of.hidden_size)
        x, residual = (maker.normal(*shape, dtype=dtype, salt=salt) for salt in (0, 1))
        weight = maker.uniform(of.hidden_size, dtype=dtype, salt=2)
        return Call((x, weight), {"eps": 1e-6, "residual": residual})

    return (_case("rms_norm", "added", make),)


def _gated_mul(of: Geometry) -> tuple[Case, ...]:
    def make(maker: Maker, dtype: torch.dtype) -> Call:
        shape = (of.num_verify_rows, 2 * of.intermediate_size)
        return Call((maker.normal(*shape, dtype=dtype),), {})

    return (_case("gated_mul", "silu", make),)


def _rope_kv_write(of: Geometry) -> tuple[Case, ...]:
    def make(maker: Maker, dtype: torch.dtype) -> Call:
        num_rows, num_blocks = of.num_verify_rows, -(-of.num_verify_rows // of.block_size) + 1
        width = (of.num_heads + 2 * of.num_kv_heads) * of.head_dim
        caches = (num_blocks, of.num_kv_heads, of.block_size, of.head_dim)
        angles = maker.uniform(of.context_len, of.rotary_dim // 2, salt=1) * 6.0
        norms = {
            name: maker.uniform(of.head_dim, dtype=dtype, salt=salt)
            for salt, name in enumerate(("q_norm", "k_norm"), 2)
            if of.has_qk_norm
        }
        return Call(
            (
                maker.normal(num_rows, width, dtype=dtype),
                maker.integers(0, of.context_len, num_rows, salt=4),
                torch.cat((angles.cos(), angles.sin()), dim=1),
                maker.permutation(num_blocks * of.block_size, dtype=torch.int64)[:num_rows],
                *(maker.normal(*caches, dtype=dtype, salt=salt) for salt in (5, 6)),
            ),
            {
                "num_heads": of.num_heads,
                "rotary_dim": of.rotary_dim,
                "is_interleaved": of.is_interleaved,
                **norms,
            },
        )

    return (_case("rope_kv_write", "rotated", make),)


def _paged_attention(of: Geometry) -> tuple[Case, ...]:
    """Plain decoding, verifying drafts, and a piece of one prompt."""

    def case(name: str, num_sequences: int, query_len: int) -> Case:
        def make(maker: Maker, dtype: torch.dtype) -> Call:
            return _attention(of, maker, dtype, num_sequences=num_sequences, query_len=query_len)

        return _case("paged_attention", name, make)

    drafts = (case("verify", of.num_sequences, of.num_drafts + 1),) if of.num_drafts else ()
    return (
        case("decode", of.num_sequences, 1),
        *drafts,
        case("prompt", 1, of.prompt_rows),
    )


def _attention(
    of: Geometry, maker: Maker, dtype: torch.dtype, *, num_sequences: int, query_len: int
) -> Call:
    """Lengths between one step and the longest context, blocks in any order."""
    longest = max(of.context_len, query_len)
    width = -(-longest // of.block_size)
    num_blocks = num_sequences * width + 1
    lens = maker.integers(query_len, longest + 1, num_sequences, dtype=torch.int32, salt=3)
    tables = maker.permutation(num_blocks - 1, salt=4).view(num_sequences, width) + 1
    caches = (num_blocks, of.num_kv_heads, of.block_size, of.head_dim)
    return Call(
        (
            maker.normal(num_sequences * query_len, of.num_heads, of.head_dim, dtype=dtype),
            *(maker.normal(*caches, dtype=dtype, salt=salt) for salt in (1, 2)),
            tables,
            lens,
            lens - query_len,
        ),
        {"query_len": query_len, "scale": of.head_dim**-0.5},
    )


def _linear_int8(of: Geometry) -> tuple[Case, ...]:
    """The widest of a layer, and its way back."""

    def case(name: str, num_in: int, num_out: int) -> Case:
        def make(maker: Maker, dtype: torch.dtype) -> Call:
            weight = quantize_int8(maker.normal(num_out, num_in, salt=1))
            return Call((maker.normal(of.num_verify_rows, num_in, dtype=dtype), weight), {})

        return _case("linear_int8", name, make, has_matrix_products=True)

    inner = of.intermediate_size
    return (
        case("gate and up", of.hidden_size, 2 * inner),
        case("down", inner, of.hidden_size),
    )


def _row_stats(of: Geometry) -> tuple[Case, ...]:
    def make(maker: Maker, dtype: torch.dtype) -> Call:
        rows = of.num_sequences
        return Call((_logits(of, maker, rows),), {"temperature": _temperatures(maker, rows)})

    return (_case("row_stats", "warm", make),)


def _sample(of: Geometry) -> tuple[Case, ...]:
    def make(maker: Maker, dtype: torch.dtype, *, is_filtered: bool) -> Call:
        rows = of.num_sequences
        filters = {
            "top_k": maker.integers(0, 50, rows, salt=3),
            "top_p": maker.uniform(rows, dtype=torch.float64, salt=4),
            "min_p": maker.uniform(rows, dtype=torch.float64, salt=5) * 0.1,
        }
        drawn = {"temperature": _temperatures(maker, rows), **(filters if is_filtered else {})}
        return Call((_logits(of, maker, rows), _uniforms(maker, rows)), drawn)

    def greedy(maker: Maker, dtype: torch.dtype) -> Call:
        return Call((_logits(of, maker, of.num_sequences), _uniforms(maker, of.num_sequences)), {})

    return (
        _case("sample", "greedy", greedy, is_exact=True),
        _case("sample", "drawn", lambda m, d: make(m, d, is_filtered=False), is_exact=True),
        _case("sample", "filtered", lambda m, d: make(m, d, is_filtered=True), is_exact=True),
    )


def _verify_rejection(of: Geometry) -> tuple[Case, ...]:
    def make(maker: Maker, dtype: torch.dtype) -> Call:
        return Call(
            (
                _judged(of, maker),
                _likely_drafts(of, maker),
                maker.integers(0, of.num_drafts + 1, of.num_sequences, salt=2),
                _uniforms(maker, of.num_sequences, of.num_drafts),
            ),
            {"temperature": _temperatures(maker, of.num_sequences)},
        )

    return (_case("verify_rejection", "drawn", make, is_exact=True),) if of.num_drafts else ()


def _residual_pick(of: Geometry) -> tuple[Case, ...]:
    def make(maker: Maker, dtype: torch.dtype) -> Call:
        sequences = of.num_sequences
        return Call(
            (
                _judged(of, maker),
                maker.integers(0, of.num_drafts + 1, sequences, salt=2),
                _uniforms(maker, sequences),
            ),
            {
                "temperature": _temperatures(maker, sequences),
                "draft_ids": _likely_drafts(of, maker),
            },
        )

    return (_case("residual_pick", "one-hot", make, is_exact=True),) if of.num_drafts else ()


def _logits(of: Geometry, maker: Maker, *rows: int) -> Tensor:
    return maker.normal(*rows, of.vocab_size, std=3.0, salt=11)


def _judged(of: Geometry, maker: Maker) -> Tensor:
    return _logits(of, maker, of.num_sequences, of.num_drafts + 1)


def _likely_drafts(of: Geometry, maker: Maker) -> Tensor:
    """The best token of every second place: some stand, some do not."""
    best = _judged(of, maker)[:, :-1].argmax(dim=2)
    return torch.where(torch.arange(of.num_drafts, device=best.device) % 2 == 0, best, 0)


def _uniforms(maker: Maker, *shape: int) -> Tensor:
    return maker.uniform(*shape, dtype=torch.float64, salt=12)


def _temperatures(maker: Maker, rows: int) -> Tensor:
    """The first row is greedy."""
    values = [0.0, *[TEMPERATURE] * (rows - 1)]
    return maker.tensor(values, dtype=torch.float64)


_MAKERS: Mapping[str, Callable[[Geometry], tuple[Case, ...]]] = {
    "rms_norm": _rms_norm,
    "rope_kv_write": _rope_kv_write,
    "paged_attention": _paged_attention,
    "gated_mul": _gated_mul,
    "linear_int8": _linear_int8,
    "row_stats": _row_stats,
    "sample": _sample,
    "verify_rejection": _verify_rejection,
    "residual_pick": _residual_pick,
}
