"""How a call of paged attention is cut into programs: from shapes alone, never from lengths.

The splits follow AITER's rule for CDNA: as many programs as give every SIMD some waves to change
between, and none for contexts that are read sooner than a second launch begins.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from kernels.ops.blocks import power_of_two
from kernels.ops.configs import tuned
from kernels.ops.launching import Config, current_target

HEAD_DIM_MAX = 512
NUM_SPLITS_MAX = 128
UNSPLIT_KEYS_MAX = 512
SPLIT_KEYS_MIN = 64
VERIFY_ROWS_MAX = 16  # queries a sequence: more are a piece of a prompt
PARTS_BYTES_MAX = 256 << 20  # what the splits' sums may take, whatever is asked for
_WAVES_A_SIMD = 2


@dataclass(frozen=True, slots=True, kw_only=True)
class Sizes:
    """What the shapes of a call say. `num_keys_max`: what a row can see at the most."""

    num_sequences: int
    query_len: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    itemsize: int  # of the queries, in whose type products are made
    num_keys_max: int
    has_tree_window: bool  # its masks need the most registers

    @property
    def group(self) -> int:
        return self.num_heads // self.num_kv_heads


@dataclass(frozen=True, slots=True)
class Plan:
    """`block_m` rows (query tokens times heads of a group) and `tile` keys are taken at once."""

    block_m: int
    block_d: int
    tile: int
    num_row_tiles: int
    num_splits: int
    config: Config


def plan(sizes: Sizes, num_splits: int = 0) -> Plan:
    """`num_splits` 0: chosen; more than there is use or memory for are cut down."""
    num_rows = sizes.query_len * sizes.group
    block_d = power_of_two(max(16, sizes.head_dim))
    default = _default(sizes, num_rows, block_d)
    key = f"head {sizes.head_dim} rows {min(256, power_of_two(num_rows))}"
    chosen = tuned("paged_attention", key, default)
    config = Config(
        num_warps=chosen["num_warps"],
        num_stages=chosen["num_stages"],
        waves_per_eu=chosen["waves_per_eu"],
        nonkdim=16,
    )
    num_row_tiles = -(-num_rows // chosen["block_m"])
    if num_splits == 0:
        num_programs = sizes.num_sequences * sizes.num_kv_heads * num_row_tiles
        num_splits = _splits(num_programs, sizes.num_keys_max, config.num_warps)
    num_splits = max(1, min(num_splits, _splits_max(sizes, chosen["tile"])))
    return Plan(chosen["block_m"], block_d, chosen["tile"], num_row_tiles, num_splits, config)


def _default(sizes: Sizes, num_rows: int, block_d: int) -> Mapping[str, int]:
    """What neither spills nor, decoding and verifying with heads up to 128, leaves less than 3
    waves a SIMD, on gfx942 and gfx950: found by compiling all around (docs/kernels.md)."""
    is_brief = sizes.query_len <= VERIFY_ROWS_MAX
    is_wide = sizes.itemsize > 2
    most = 128 if block_d <= 128 else 64 if block_d <= 256 else 32
    if is_brief or is_wide:
        most = min(most, 64)
    block_m = min(most, power_of_two(max(16, num_rows)))
    tile = 64 if block_m == 128 or block_d <= 64 else 32
    if block_d > 256 and block_m == 16:
        tile = 16
    if is_wide:
        tile = 32 if block_d <= 128 else 16
    num_warps = 4
    if block_m == 128 or (block_d > 128 and block_m == 64) or (block_d > 256 and block_m == 32):
        num_warps = 8
    is_deep = block_d <= 128 and not (sizes.has_tree_window and block_m == 64)
    return {
        "block_m": block_m,
        "tile": tile,
        "num_warps": num_warps,
        "num_stages": 2 if is_deep else 1,
        "waves_per_eu": 0,
    }


def _splits(num_programs: int, num_keys_max: int, num_warps: int) -> int:
    target = current_target()
    wanted = target.num_cus * max(1, _WAVES_A_SIMD * target.simds_a_cu // num_warps)
    if num_keys_max <= UNSPLIT_KEYS_MAX or num_programs >= wanted or num_programs == 0:
        return 1
    return power_of_two(-(-wanted // num_programs))


def _splits_max(sizes: Sizes, tile: int) -> int:
    rows = sizes.num_sequences * sizes.query_len * sizes.num_heads
    by_memory = PARTS_BYTES_MAX // max(1, rows * sizes.head_dim * 4)
    by_keys = sizes.num_keys_max // max(tile, SPLIT_KEYS_MIN)
    return min(by_memory, by_keys, NUM_SPLITS_MAX)
