// What one call of paged attention is about, and how its work is cut.
//
// A row is one query of one head. Keys are taken in blocks of kKeys and chunks of kChunkBlocks
// blocks, both counted from key 0 of the context: which sums a row is made of, and in which order,
// depends on the index of the keys it sees and on nothing else. Keys it does not see are skipped,
// not multiplied by zero, so that whatever lies there stays there.
#pragma once

#include <cstdint>

#include "simd.h"

namespace lr {

constexpr int kKeys = 64;  // of a block: one bit each of a row's 64-bit mask
constexpr int kChunkBlocks = 4;
constexpr int kRowsMax = 64;  // of an item
constexpr int kKeyVectors = kKeys / kLanes;

enum MaskKind : int32_t { kCausal = 0, kBlock = 1, kBits = 2 };

// As Python packs it.
struct Attention {
  const void* q;        // [num_sequences query_len, num_kv_heads group, head_dim]
  const void* k_cache;  // [num_blocks, num_kv_heads, block_size, head_dim]
  const void* v_cache;
  const int32_t* block_tables;  // [num_sequences, table_width]
  const int32_t* context_lens;  // [num_sequences]
  const int32_t* query_starts;
  const int64_t* mask_bits;  // [num_sequences, query_len], or null
  const float* k_scale;      // [num_kv_heads] or null
  const float* v_scale;
  void* out;  // as q
  int64_t num_sequences, query_len, group, num_kv_heads, head_dim;
  int64_t table_width, num_blocks, block_size;
  int64_t window;
  float scale, soft_cap;
  int32_t mask, kind, cache_kind;

  int64_t padded_dim() const { return (head_dim + kLanes - 1) / kLanes * kLanes; }
};

// The keys one row sees: [low, high), and start + i for each bit i of `own`.
struct Visible {
  int64_t low, high, start;
  uint64_t own;

  int64_t end() const {
    int64_t own_end = own == 0 ? 0 : start + 64 - __builtin_clzll(own);
    return own_end > high ? own_end : high;
  }
};

// Some consecutive queries of one sequence, with all heads that share one key head. Row r is
// query first + r / group, head r % group of the group.
struct Item {
  int64_t sequence, kv_head, first, num_rows;
  int64_t begin, end;  // keys that some row sees lie in here
  Visible seen[kRowsMax];
};

// Softmax under way: for each row the maximum, the sum of exp(score - maximum), lane by lane, and
// the sum of the values under those weights.
struct State {
  float* maximum;  // [kRowsMax]
  float* sum;      // [kRowsMax][kLanes]
  float* values;   // [kRowsMax][padded_dim]

  static int64_t num_floats(int64_t padded_dim) { return kRowsMax * (1 + kLanes + padded_dim); }
  static State at(float* memory) {
    return State{memory, memory + kRowsMax, memory + kRowsMax * (1 + kLanes)};
  }
};

}  // namespace lr
