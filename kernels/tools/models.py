"""What one step of a served model does, op by op: the least it must read, write and compute.

Geometry is that of the public configurations. A step takes `tokens` rows of each of `batch`
sequences: 1 is plain decoding, N + 1 verifies N drafts. Weights and the cache are bfloat16, logits
float32. Routing to experts is taken as independent: real neighbours share experts, so a mixture's
true cost is lower.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from kernels.cases.case import Work

VALUE_BYTES = 2  # bfloat16
LOGIT_BYTES = 4
MATRIX_KIND = "bf16"


@dataclass(frozen=True, slots=True)
class AttentionLayers:
    """Layers of one kind. `window` 0: all keys are seen. `has_v_weights`: values are not the keys
    before their norm; both are kept either way.
    """

    num_layers: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    window: int = 0
    has_v_weights: bool = True

    @property
    def kv_bytes(self) -> int:
        """Of a token, in all these layers."""
        return self.num_layers * 2 * self.num_kv_heads * self.head_dim * VALUE_BYTES


@dataclass(frozen=True, slots=True)
class Experts:
    num_experts: int
    num_chosen: int
    intermediate: int

    def num_read(self, num_rows: int) -> float:
        """Expected number of experts that `num_rows` independent rows choose."""
        missed = (1.0 - self.num_chosen / self.num_experts) ** num_rows
        return self.num_experts * (1.0 - missed)


@dataclass(frozen=True, slots=True)
class Geometry:
    """`intermediate`: of the dense feed-forward layer, which a mixture may have beside it."""

    name: str
    hidden: int
    vocab: int
    intermediate: int
    attention: tuple[AttentionLayers, ...]
    num_norms_a_layer: int
    experts: Experts | None = None

    @property
    def num_layers(self) -> int:
        return sum(each.num_layers for each in self.attention)


@dataclass(frozen=True, slots=True)
class StepOp:
    """All calls of an op for one purpose in a step, added up."""

    op: str
    purpose: str
    work: Work


QWEN3_8B = Geometry(
    name="Qwen3-8B",
    hidden=4096,
    vocab=151_936,
    intermediate=12_288,
    attention=(AttentionLayers(36, 32, 8, 128),),
    num_norms_a_layer=2,
)
GEMMA_4_26B_A4B = Geometry(
    name="gemma-4-26B-A4B",
    hidden=2816,
    vocab=262_144,
    intermediate=2112,
    attention=(
        AttentionLayers(25, 16, 8, 256, window=1024),
        AttentionLayers(5, 16, 2, 512, has_v_weights=False),
    ),
    num_norms_a_layer=7,
    experts=Experts(num_experts=128, num_chosen=8, intermediate=704),
)
MODELS: Mapping[str, Geometry] = {each.name: each for each in (QWEN3_8B, GEMMA_4_26B_A4B)}


def step(model: Geometry, *, batch: int, tokens: int, context: int) -> list[StepOp]:
    """The ops of a step at `context` keys a sequence, this step's own among them."""
    num_rows = batch * tokens
    ops = list(_feed_forward(model, num_rows))
    for layers in model.attention:
        ops += _attention(model, layers, batch, num_rows, context)
    num_norms = model.num_norms_a_layer * model.num_layers + 1
    norm = Work(4.0 * num_rows * model.hidden * VALUE_BYTES)
    ops.append(StepOp("rms_norm", "norms", _times(norm, num_norms)))
    head = linear(num_rows, model.hidden, model.vocab, out_bytes=LOGIT_BYTES)
    ops.append(StepOp("linear_dense", "vocabulary", head))
    ops += _picking(model, batch, num_rows, tokens)
    return ops


def linear(num_rows: int, num_in: int, num_out: int, out_bytes: int = VALUE_BYTES) -> Work:
    """x [R, K] · weight [N, K]ᵀ."""
    values = num_rows * num_in + num_in * num_out
    return Work(
        num_bytes=values * VALUE_BYTES + num_rows * num_out * out_bytes,
        num_flops=2.0 * num_rows * num_in * num_out,
        kind=MATRIX_KIND,
    )


