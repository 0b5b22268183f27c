"""The table of ops: one name, one signature, whoever computes it.

`reference/<op>.py` is plain torch: the specification and the CPU path. `ops/<op>.py` (Triton) and
`native/` (C++, compiled where a compiler is at hand) come in by the same name and the same call; a
test holds every implementation's signature against this table.

Shapes: R rows, S sequences, Q rows a sequence, W blocks of a table, QH query heads, KH key heads,
D head size, K in, N out, V vocabulary, I intermediate, E experts, L layers.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class OpSpec:
    """`signature` as `inspect.signature` prints the parameters' names, a bare * among them."""

    name: str
    signature: tuple[str, ...]
    summary: str


OPS: tuple[OpSpec, ...] = (
    OpSpec(
        "rms_norm",
        ("x", "weight", "*", "eps", "residual", "is_zero_centred", "out", "residual_out"),
        "x [R, H] (+ residual) → normed [R, H], and the sum as the new residual",
    ),
    OpSpec(
        "rope_kv_write",
        ("qkv", "positions", "cos_sin", "kv_slots", "k_cache", "v_cache", "*", "num_heads",
         "rotary_dim", "is_interleaved", "q_norm", "k_norm", "eps", "k_scale", "v_scale", "q_out"),
        "qkv [R, (QH + 2 KH) D] → q [R, QH, D] normed and rotated; k and v into their slots",
    ),
    OpSpec(
        "paged_attention",
        ("q", "k_cache", "v_cache", "block_tables", "context_lens", "query_starts", "*",
         "query_len", "scale", "mask", "mask_bits", "window", "soft_cap", "num_splits",
         "k_scale", "v_scale", "out"),
        "q [S Q, QH, D] over paged keys [blocks, KH, block, D] → [S Q, QH, D]",
    ),
    OpSpec(
        "dflash_context_kv",
        ("states", "weight", "positions", "cos_sin", "kv_slots", "*", "k_caches", "v_caches",
         "rotary_dim", "is_interleaved", "k_norm", "eps"),
        "states [R, K] · weight [L 2 KH D, K]ᵀ → every layer's k and v of a DFlash draft, written",
    ),
    OpSpec(
        "gated_mul", ("gate_up", "*", "activation", "out"),
        "[R, 2 I] → act(gate) · up, [R, I]; activation silu or gelu_tanh",
    ),
    OpSpec(
        "linear_dense", ("x", "weight", "*", "bias", "out"),
        "x [R, K] · weight [N, K]ᵀ, float32 or bfloat16, in float32 sums",
    ),
    OpSpec(
        "linear_int8", ("x", "weight", "*", "bias", "out"),
        "x [R, K] · weight [N, K]ᵀ in int8, a scale a row; a row's result is its own",
    ),
    OpSpec(
        "linear_fp8", ("x", "weight", "*", "bias", "out"),
        "x [R, K] · weight [N, K]ᵀ in float8, a scale a row and a scale an output",
    ),
    OpSpec(
        "linear_weight_only", ("x", "weight", "*", "bias", "out"),
        "x [R, K] · weight [N, K]ᵀ of int8 or int4; x stays as it is, sums are float32",
    ),
    OpSpec(
        "row_stats", ("logits", "*", "temperature", "max_out", "sum_out"),
        "[R, V] → the row's maximum and the sum of exp(logit / t - max)",
    ),
    OpSpec(
        "sample",
        ("logits", "uniforms", "*", "temperature", "top_k", "top_p", "min_p", "top_k_max", "out"),
        "[R, V] and one uniform a row → token [R]; temperature 0 is argmax",
    ),
    OpSpec(
        "verify_rejection",
        ("logits", "draft_ids", "num_valid", "uniforms", "*", "temperature", "draft_probs", "out"),
        "[S, N + 1, V] and drafts [S, N] → accepted counts [S]",
    ),
    OpSpec(
        "residual_pick",
        ("logits", "num_accepted", "uniforms", "*", "temperature", "draft_ids", "draft_probs",
         "out"),
        "one token [S] from (p - q)+ at the first rejected place, or from p at the bonus place",
    ),
    OpSpec(
        "markov_pick", ("logits", "previous", "table", "weight", "*", "offsets", "out"),
        "[S, N, Vd] → tokens [S, N]: each place's best of logits + weight · table[token before]",
    ),
    OpSpec(
        "moe_matmul", ("x", "weight", "expert_ids", "expert_weights", "*", "out"),
        "x [R, K] through the chosen experts' [E, N, K], weighted and summed → [R, N]",
    ),
    OpSpec(
        "gated_delta",
        ("q", "k", "v", "gate", "beta", "state", "*", "scale", "state_out", "out"),
        "the gated delta rule over [S, Q, heads, D] from state [S, heads, D, D]",
    ),
)  # fmt: skip

BY_NAME = {op.name: op for op in OPS}
