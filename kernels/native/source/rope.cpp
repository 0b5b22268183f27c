// Queries and keys normed (if their weights are given) and rotated; keys and values to the cache.
#include <cmath>

#include "pool.h"
#include "simd.h"
#include "values.h"

namespace lr {
namespace {

constexpr int64_t kHeadDimMax = 1024;
constexpr int64_t kElementsPerRange = 32768;

// As Python packs it.
struct Rope {
  const void* qkv;  // [rows, (num_heads + 2 num_kv_heads) head_dim]
  const int64_t* positions;
  const float* cos_sin;  // [num_positions, rotary_dim]: cosines, then sines
  const int64_t* slots;
  void* k_cache;  // [blocks, num_kv_heads, block_size, head_dim]
  void* v_cache;
  const void* q_norm;  // [head_dim] or null
  const void* k_norm;
  const float* k_scale;  // [num_kv_heads] or null
  const float* v_scale;
  void* q_out;  // [rows, num_heads, head_dim], of the kind of qkv
  int64_t rows, num_heads, num_kv_heads, head_dim;
  int64_t num_blocks, block_size;
  int64_t num_positions, rotary_dim;
  float eps;
  int32_t is_interleaved, kind, cache_kind, norm_kind;
};

template <typename Element>
void read_head(const Element* from, int64_t head_dim, float* to) {
  int64_t i = 0;
  for (; i + kLanes <= head_dim; i += kLanes) store(to + i, load_floats(from + i));
  for (; i < head_dim; ++i) to[i] = to_float(from[i]);
}

template <typename Element>
void write_head(const float* from, int64_t head_dim, float divisor, Element* to) {
  const Floats divisors = splat(divisor);
  int64_t i = 0;
  if (divisor == 1.0f)
    for (; i + kLanes <= head_dim; i += kLanes) store_floats(to + i, load<Floats>(from + i));
  for (; i + kLanes <= head_dim; i += kLanes)
    store_floats(to + i, load<Floats>(from + i) / divisors);
  for (; i < head_dim; ++i) assign(to + i, from[i] / divisor);
}

void norm_head(float* head, const float* weight, int64_t head_dim, float eps) {
  Floats sums = {};
  int64_t i = 0;
  for (; i + kLanes <= head_dim; i += kLanes) {
    Floats value = load<Floats>(head + i);
    sums = multiply_add(value, value, sums);
  }
  float sum = sum_of(sums);
  for (; i < head_dim; ++i) sum += head[i] * head[i];
  float factor = 1.0f / std::sqrt(sum / (float)head_dim + eps);
  for (int64_t j = 0; j < head_dim; ++j) head[j] = head[j] * factor * weight[j];
}

void rotate_halves(float* head, const float* cos_sin, int64_t half) {
  const float* sines = cos_sin + half;
  int64_t i = 0;
  for (; i + kLanes <= half; i += kLanes) {
    Floats cosine = load<Floats>(cos_sin + i), sine = load<Floats>(sines + i);
    Floats low = load<Floats>(head + i), high = load<Floats>(head + half + i);
    store(head + i, low * cosine - high * sine);
    store(head + half + i, high * cosine + low * sine);
  }
  for (; i < half; ++i) {
    float low = head[i], high = head[half + i];
    head[i] = low * cos_sin[i] - high * sines[i];
    head[half + i] = high * cos_sin[i] + low * sines[i];
  }
}

void rotate_neighbours(float* head, const float* cos_sin, int64_t half) {
  const float* sines = cos_sin + half;
  for (int64_t i = 0; i < half; ++i) {
    float even = head[2 * i], odd = head[2 * i + 1];
    head[2 * i] = even * cos_sin[i] - odd * sines[i];
    head[2 * i + 1] = odd * cos_sin[i] + even * sines[i];
  }
}

template <typename Element>
void turn_head(const Rope& rope, const Element* from, const float* norm, int64_t position,
               float* head) {
  read_head(from, rope.head_dim, head);
  if (norm != nullptr) norm_head(head, norm, rope.head_dim, rope.eps);
  const float* cos_sin = rope.cos_sin + position * rope.rotary_dim;
  if (rope.is_interleaved)
    rotate_neighbours(head, cos_sin, rope.rotary_dim / 2);
  else
    rotate_halves(head, cos_sin, rope.rotary_dim / 2);
}

// The weights of a norm in float32, or null where there is none.
const float* read_norm(const void* weight, const Rope& rope, float* to) {
  if (weight == nullptr) return nullptr;
  if (rope.norm_kind == kBFloat16)
    read_head((const BFloat16*)weight, rope.head_dim, to);
  else
    read_head((const float*)weight, rope.head_dim, to);
  return to;
}

template <typename Element, typename Cached>
void rope_rows(const Rope& rope, int64_t begin, int64_t end) {
  alignas(64) float head[kHeadDimMax], q_weights[kHeadDimMax], k_weights[kHeadDimMax];
  const float* q_norm = read_norm(rope.q_norm, rope, q_weights);
  const float* k_norm = read_norm(rope.k_norm, rope, k_weights);
  int64_t dim = rope.head_dim, num_heads = rope.num_heads, num_kv_heads = rope.num_kv_heads;
  for (int64_t row = begin; row < end; ++row) {
    const Element* heads = (const Element*)rope.qkv + row * (num_heads + 2 * num_kv_heads) * dim;
    const Element* keys = heads + num_heads * dim;
    const Element* values = keys + num_kv_heads * dim;
    int64_t position = rope.positions[row];
    int64_t block = rope.slots[row] / rope.block_size, offset = rope.slots[row] % rope.block_size;
    Element* queries = (Element*)rope.q_out + row * num_heads * dim;
    for (int64_t h = 0; h < num_heads; ++h) {
      turn_head(rope, heads + h * dim, q_norm, position, head);
      write_head(head, dim, 1.0f, queries + h * dim);
    }
    for (int64_t h = 0; h < num_kv_heads; ++h) {
      int64_t place = ((block * num_kv_heads + h) * rope.block_size + offset) * dim;
      turn_head(rope, keys + h * dim, k_norm, position, head);
      write_head(head, dim, rope.k_scale == nullptr ? 1.0f : rope.k_scale[h],
                 (Cached*)rope.k_cache + place);
      read_head(values + h * dim, dim, head);
      write_head(head, dim, rope.v_scale == nullptr ? 1.0f : rope.v_scale[h],
                 (Cached*)rope.v_cache + place);
    }
  }
}

}  // namespace
}  // namespace lr