def attention(layers: AttentionLayers, batch: int, num_rows: int, context: int) -> Work:
    """Of one layer: keys and values once a sequence, whatever the rows and heads over them."""
    num_keys = _num_keys(layers, num_rows // batch, context)
    query_values = num_rows * layers.num_heads * layers.head_dim
    cache_bytes = layers.kv_bytes / layers.num_layers * batch * num_keys
    seen = min(context, layers.window) if layers.window else context
    return Work(
        num_bytes=2.0 * query_values * VALUE_BYTES + cache_bytes,
        num_flops=4.0 * query_values * seen,
        kind=MATRIX_KIND,
    )


def moe(experts: Experts, num_rows: int, num_in: int, num_out: int, *, is_summed: bool) -> Work:
    """Through the chosen experts; `is_summed`: the choices of a row become one row again."""
    num_products = num_rows * experts.num_chosen
    inputs = num_products if is_summed else num_rows
    outputs = num_rows if is_summed else num_products
    weights = experts.num_read(num_rows) * num_in * num_out
    return Work(
        num_bytes=(inputs * num_in + weights + outputs * num_out) * VALUE_BYTES,
        num_flops=2.0 * num_products * num_in * num_out,
        kind=MATRIX_KIND,
    )


def _attention(
    model: Geometry, layers: AttentionLayers, batch: int, num_rows: int, context: int
) -> Iterator[StepOp]:
    num, head_dim = layers.num_layers, layers.head_dim
    num_q, num_kv = layers.num_heads * head_dim, layers.num_kv_heads * head_dim
    kind = f"window {layers.window}" if layers.window else "all keys"
    num_of_kv = 2 if layers.has_v_weights else 1
    qkv = linear(num_rows, model.hidden, num_q + num_of_kv * num_kv)
    yield StepOp("linear_dense", "q, k, v", _times(qkv, num))
    moved = 2.0 * num_rows * (num_q + 2 * num_kv) * VALUE_BYTES  # read, and written elsewhere
    angles = num_rows * head_dim * 4.0
    yield StepOp("rope_kv_write", kind, _times(Work(moved + angles), num))
    yield StepOp("paged_attention", kind, _times(attention(layers, batch, num_rows, context), num))
    yield StepOp("linear_dense", "output", _times(linear(num_rows, num_q, model.hidden), num))


def _feed_forward(model: Geometry, num_rows: int) -> Iterator[StepOp]:
    num, hidden = model.num_layers, model.hidden
    up = linear(num_rows, hidden, 2 * model.intermediate)
    yield StepOp("linear_dense", "gate and up", _times(up, num))
    gated = Work(3.0 * num_rows * model.intermediate * VALUE_BYTES)
    yield StepOp("gated_mul", "dense", _times(gated, num))
    yield StepOp("linear_dense", "down", _times(linear(num_rows, model.intermediate, hidden), num))
    if (experts := model.experts) is None:
        return
    router = linear(num_rows, hidden, experts.num_experts)
    yield StepOp("linear_dense", "router", _times(router, num))
    up = moe(experts, num_rows, hidden, 2 * experts.intermediate, is_summed=False)
    yield StepOp("moe_matmul", "experts", _times(up, num))
    num_products = num_rows * experts.num_chosen
    gated = Work(3.0 * num_products * experts.intermediate * VALUE_BYTES)
    yield StepOp("gated_mul", "experts", _times(gated, num))
    down = moe(experts, num_rows, experts.intermediate, hidden, is_summed=True)
    yield StepOp("moe_matmul", "experts", _times(down, num))


def _picking(model: Geometry, batch: int, num_rows: int, tokens: int) -> Iterator[StepOp]:
    """Logits are read once to judge the drafts and once more where a token is drawn."""
    row_bytes = float(model.vocab * LOGIT_BYTES)
    if tokens == 1:
        yield StepOp("sample", "tokens", Work(num_rows * row_bytes))
        return
    yield StepOp("verify_rejection", "drafts", Work((num_rows - batch) * row_bytes))
    yield StepOp("residual_pick", "tokens", Work(batch * row_bytes))


def _num_keys(layers: AttentionLayers, tokens: int, context: int) -> int:
    """Keys a layer must read: rows of one step see windows that are shifted by one each."""
    return min(context, layers.window + tokens - 1) if layers.window else context


def _times(work: Work, count: int) -> Work:
    return Work(work.num_bytes * count, work.num_flops * count, work.kind)
