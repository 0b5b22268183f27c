"""What a model is and how the engine runs it: frozen, checked once, read by every layer above."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum

from backend.errors import SetupError


class DType(StrEnum):
    FLOAT32 = "float32"
    BFLOAT16 = "bfloat16"


class Quantization(StrEnum):
    """How linear weights are held; `INT8` is one scale a row of the weight, activations too."""

    NONE = "none"
    INT8 = "int8"


class Rejection(StrEnum):
    """How drafts that were drawn at random are verified for requests without a seed."""

    BLOCK = "block"  # all of a round together; never accepts fewer
    STANDARD = "standard"  # one by one


class RopeScaling(StrEnum):
    NONE = "none"
    LINEAR = "linear"
    LLAMA3 = "llama3"
    YARN = "yarn"


@dataclass(frozen=True, slots=True)
class RopeConfig:
    """Rotary positions. `is_interleaved`: pairs (0, 1), (2, 3)… instead of the two halves."""

    theta: float
    rotary_dim: int
    scaling: RopeScaling = RopeScaling.NONE
    factor: float = 1.0
    low_frequency_factor: float = 1.0  # llama3
    high_frequency_factor: float = 4.0  # llama3
    original_context_len: int = 0  # llama3, yarn
    beta_fast: float = 32.0  # yarn
    beta_slow: float = 1.0  # yarn
    attention_factor: float | None = None  # yarn; None derives it from `factor`
    is_interleaved: bool = False
    # GGUF carries the llama3 scaling as one divisor a pair; empty: none.
    frequency_divisors: tuple[float, ...] = ()


@dataclass(frozen=True, slots=True)
class ModelConfig:
    """One decoder-only transformer, as its family reads it from config.json or GGUF metadata."""

    family: str  # key of models.registry.FAMILIES
    vocab_size: int
    hidden_size: int
    num_layers: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    intermediate_size: int
    rms_norm_eps: float
    rope: RopeConfig
    context_len_max: int
    tie_embeddings: bool
    has_attention_bias: bool = False
    has_qk_norm: bool = False
    bos_token_id: int | None = None
    eos_token_ids: tuple[int, ...] = ()

    def __post_init__(self) -> None:
        if self.num_heads % self.num_kv_heads:
            raise SetupError(
                f"{self.num_heads} attention heads do not divide by {self.num_kv_heads} KV heads"
            )


@dataclass(frozen=True, slots=True)
class ShapeSet:
    """The only sizes a step may have, so that each can be captured as a graph once.

    A batch of decodes is padded up to the next of `decode_batches`, a chunk of a prompt to the next
    of `prefill_lens`, a block table to the next of `table_widths` (in blocks; empty: powers of two
    up to the context).
    """

    decode_batches: tuple[int, ...] = (1, 2, 3, 4, 6, 8, 12, 16, 24, 32)
    prefill_lens: tuple[int, ...] = (8, 16, 32, 64, 96, 128, 192, 256, 384, 512)
    table_widths: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class KernelChoice:
    """Who computes the ops (`kernels.dispatch.IMPLEMENTATIONS`), and what was found against some.

    `withheld`: op → why torch serves it on this GPU; `verdict`: the doctor's summary, for people.
    """

    implementation: str = "auto"
    withheld: Mapping[str, str] = field(default_factory=dict, hash=False)
    verdict: str = "not examined"


CPU_BATCH_ROWS = 64


@dataclass(frozen=True, slots=True)
class EngineConfig:
    """How one model is run. Sizes are tokens unless their name says otherwise."""

    dtype: DType = DType.BFLOAT16
    quantization: Quantization = Quantization.NONE
    device: str = "cpu"
    num_threads: int = 0  # of the CPU; 0: cores - 1, at least 1
    block_size: int = 32
    kv_cache_bytes: int = 512 * 1024 * 1024
    context_len_max: int = 0  # 0: the model's own
    sequences_max: int = 32  # running at once
    rows_max: int = 512  # the token budget of one step
    # Of batch prompts in one step: who arrives meanwhile waits for it. 0: on a CPU, where a step
    # takes as long as it has rows, CPU_BATCH_ROWS; elsewhere rows_max.
    batch_rows_max: int = 0
    prefills_max: int = 4  # prompts that share one step
    waiting_max: int = 256  # more are refused as Overloaded
    batch_age_s: float = 30.0  # a batch request that waited so long is treated as interactive
    is_prefix_cached: bool = True
    proposer: str = "none"
    num_drafts_max: int = 0
    rejection: Rejection = Rejection.BLOCK
    ngram_lens: tuple[int, ...] = (5, 3, 2, 1)  # of ends of a text that are looked up
    suffix_tokens_max: int = 100_000  # of earlier answers that are remembered: 50 MB or so
    draft_path: str = ""  # the draft head or draft model, for methods that have one
    is_draft_forced: bool = False  # use it even if it was made for another target
    method_why: str = ""  # for people: why this `proposer` …
    drafts_why: str = ""  # … and this `num_drafts_max`
    shapes: ShapeSet = field(default_factory=ShapeSet)
    kernels: KernelChoice = field(default_factory=KernelChoice)

    @property
    def batch_rows(self) -> int:
        """Rows that prompts of the batch lane may take in one step."""
        if self.batch_rows_max:
            return min(self.batch_rows_max, self.rows_max)
        is_cpu = self.device.split(":")[0] == "cpu"
        return min(CPU_BATCH_ROWS, self.rows_max) if is_cpu else self.rows_max
