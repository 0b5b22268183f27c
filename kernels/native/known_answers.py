"""Small cases with answers worked out by hand, tried before a freshly loaded library is trusted."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor

Ops = Mapping[str, Callable[..., Any]]

TOLERANCE = 1e-5


class WrongAnswer(Exception):
    """An op computes something else on this machine."""


def check(ops: Ops) -> None:
    """Raises WrongAnswer at the first op that does."""
    for case in (
        _linear_dense,
        _linear_int8,
        _rms_norm,
        _gated_mul,
        _rope_kv_write,
        _paged_attention,
        _sample,
        _markov_pick,
    ):
        case(ops)


def _expect(op: str, got: Tensor, answer: list[float]) -> None:
    given = got.float().flatten().tolist()
    if len(given) != len(answer) or any(
        not abs(a - b) <= TOLERANCE for a, b in zip(given, answer, strict=True)
    ):
        raise WrongAnswer(f"{op} gave {given[:8]} where {answer[:8]} is right")


def _linear_dense(ops: Ops) -> None:
    x, weight = torch.tensor([[1.0, 2.0, -3.0]]), torch.tensor([[4.0, 5.0, 6.0], [0.5, 0.0, 1.0]])
    bias = torch.tensor([10.0, 20.0])
    _expect("linear_dense", ops["linear_dense"](x, weight, bias=bias), [6.0, 17.5])
    halves = ops["linear_dense"](x.bfloat16(), weight.bfloat16())
    _expect("linear_dense", halves, [-4.0, -2.5])


def _linear_int8(ops: Ops) -> None:
    # Whole numbers with 127 among them are their own int8 form: nothing is rounded.
    weight = ops["pack_int8"](torch.tensor([[127.0, 1.0, -2.0], [3.0, -127.0, 5.0]]))
    x = torch.tensor([[1.0, 2.0, 127.0], [-127.0, 0.0, 4.0]])
    _expect("linear_int8", ops["linear_int8"](x, weight), [-125.0, 384.0, -16137.0, -361.0])


def _rms_norm(ops: Ops) -> None:
    x, residual = torch.tensor([[1.0, 5.0]]), torch.tensor([[2.0, -1.0]])
    normed, total = ops["rms_norm"](x, torch.tensor([1.0, 2.0]), eps=0.0, residual=residual)
    _expect("rms_norm", total, [3.0, 4.0])
    _expect("rms_norm", normed, [3.0 / 12.5**0.5, 8.0 / 12.5**0.5])


def _gated_mul(ops: Ops) -> None:
    gate_up = torch.tensor([[0.0, 1.0, 7.0, 2.0]])
    _expect("gated_mul", ops["gated_mul"](gate_up), [0.0, 1.4621172])
    gelu = ops["gated_mul"](gate_up, activation="gelu_tanh")
    _expect("gated_mul", gelu, [0.0, 1.6823840])


def _rope_kv_write(ops: Ops) -> None:
    # One query head, one key head, two dimensions; position 1 turns by a right angle.
    k_cache, v_cache = torch.zeros(2, 1, 2, 2), torch.zeros(2, 1, 2, 2)
    cos_sin = torch.tensor([[1.0, 0.0], [0.0, 1.0]])
    qkv = torch.tensor([[1.0, 2.0, 3.0, 4.0, 5.0, 6.0]])
    place, slot = torch.tensor([1]), torch.tensor([3])
    q = ops["rope_kv_write"](
        *(qkv, place, cos_sin, slot, k_cache, v_cache), num_heads=1, rotary_dim=2
    )
    _expect("rope_kv_write", q, [-2.0, 1.0])
    _expect("rope_kv_write", k_cache[1, 0, 1], [-4.0, 3.0])
    _expect("rope_kv_write", v_cache[1, 0, 1], [5.0, 6.0])


def _paged_attention(ops: Ops) -> None:
    # Two rows; the first sees one key, the second two with weights 1 and 3.
    k_cache, v_cache = torch.zeros(2, 1, 2, 2), torch.zeros(2, 1, 2, 2)
    k_cache[1, 0, 1] = torch.tensor([1.0986123, 0.0])  # ln 3
    v_cache[1, 0] = torch.tensor([[4.0, 8.0], [12.0, 0.0]])
    got = ops["paged_attention"](
        torch.tensor([[[1.0, 0.0]], [[1.0, 0.0]]]),
        *(k_cache, v_cache, torch.tensor([[1]], dtype=torch.int32)),
        *(torch.tensor([2], dtype=torch.int32), torch.tensor([0], dtype=torch.int32)),
        query_len=2,
        scale=1.0,
    )
    _expect("paged_attention", got, [4.0, 8.0, 10.0, 2.0])


def _sample(ops: Ops) -> None:
    # exp of these is 4, 2, 1, 1 of 8 at temperature 1; squared, 16, 4, 1, 1 of 22 at one half.
    logits = torch.tensor([[4.0, 2.0, 1.0, 1.0]]).log().repeat(5, 1)
    uniforms = torch.tensor([0.49, 0.51, 0.99, 0.72, 0.0], dtype=torch.float64)
    temperature = torch.tensor([1.0, 1.0, 1.0, 0.5, 0.0], dtype=torch.float64)
    drawn = ops["sample"](logits, uniforms, temperature=temperature)
    _expect("sample", drawn, [0.0, 1.0, 3.0, 0.0, 0.0])
    two = torch.full((5,), 2)
    best_two = ops["sample"](logits, uniforms, temperature=temperature, top_k=two)
    _expect("sample", best_two, [0.0, 0.0, 1.0, 0.0, 0.0])
    most = torch.full((5,), 0.7, dtype=torch.float64)
    likely = ops["sample"](logits, uniforms, temperature=temperature, top_p=most)
    _expect("sample", likely, [0.0, 0.0, 1.0, 0.0, 0.0])


def _markov_pick(ops: Ops) -> None:
    # Token 2 pushes to draft 0, which is token 1; that one pushes to draft 1, which is token 2.
    weight = ops["pack_int8"](torch.tensor([[127.0, 0.0], [0.0, 127.0], [1.0, 1.0]]))
    table = torch.tensor([[0.0, 0.0], [0.0, 127.0], [127.0, 0.0]])
    logits = torch.zeros(1, 3, 3)
    logits[0, 2, 2] = 2e4
    offsets = torch.tensor([1, 1, -2])
    got = ops["markov_pick"](logits, torch.tensor([2]), table, weight, offsets=offsets)
    _expect("markov_pick", got, [1.0, 2.0, 0.0])
