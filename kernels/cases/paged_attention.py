"""Cases of paged attention: decode, verify, blocks, trees and prompts, at served models' shapes."""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from torch import Tensor

from kernels.cases.case import Call, Case, Maker, Size, Work
from kernels.interface import MaskKind
from kernels.ops.launching import current_target

_KINDS = {torch.float32: "fp32", torch.float16: "fp16", torch.bfloat16: "bf16"}
_TREE_FATHERS = (0, 0, 0, 1, 1, 2, 3, 3, 4, 6, 6, 7, 9, 10, 10, 11)  # of row 1 and behind: row 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Shape:
    """One call. `context_lens` count this step's rows, but for the last `num_behind`, which stand
    behind the end as padding does; `has_fp8`: a cache of 8 bits with scales.
    """

    context_lens: tuple[int, ...]
    query_len: int
    num_heads: int = 32
    num_kv_heads: int = 8
    head_dim: int = 128
    page: int = 16
    mask: MaskKind = "causal"
    window: int = 0
    soft_cap: float = 0.0
    num_splits: int = 0
    num_behind: int = 0
    has_fp8: bool = False
    has_scales: bool = False

    def make(self, maker: Maker, dtype: torch.dtype) -> Call:
        num_sequences = len(self.context_lens)
        width = -(-max(self.context_lens) // self.page) + 1
        num_blocks = 1 + num_sequences * width
        tables = 1 + maker.permutation(num_blocks - 1, salt=1).view(num_sequences, width)
        cache = (num_blocks, self.num_kv_heads, self.page, self.head_dim)
        keys, values = (maker.normal(*cache, dtype=dtype, salt=salt) for salt in (2, 3))
        if maker.device != "meta":
            is_stale = self._is_stale(tables, num_blocks)[:, None, :, None]
            keys.masked_fill_(is_stale, torch.nan)
            values.masked_fill_(is_stale, torch.nan)
        if self.has_fp8:
            kind = current_target().fp8_dtype or torch.float8_e4m3fn
            keys, values = keys.to(kind), values.to(kind)
        lens = maker.tensor(self.context_lens, dtype=torch.int32)
        num_rows = num_sequences * self.query_len
        q = maker.normal(num_rows, self.num_heads, self.head_dim, dtype=dtype, salt=4)
        starts = (lens - self.query_len + self.num_behind).clamp(min=0)
        scales: dict[str, Tensor] = {}
        if self.has_fp8 or self.has_scales:
            scales["k_scale"] = 0.5 + maker.uniform(self.num_kv_heads, salt=5)
            scales["v_scale"] = 0.5 + maker.uniform(self.num_kv_heads, salt=6)
        return Call(
            (q, keys, values, tables, lens, starts),
            {
                "query_len": self.query_len,
                "scale": self.head_dim**-0.5,
                "mask": self.mask,
                "mask_bits": self._bits(maker) if self.mask == "bits" else None,
                "window": self.window,
                "soft_cap": self.soft_cap,
                "num_splits": self.num_splits,
                "out": torch.empty_like(q),
                **scales,
            },
        )

    def work(self, call: Call) -> Work:
        q, keys = call.args[:2]
        num_values = 2.0 * self.num_kv_heads * self.head_dim
        num_read, num_pairs = 0, 0
        for length in self.context_lens:
            seen = min(length, self.window + self.query_len - 1) if self.window else length
            num_read += seen
            num_pairs += self.query_len * min(seen, self.window or seen)
            if self.mask == "causal" and not self.window:
                num_pairs -= self.query_len * (self.query_len - 1) // 2
        return Work(
            num_bytes=num_read * num_values * keys.itemsize + 2.0 * q.numel() * q.itemsize,
            num_flops=4.0 * num_pairs * self.num_heads * self.head_dim,
            kind=_KINDS[q.dtype],
        )

    def truth(self, call: Call) -> tuple[Tensor, ...]:
        q, keys, values, tables, lens, starts = call.args
        result = torch.zeros(q.shape, dtype=torch.float64)
        for sequence, length in enumerate(lens.tolist()):
            first = sequence * self.query_len
            is_seen = self._is_seen(call, sequence, length, int(starts[sequence]))
            own = [_rows(cache, tables[sequence], length) for cache in (keys, values)]
            for head in range(self.num_heads):
                kv_head = head // (self.num_heads // self.num_kv_heads)
                k, v = (_head(each, kv_head) for each in own)
                for name, each in (("k_scale", k), ("v_scale", v)):
                    if (scale := call.kwargs.get(name)) is not None:
                        each *= scale.double().expand(self.num_kv_heads)[kv_head]
                scores = q[first : first + self.query_len, head].double() @ k.t()
                scores *= call.kwargs["scale"]
                if self.soft_cap:
                    scores = self.soft_cap * torch.tanh(scores / self.soft_cap)
                weights = torch.softmax(scores.masked_fill(~is_seen, -torch.inf), dim=-1)
                # Rows that see nothing give zeros.
                weights = weights.masked_fill(~is_seen, 0.0)
                result[first : first + self.query_len, head] = weights @ v
        return (result,)

    def _is_seen(self, call: Call, sequence: int, length: int, start: int) -> Tensor:
        """[Q, keys], entry by entry where a tree decides."""
        keys = torch.arange(length)
        rows = []
        bits = call.kwargs["mask_bits"]
        for step in range(self.query_len):
            place, places = start + step, keys.clone()
            is_seen = torch.ones(length, dtype=torch.bool)
            if self.mask == "causal":
                is_seen = keys <= place
            elif self.mask == "bits":
                words = [int(word) for word in bits[sequence]]
                place = start + words[step].bit_count() - 1
                for key in range(start, length):
                    own = key - start
                    is_own = own < self.query_len
                    is_seen[key] = is_own and bool(words[step] >> own & 1)
                    places[key] = start + words[own].bit_count() - 1 if is_own else key
            if self.window:
                is_seen &= places > place - self.window
            rows.append(is_seen)
        return torch.stack(rows)

    def _is_stale(self, tables: Tensor, num_blocks: int) -> Tensor:
        """[blocks, block]: slots that no sequence has."""
        is_stale = torch.ones(num_blocks, self.page, dtype=torch.bool, device=tables.device)
        for table, length in zip(tables, self.context_lens, strict=True):
            places = torch.arange(length, device=tables.device)
            is_stale[table[places // self.page].long(), places % self.page] = False
        return is_stale

    def _bits(self, maker: Maker) -> Tensor:
        words = [1]
        for row in range(1, self.query_len):
            words.append(words[_TREE_FATHERS[row - 1]] | 1 << row)
        return maker.tensor([words] * len(self.context_lens), dtype=torch.int64)


def _rows(cache: Tensor, table: Tensor, length: int) -> Tensor:
    """[keys, KH, D] of one sequence, as the table has them."""
    places = torch.arange(length)
    page = cache.shape[2]
    return cache[table[places // page].long(), :, places % page]


def _head(rows: Tensor, kv_head: int) -> Tensor:
    return rows[:, kv_head].to(torch.float64)


def _case(
    name: str, size: Size, shape: Shape, dtypes: tuple[torch.dtype, ...] = (torch.bfloat16,)
) -> Case:
    return Case(
        op="paged_attention",
        name=name,
        size=size,
        make=shape.make,
        work=shape.work,
        truth=shape.truth,
        dtypes=dtypes,
        error_max={torch.float16: 1e-3},
        has_matrix_products=True,
    )


def _small(name: str, shape: Shape) -> Case:
    return _case(name, "small", shape, (torch.float32, torch.float16))


_FEW = Shape(
    context_lens=(37, 0, 5, 61), query_len=1, num_heads=4, num_kv_heads=2, head_dim=32, page=8
)
_FIVE = replace(_FEW, context_lens=(41, 5, 150), query_len=5)
_GEMMA_NEAR = Shape(
    context_lens=(4096,) * 16, query_len=5, num_heads=16, head_dim=256, page=32, window=1024
)
_GEMMA_FAR = replace(_GEMMA_NEAR, num_kv_heads=2, head_dim=512, window=0)
_QWEN_VERIFY = Shape(context_lens=(8192,) * 16, query_len=8)

CASES: tuple[Case, ...] = (
    _small("decode, splits without keys", replace(_FEW, num_splits=4, context_lens=(300, 0, 5))),
    _small("decode, pages of 64", replace(_FEW, page=64, num_heads=2, num_kv_heads=1)),
    _small("verify in splits", replace(_FIVE, num_splits=2, num_heads=2, num_kv_heads=1)),
    _small("verify within a window", replace(_FIVE, window=7, page=16)),
    _small(
        "rows that see no key",
        replace(_FIVE, window=2, num_behind=4, context_lens=(37, 5), num_splits=2),
    ),
    _small("block", replace(_FIVE, mask="block", page=32)),
    _small("tree", replace(_FIVE, mask="bits", query_len=9, context_lens=(33, 9, 90))),
    _small("tree within a window", replace(_FIVE, mask="bits", window=2, page=16)),
    _small("soft cap, scales", replace(_FIVE, soft_cap=2.0, has_scales=True, page=128)),
    _small("heads of 80", replace(_FIVE, head_dim=80, num_heads=3, num_kv_heads=3)),
    _small("heads of 192", replace(_FIVE, head_dim=192, num_heads=3, num_kv_heads=1)),
    _small("heads of 512", replace(_FEW, head_dim=512, num_heads=2, num_kv_heads=1)),
    _small("prompt", replace(_FIVE, context_lens=(150, 70), query_len=70, num_kv_heads=4)),
    _small(
        "prompt within a window",
        replace(_FIVE, context_lens=(140,), query_len=90, num_kv_heads=1, window=20),
    ),
    _case("Qwen3-8B verify 8 of 8k", "main", _QWEN_VERIFY),
    _case("Qwen3-8B decode 4k", "serving", Shape(context_lens=(4096,) * 32, query_len=1)),
    _case("Qwen3-8B decode 32k alone", "serving", Shape(context_lens=(32768,), query_len=1)),
    _case("Qwen3-8B verify 4 alone", "serving", Shape(context_lens=(4096,), query_len=4, page=64)),
    _case("Qwen3-8B verify 8 of 8k, fp8", "serving", replace(_QWEN_VERIFY, has_fp8=True)),
    _case(
        "Qwen3-8B block of 16",
        "serving",
        Shape(context_lens=(4096,) * 8, query_len=16, mask="block", page=32),
    ),
    _case(
        "Qwen3-8B tree of 16",
        "serving",
        Shape(context_lens=(4096,) * 8, query_len=16, mask="bits"),
    ),
    _case(
        "Qwen3-8B tree within a window",
        "serving",
        Shape(context_lens=(4096,) * 8, query_len=16, mask="bits", window=2048, page=64),
    ),
    _case("Qwen3-8B prompt", "serving", Shape(context_lens=(2048,), query_len=2048)),
    _case("Qwen3-8B piece of a prompt", "serving", Shape(context_lens=(4096,), query_len=512)),
    _case("soft cap, heads of 64", "serving", Shape(
        context_lens=(4096,) * 8, query_len=5, num_heads=64, head_dim=64, soft_cap=50.0
    )),
    _case("gemma-4-26B verify 5, window", "serving", _GEMMA_NEAR),
    _case("gemma-4-26B verify 5", "serving", _GEMMA_FAR),
    _case("gemma-4-26B decode, window", "serving", replace(_GEMMA_NEAR, query_len=1)),
    _case("gemma-4-26B decode", "serving", replace(_GEMMA_FAR, query_len=1)),
    _case(
        "gemma-4-26B prompt, window",
        "serving",
        replace(_GEMMA_NEAR, context_lens=(2048,), query_len=2048),
    ),
    _case(
        "gemma-4-26B prompt",
        "serving",
        replace(_GEMMA_FAR, context_lens=(2048,), query_len=2048),
    ),
)  # fmt: skip