using namespace lr;

// 0; 1: a position or a slot out of range; 2: a head larger than kHeadDimMax.
extern "C" LR_EXPORT int32_t lr_rope_kv_write(const Rope* given) {
  const Rope& rope = *given;
  if (rope.head_dim > kHeadDimMax) return 2;
  int64_t num_slots = rope.num_blocks * rope.block_size;
  for (int64_t row = 0; row < rope.rows; ++row)
    if (rope.positions[row] < 0 || rope.positions[row] >= rope.num_positions ||
        rope.slots[row] < 0 || rope.slots[row] >= num_slots)
      return 1;
  int64_t width = (rope.num_heads + 2 * rope.num_kv_heads) * rope.head_dim;
  parallel_ranges(rope.rows, kElementsPerRange / width + 1, [&](int64_t begin, int64_t end) {
    if (rope.kind == kBFloat16 && rope.cache_kind == kBFloat16)
      rope_rows<BFloat16, BFloat16>(rope, begin, end);
    else if (rope.kind == kBFloat16)
      rope_rows<BFloat16, float>(rope, begin, end);
    else if (rope.cache_kind == kBFloat16)
      rope_rows<float, BFloat16>(rope, begin, end);
    else
      rope_rows<float, float>(rope, begin, end);
  });
  return 0;
}
