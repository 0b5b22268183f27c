"""Rows farther from the first than 32 bits count: large batches of a large vocabulary, large pools.

The memory between them is asked for and never touched, so the system does not have to give it.
"""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor

from kernels.cases.case import Maker
from kernels.cases.paged_attention import Shape as AttentionShape
from kernels.cases.rope_kv_write import Shape as RopeShape
from kernels.ops.attention_plan import SPLIT_KEYS_MIN
from kernels.ops.gated_delta import gated_delta
from kernels.ops.gated_mul import gated_mul
from kernels.ops.linear_int8 import linear_int8, pack_int8
from kernels.ops.linear_weight_only import linear_weight_only
from kernels.ops.markov_pick import markov_pick
from kernels.ops.moe_matmul import moe_matmul
from kernels.ops.paged_attention import paged_attention
from kernels.ops.residual_pick import residual_pick
from kernels.ops.rms_norm import TILE, rms_norm
from kernels.ops.rope_kv_write import rope_kv_write
from kernels.ops.row_stats import row_stats
from kernels.ops.sample import sample
from kernels.ops.verify_rejection import verify_rejection

APART = 1 << 29  # entries from row to row: 1 GiB of 2 bytes
NUM = 5  # the last one begins 2**31 entries behind the first
HALF = torch.float16


def far(tensor: Tensor) -> Tensor:
    """The same values, its first dimension `APART`."""
    assert len(tensor) == NUM
    memory = torch.empty((NUM - 1) * APART + tensor[0].numel(), dtype=tensor.dtype)
    apart = memory.as_strided(tensor.shape, (APART, *tensor[0].contiguous().stride()))
    return apart.copy_(tensor)


def made(*shape: int, seed: int = 0) -> Tensor:
    values = torch.randn(*shape, generator=torch.Generator().manual_seed(seed))
    return values.to(HALF)


def uniforms(*shape: int) -> Tensor:
    return torch.rand(*shape, generator=torch.Generator().manual_seed(9), dtype=torch.float64)


def test_attention_reads_and_writes_them() -> None:
    shape = AttentionShape(
        context_lens=(150, 5, 40, 3, 17), query_len=1, num_heads=2, num_kv_heads=1, head_dim=16,
        page=8, num_splits=1,
    )  # fmt: skip
    call = shape.make(Maker("cpu"), HALF)
    q, *rest = call.args
    want = paged_attention(*call.args, **call.kwargs).clone()
    out, far_q = far(torch.full_like(q, torch.nan)), far(q)

    assert torch.equal(paged_attention(far_q, *rest, **{**call.kwargs, "out": out}), want)
    assert rest[2].shape[1] * 8 >= 2 * SPLIT_KEYS_MIN
    far_in_splits = {**call.kwargs, "num_splits": 2, "out": out.fill_(torch.nan)}
    torch.testing.assert_close(
        paged_attention(far_q, *rest, **far_in_splits), want, atol=2e-3, rtol=2e-3
    )


def test_attention_reads_blocks_of_a_pool_that_large() -> None:
    shape = AttentionShape(
        context_lens=(40, 21), query_len=2, num_heads=2, num_kv_heads=1, head_dim=32, page=8,
    )  # fmt: skip
    for page in (8, 64):  # smaller and larger than a tile of keys
        call = replace(shape, page=page).make(Maker("cpu"), torch.float32)
        q, keys, _, tables, *rest = call.args
        keys = keys.to(torch.float8_e4m3fn)
        want = paged_attention(q, keys, keys, tables, *rest, **call.kwargs).clone()
        num_before = 2**31 // keys[0].numel()
        pool = torch.empty((num_before + len(keys), *keys.shape[1:]), dtype=keys.dtype)
        pool[num_before:] = keys

        got = paged_attention(q, pool, pool, tables + num_before, *rest, **call.kwargs)

        assert torch.equal(got, want)


def test_turned_queries_and_keys_come_from_them() -> None:
    shape = RopeShape(num_rows=NUM, num_heads=2, num_kv_heads=1, head_dim=16, rotary_dim=16, page=8)
    call, apart = shape.make(Maker("cpu"), HALF), shape.make(Maker("cpu"), HALF)
    want = rope_kv_write(*call.args, **call.kwargs)
    out = far(torch.full_like(want, torch.nan))

    got = rope_kv_write(far(apart.args[0]), *apart.args[1:], **{**apart.kwargs, "q_out": out})

    assert torch.equal(got, want)
    for mine, wanted in zip(apart.args[4:6], call.args[4:6], strict=True):
        assert torch.equal(mine, wanted)


