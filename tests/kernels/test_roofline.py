"""The bounds against counts by hand, and against an estimate made without the ops."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from kernels.cases import table
from kernels.cases.case import Call, Maker, Work
from kernels.ops.launching import recording
from kernels.targets import find
from kernels.tools import models, roofline
from kernels.tools.models import GEMMA_4_26B_A4B, QWEN3_8B, AttentionLayers, Experts, Geometry, step
from kernels.tools.roofline import by_op_s, in_turn_s, limit, overlapped_s, speedup_max

MI300X, MI355X = find("gfx942"), find("gfx950")


def totals(model: Geometry, **sizes: int) -> tuple[float, float]:
    ops = step(model, **sizes)
    return sum(each.work.num_bytes for each in ops), sum(each.work.num_flops for each in ops)


def test_step_of_qwen3_8b_is_what_was_counted_by_hand() -> None:
    """Batch 1, one token, 4096 keys.

    Weights of a layer: q, k, v 4096 · (4096 + 2 · 1024) = 25,165,824; output 4096² = 16,777,216;
    gate and up 4096 · 24,576 = 100,663,296; down 12,288 · 4096 = 50,331,648: 192,937,984. Of 36:
    6,945,767,424. The vocabulary's 151,936 · 4096 = 622,329,856. All: 7,568,097,280, in bfloat16
    15,136,194,560 bytes.

    The cache: 36 layers · 4096 keys · (k and v) · 8 heads · 128 · 2 bytes = 603,979,776 bytes.

    What moves beside them, in values of a row and layer:
      linears read 4096 + 4096 + 4096 + 12,288 = 24,576
      and write 6144 + 4096 + 24,576 + 4096 = 38,912
      rope reads 6144 and writes 6144; its 128 angles are float32: 256 more values' bytes
      attention reads and writes 4096 each; the gate reads 24,576 and writes 12,288
      two norms read and write 4 · 4096 each
    24,576 + 38,912 + 12,288 + 256 + 8192 + 36,864 + 32,768 = 153,856 values, 307,712 bytes; of 36:
    11,077,632. The last norm 32,768, the head's input 8192, its logits 151,936 · 4 = 607,744
    written, and read once by the sampler: 11,077,632 + 32,768 + 8192 + 1,215,488 = 12,334,080.

    Products: 2 · 7,568,097,280 of the weights; attention 36 · 4 · 4096 · 4096 = 2,415,919,104.
    """
    num_bytes, num_flops = totals(QWEN3_8B, batch=1, tokens=1, context=4096)

    assert num_bytes == 15_136_194_560 + 603_979_776 + 12_334_080
    assert num_flops == 2 * 7_568_097_280 + 2_415_919_104
    assert num_bytes / MI300X.bytes_s == pytest.approx(2.972e-3, rel=1e-3)


def test_verifying_multiplies_rows_and_products_but_not_weights_or_keys() -> None:
    one, eight = (totals(QWEN3_8B, batch=32, tokens=tokens, context=4096) for tokens in (1, 8))

    assert eight[1] == 8 * one[1]
    fixed = 15_136_194_560 + 32 * 603_979_776
    moved = one[0] - fixed
    # Each row's logits are read once by either sampler.
    assert eight[0] == pytest.approx(fixed + 8 * moved, rel=1e-9)


def test_sizes_of_gemma_4_26b_a4b_add_up_to_its_published_parameters() -> None:
    """25.2e9 in all, 3.8e9 of them for a token: what a step reads, without what rows carry."""
    every = replace(
        GEMMA_4_26B_A4B, experts=Experts(num_experts=128, num_chosen=128, intermediate=704)
    )
    all_bytes, _ = totals(every, batch=1, tokens=1, context=1)
    one_bytes, _ = totals(GEMMA_4_26B_A4B, batch=1, tokens=1, context=1)

    assert all_bytes / 2 / 25.2e9 == pytest.approx(1.0, abs=0.01)
    assert one_bytes / 2 / 3.8e9 == pytest.approx(1.0, abs=0.02)
    # 25 layers · 8 heads · 256 and 5 layers · 2 heads · 512, k and v
    kv_bytes = sum(layers.kv_bytes for layers in GEMMA_4_26B_A4B.attention)
    assert kv_bytes == 2 * 2 * (25 * 8 * 256 + 5 * 2 * 512)


def test_window_bounds_the_keys_that_are_read() -> None:
    layers = AttentionLayers(1, 16, 8, 256, window=1024)
    near, far = (models.attention(layers, 4, 4, context) for context in (1024, 65_536))

    assert near == far
    # 5 rows see windows that begin one key apart: 1028 keys.
    five = models.attention(layers, 4, 20, 65_536)
    key_bytes = 4 * 2 * 8 * 256 * 2
    assert five.num_bytes - 5 * (near.num_bytes - 1024 * key_bytes) == 1028 * key_bytes


def test_rows_wake_as_many_experts_as_chance_says() -> None:
    experts = Experts(num_experts=128, num_chosen=8, intermediate=704)

    assert experts.num_read(1) == pytest.approx(8.0)
    # The second row's 8 miss what the first has chosen with 120 in 128: 8 + 8 · 0.9375.
    assert experts.num_read(2) == pytest.approx(15.5)
    assert experts.num_read(10_000) == pytest.approx(128.0)


# An estimate made before there were ops: milliseconds of a step of one token on both chips, then
# the cost of n tokens over it at n = 2, 4, 6, 9, 17, all bytes and products overlapped, 4096 keys.
QWEN_ESTIMATE = {
    1: ((2.97, 1.97), (1.0, 1.0, 1.0, 1.0, 1.0)),
    32: ((6.50, 4.31), (1.0, 1.0, 1.0, 1.0, 1.12)),
    256: ((32.0, 21.2), (1.0, 1.0, 1.0, 1.0, 1.83)),
}
MIXTURE_ESTIMATE = {
    1: ((1.37, 0.91), (1.39, 2.09, 2.71, 3.50, 5.00)),
    32: ((10.2, 6.75), (1.10, 1.11, 1.11, 1.11, 1.11)),
    256: ((22.0, 14.6), (1.0, 1.0, 1.0, 1.0, 1.14)),
}


def estimated_mixture() -> Geometry:
    """The estimate's mixture: 2e9 dense and 24e9 expert parameters, 60 KiB of cache a token."""
    hidden, num_layers = 2816, 30
    attention = AttentionLayers(num_layers, 16, 2, 256)
    experts = Experts(128, 8, intermediate=round(24e9 / (num_layers * 128 * 3 * hidden)))
    bare = Geometry("mixture", hidden, 32_000, 0, (attention,), 2, experts)
    layer = hidden * (16 * 256 * 2 + 2 * 2 * 256 + 128)
    rest = 2e9 - num_layers * layer - hidden * 32_000
    return replace(bare, intermediate=round(rest / (num_layers * 3 * hidden)))


