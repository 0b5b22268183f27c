// What paged attention reads and writes: queries, blocks of the cache, results.
#pragma once

#include "attention_tiles.h"

namespace lr {

// Buffers of one thread while it works on one item.
struct Buffers {
  float* turned;   // [head_dim][kKeys]
  float* values;   // [kKeys][padded_dim]
  float* queries;  // [kRowsMax][head_dim]
  float* scores;   // [kTileRows][kKeys]
  float* states;   // two of State::num_floats

  static int64_t num_floats(const Attention& call) {
    int64_t dim = call.padded_dim();
    return dim * kKeys * 2 + kRowsMax * dim + kTileRows * kKeys + 2 * State::num_floats(dim);
  }
  static Buffers at(const Attention& call, float* memory) {
    int64_t dim = call.padded_dim();
    float* values = memory + dim * kKeys;
    float* queries = values + dim * kKeys;
    float* scores = queries + kRowsMax * dim;
    return Buffers{memory, values, queries, scores, scores + kTileRows * kKeys};
  }
};

inline int64_t row_offset(const Attention& call, const Item& item, int64_t row) {
  int64_t query = item.sequence * call.query_len + item.first + row / call.group;
  int64_t head = item.kv_head * call.group + row % call.group;
  return (query * call.num_kv_heads * call.group + head) * call.head_dim;
}

template <typename Element>
void read_queries(const Attention& call, const Item& item, float* queries) {
  float scale = call.scale;
  if (call.k_scale != nullptr) scale *= call.k_scale[item.kv_head];
  for (int64_t row = 0; row < item.num_rows; ++row) {
    const Element* from = (const Element*)call.q + row_offset(call, item, row);
    float* to = queries + row * call.head_dim;
    int64_t d = 0;
    for (; d + kLanes <= call.head_dim; d += kLanes)
      store(to + d, load_floats(from + d) * splat(scale));
    for (; d < call.head_dim; ++d) to[d] = to_float(from[d]) * scale;
  }
}

// Where the keys and values of block `base` lie; behind `end` the last one is named again.
template <typename Cached>
void find_keys(const Attention& call, const Item& item, int64_t base, int64_t end,
               const Cached** keys, const Cached** values) {
  const int32_t* table = call.block_tables + item.sequence * call.table_width;
  int64_t num_keys = end - base < kKeys ? end - base : kKeys;
  int64_t block = base / call.block_size, offset = base % call.block_size;
  for (int64_t i = 0; i < num_keys; ++block, offset = 0) {
    int64_t slab = table[block] * call.num_kv_heads + item.kv_head;
    for (; offset < call.block_size && i < num_keys; ++offset, ++i) {
      int64_t place = (slab * call.block_size + offset) * call.head_dim;
      keys[i] = (const Cached*)call.k_cache + place;
      values[i] = (const Cached*)call.v_cache + place;
    }
  }
  for (int64_t i = num_keys; i < kKeys; ++i) {
    keys[i] = keys[num_keys - 1];
    values[i] = values[num_keys - 1];
  }
}

// One block as the tiles want it. Values stay in the cache where each is read only once.
template <typename Cached>
struct Block {
  int64_t base;
  const Cached* keys[kKeys];
  const Cached* values[kKeys];
  const float* copied[kKeys];
  bool is_copied;
  const Cached* next_keys[kKeys];
  const Cached* next_values[kKeys];
  Ahead ahead_keys, ahead_values;
};

template <typename Cached>
void read_block(const Attention& call, const Item& item, const Buffers& buffers,
                Block<Cached>* block) {
  find_keys(call, item, block->base, item.end, block->keys, block->values);
  block->ahead_keys = block->ahead_values = Ahead{};
  if (block->base + kKeys < item.end) {
    find_keys(call, item, block->base + kKeys, item.end, block->next_keys, block->next_values);
    int64_t row_bytes = call.head_dim * (int64_t)sizeof(Cached);
    block->ahead_keys = Ahead{(const void* const*)block->next_keys, row_bytes};
    block->ahead_values = Ahead{(const void* const*)block->next_values, row_bytes};
  }
  for (int i = 0; i < kKeys; i += kLanes)
    turn_keys(block->keys + i, call.head_dim, buffers.turned + i);
  block->is_copied = item.num_rows > kTileRows || !is_whole(block->values[0], call.head_dim);
  if (!block->is_copied) return;
  for (int64_t i = 0; i < kKeys; ++i) {
    float* to = buffers.values + i * call.padded_dim();
    read_value(block->values[i], call.head_dim, to);
    block->copied[i] = to;
  }
}

// Values as `read_value` ordered them, times `factor`, in their own order again.
template <typename Element>
void write_row(const float* values, float factor, int64_t head_dim, bool is_paired, Element* to) {
  const Floats factors = splat(factor);
  int64_t d = 0;
  for (; is_paired && d + 2 * kLanes <= head_dim; d += 2 * kLanes)
    store_even_odd(to + d, load<Floats>(values + d) * factors,
                   load<Floats>(values + d + kLanes) * factors);
  for (; d + kLanes <= head_dim; d += kLanes)
    store_floats(to + d, load<Floats>(values + d) * factors);
  if (d < head_dim) store_some(to + d, load<Floats>(values + d) * factors, head_dim - d);
}

template <typename Element>
void write_rows(const Attention& call, const Item& item, const State& state) {
  float scale = 1.0f;
  if (call.v_scale != nullptr) scale = call.v_scale[item.kv_head];
  for (int64_t row = 0; row < item.num_rows; ++row) {
    float sum = sum_of(load<Floats>(state.sum + row * kLanes));
    float factor = sum == 0.0f ? 0.0f : scale / sum;
    write_row(state.values + row * call.padded_dim(), factor, call.head_dim,
              call.cache_kind == kBFloat16, (Element*)call.out + row_offset(call, item, row));
  }
}

}  // namespace lr