def test_tokens_are_taken_from_them() -> None:
    logits, judged, probs = made(NUM, 50), made(NUM, 3, 50), made(NUM, 2, 50).softmax(2)
    hot, drafts = torch.full((NUM,), 0.7), judged[:, :2].argmax(2)
    many, few = uniforms(NUM, 2), uniforms(NUM)
    filters = {
        "top_k": torch.full((NUM,), 9), "top_p": torch.full((NUM,), 0.8),
        "min_p": torch.full((NUM,), 0.01),
    }  # fmt: skip
    given = {"temperature": hot, "draft_ids": drafts, "draft_probs": probs}
    counts = verify_rejection(judged, drafts, torch.full((NUM,), 2), many, temperature=hot,
                              draft_probs=probs)  # fmt: skip

    far_logits = far(logits)
    assert torch.equal(
        sample(far_logits, few, temperature=hot, **filters),
        sample(logits, few, temperature=hot, **filters),
    )
    for mine, wanted in zip(row_stats(far_logits), row_stats(logits), strict=True):
        assert torch.equal(mine, wanted)
    del far_logits
    far_judged, far_probs = far(judged), far(probs)
    assert torch.equal(
        verify_rejection(far_judged, drafts, torch.full((NUM,), 2), many, temperature=hot,
                         draft_probs=far_probs),
        counts,
    )  # fmt: skip
    far_given = {**given, "draft_probs": far_probs}
    for places in (torch.zeros(NUM, dtype=torch.int64), torch.full((NUM,), 2)):
        assert torch.equal(
            residual_pick(far_judged, places, few, **far_given),
            residual_pick(judged, places, few, **given),
        )


def test_drafts_are_picked_from_them() -> None:
    logits, table, weight = made(NUM, 2, NUM).float(), made(NUM, 16), pack_int8(made(NUM, 16))
    logits[..., NUM - 1] += 9.0  # its row of the table is the far one
    previous = torch.arange(NUM)

    far_logits = far(logits.to(HALF))
    got = markov_pick(far_logits, previous, far(table), weight)

    assert torch.equal(got, markov_pick(logits.to(HALF), previous, table, weight))


def test_products_read_and_write_them() -> None:
    x, weight = made(NUM, 40), pack_int8(made(9, 40, seed=1))
    experts, ids = made(3, 9, 40, seed=2), torch.arange(NUM).view(NUM, 1) % 3
    factors, far_x, out = torch.ones(NUM, 1), far(x), far(made(NUM, 9))

    assert torch.equal(linear_int8(far_x, weight, out=out), linear_int8(x, weight))
    assert torch.equal(linear_weight_only(x, weight, out=out), linear_weight_only(x, weight))
    got = moe_matmul(far_x, experts, ids, factors, out=out)
    assert torch.equal(got, moe_matmul(x, experts, ids, factors))


def test_norms_and_gates_read_and_write_them() -> None:
    x, weight = made(NUM, TILE), torch.ones(TILE)  # so wide that a program has one row
    want, total = rms_norm(x, weight, eps=1e-5, residual=x)
    far_x, out, kept = far(x), far(x), far(x)

    rms_norm(far_x, weight, eps=1e-5, residual=far_x, out=out, residual_out=kept)

    assert torch.equal(out, want)
    assert torch.equal(kept, total)
    assert torch.equal(gated_mul(far_x, out=out[:, : TILE // 2]), gated_mul(x))


def test_states_of_far_sequences_are_read_and_written() -> None:
    for num_rows in (2, 70):  # one after the other, and in chunks
        q, k, v = (made(NUM, num_rows, 1, 16, seed=seed) for seed in range(3))
        k = torch.nn.functional.normalize(k.float(), dim=-1).to(HALF)  # or the state grows for ever
        beta = uniforms(NUM, num_rows, 1).float()
        gate = -beta.flip(0)
        state = torch.zeros(NUM, 1, 16, 16)
        want, last = gated_delta(q, k, v, gate, beta, state, scale=0.25)

        got, far_last = gated_delta(
            *map(far, (q, k, v)), gate, beta, state, scale=0.25, out=far(v), state_out=None
        )

        assert torch.equal(got, want)
        assert torch.equal(far_last, last)