@pytest.mark.parametrize(
    ("model", "estimate"),
    [(QWEN3_8B, QWEN_ESTIMATE), (estimated_mixture(), MIXTURE_ESTIMATE)],
    ids=["dense", "mixture"],
)
@pytest.mark.parametrize("batch", [1, 32, 256])
def test_steps_agree_with_the_estimate(
    model: Geometry, estimate: dict[int, tuple[tuple[float, ...], tuple[float, ...]]], batch: int
) -> None:
    """The estimate left out all that rows carry, which many rows are."""
    times_ms, costs = estimate[batch]

    def taken_s(tokens: int, target: object = MI300X) -> float:
        ops = step(model, batch=batch, tokens=tokens, context=4096)
        return overlapped_s(ops, target)  # type: ignore[arg-type]

    for target, time_ms in zip((MI300X, MI355X), times_ms, strict=True):
        assert taken_s(1, target) * 1e3 == pytest.approx(time_ms, rel=0.03)
    for tokens, cost in zip((2, 4, 6, 9, 17), costs, strict=True):
        carried = 0.01 * batch**0.5 * (tokens - 1) ** 0.5
        assert cost * 0.97 <= taken_s(tokens) / taken_s(1) <= cost * (1.03 + carried)


def work_of_main(op: str) -> tuple[Call, Work]:
    [case] = [each for each in table.cases() if each.op == op and each.size == "main"]
    with recording("gfx942"):
        call = case.make(Maker("meta"), torch.bfloat16)
    return call, case.work(call)


def test_work_of_attention_is_the_cases_too() -> None:
    call, work = work_of_main("paged_attention")
    q, k_cache, _, tables, *_ = call.args
    layers = AttentionLayers(1, q.shape[1], k_cache.shape[1], q.shape[2])
    num_keys = tables.shape[1] * k_cache.shape[2]

    expected = models.attention(layers, tables.shape[0], q.shape[0], num_keys)

    assert work.num_bytes == pytest.approx(expected.num_bytes, rel=0.02)
    assert work.num_flops == pytest.approx(expected.num_flops, rel=0.02)


def test_work_of_experts_is_the_cases_too() -> None:
    """The case knows how many experts its rows chose; here it is what chance says."""
    call, work = work_of_main("moe_matmul")
    x, weight, ids = call.args[:3]
    experts = Experts(weight.shape[0], ids.shape[1], weight.shape[1])

    expected = models.moe(experts, x.shape[0], x.shape[1], weight.shape[1], is_summed=True)

    assert work.num_flops == expected.num_flops
    assert work.num_bytes == pytest.approx(expected.num_bytes, rel=0.1)


def test_limit_is_the_longer_of_both() -> None:
    moving, computing = Work(5.3e12, 1.0, "bf16"), Work(1.0, 2614.8e12, "bf16")

    assert (limit(moving, MI300X).time_s, limit(moving, MI300X).bound) == (1.0, "memory")
    assert limit(computing, MI300X).time_s == pytest.approx(2.0)
    assert limit(computing, MI300X).bound == "compute"
    assert limit(Work(5.3e12), MI300X).time_s == 1.0


def test_kind_of_product_that_a_chip_lacks_is_refused() -> None:
    with pytest.raises(ValueError, match="gfx90a has no units for products of fp8"):
        limit(Work(1.0, 1.0, "fp8"), find("gfx90a"))


def test_ops_in_turn_take_at_least_as_long_as_overlapped() -> None:
    for batch in (1, 32, 256):
        ops = step(QWEN3_8B, batch=batch, tokens=9, context=4096)
        assert in_turn_s(ops, MI300X) >= overlapped_s(ops, MI300X)
        assert sum(by_op_s(ops, MI300X).values()) == pytest.approx(in_turn_s(ops, MI300X))


def test_what_bounds_verify_changes_with_the_batch() -> None:
    def longest(model: Geometry, batch: int) -> str:
        return next(iter(by_op_s(step(model, batch=batch, tokens=8, context=4096), MI300X)))

    assert [longest(QWEN3_8B, batch) for batch in (1, 32, 256)] == [
        *("linear_dense", "paged_attention", "paged_attention"),
    ]
    assert [longest(GEMMA_4_26B_A4B, batch) for batch in (1, 32, 256)] == [
        *("moe_matmul", "moe_matmul", "paged_attention"),
    ]


def test_speed_up_is_at_most_the_acceptance_length() -> None:
    def best(model: Geometry, batch: int) -> float:
        return speedup_max(model, MI300X, batch=batch, tokens=4, acceptance=3.0)

    assert 2.9 < best(QWEN3_8B, 1) < 3.0
    assert best(QWEN3_8B, 256) < best(QWEN3_8B, 32) < best(QWEN3_8B, 1)
    # Each draft wakes experts of its own, so that one stream gains little.
    assert 1.4 < best(GEMMA_4_26B_A4B, 1) < 1.7 < best(GEMMA_4_26B_A4B, 32)


def test_table_of_steps_has_a_row_for_each_model_chip_and_batch() -> None:
    text = roofline.steps_shown([QWEN3_8B, GEMMA_4_26B_A4B], [MI300X, MI355X])

    rows = [line for line in text.splitlines() if line.startswith(("Qwen", "gemma"))]
    assert len(rows) == 2 * 2 * 3
    assert all("%" in row for row in rows)
