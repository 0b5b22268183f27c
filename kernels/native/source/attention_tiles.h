// The inner loops of paged attention, on one block of keys in float32.
#pragma once

#include "attention.h"
#include "transpose.h"
#include "values.h"

namespace lr {

constexpr int kTileVectors = 4;
constexpr int kTileRows = kLanes == 16 ? 6 : 2;

// keys[i] of kLanes keys → turned[d * kKeys + i].
LR_INLINE void turn_keys(const float* const* keys, int64_t head_dim, float* turned) {
  int64_t d = 0;
  for (; d + kLanes <= head_dim; d += kLanes) {
    Words rows[kLanes];
    for (int i = 0; i < kLanes; ++i) rows[i] = load<Words>(keys[i] + d);
    transpose(rows);
    for (int j = 0; j < kLanes; ++j) store(turned + (d + j) * kKeys, rows[j]);
  }
  for (; d < head_dim; ++d)
    for (int i = 0; i < kLanes; ++i) turned[d * kKeys + i] = keys[i][d];
}

// Pairs of bfloat16 turn as one word and come apart afterwards.
LR_INLINE void turn_keys(const BFloat16* const* keys, int64_t head_dim, float* turned) {
  int64_t d = 0;
  for (; d + 2 * kLanes <= head_dim; d += 2 * kLanes) {
    Words rows[kLanes];
    for (int i = 0; i < kLanes; ++i) rows[i] = load<Words>(keys[i] + d);
    transpose(rows);
    for (int j = 0; j < kLanes; ++j) {
      store(turned + (d + 2 * j) * kKeys, rows[j] << 16);
      store(turned + (d + 2 * j + 1) * kKeys, rows[j] & 0xffff0000u);
    }
  }
  for (; d < head_dim; ++d)
    for (int i = 0; i < kLanes; ++i) turned[d * kKeys + i] = to_float(keys[i][d]);
}

// Values are added up in the order in which they load fastest: of bfloat16, in each 2 kLanes
// dimensions the even ones come before the odd ones.

// Whether `load_value` may read a cached value itself: there is no rest of a vector.
LR_INLINE bool is_whole(const float*, int64_t head_dim) { return head_dim % kLanes == 0; }
LR_INLINE bool is_whole(const BFloat16*, int64_t head_dim) { return head_dim % (2 * kLanes) == 0; }

template <int Vectors>
LR_INLINE void load_value(const float* from, Floats (&value)[Vectors]) {
  for (int v = 0; v < Vectors; ++v) value[v] = load<Floats>(from + v * kLanes);
}

template <int Vectors>
LR_INLINE void load_value(const BFloat16* from, Floats (&value)[Vectors]) {
  static_assert(Vectors % 2 == 0, "even and odd places come together");
  for (int v = 0; v < Vectors; v += 2) load_even_odd(from + v * kLanes, &value[v], &value[v + 1]);
}

// A cached value in float32, in that order and with zeros behind it.
LR_INLINE void read_value(const float* value, int64_t head_dim, float* to) {
  int64_t d = 0;
  for (; d + kLanes <= head_dim; d += kLanes) store(to + d, load<Floats>(value + d));
  if (d < head_dim) store(to + d, load_some(value + d, head_dim - d));
}

LR_INLINE void read_value(const BFloat16* value, int64_t head_dim, float* to) {
  int64_t d = 0;
  for (; d + 2 * kLanes <= head_dim; d += 2 * kLanes) {
    Floats even, odd;
    load_even_odd(value + d, &even, &odd);
    store(to + d, even);
    store(to + d + kLanes, odd);
  }
  for (; d + kLanes <= head_dim; d += kLanes) store(to + d, load_floats(value + d));
  if (d < head_dim) store(to + d, load_some(value + d, head_dim - d));
}

// What the next block will need, fetched a little at a time while this one is worked on: all at
// once would only fill the queue that the fetches of this one wait in.
struct Ahead {
  const void* const* rows;  // [kKeys], or null
  int64_t row_bytes;

  LR_INLINE void fetch(int64_t row) const {
    if (rows == nullptr || row >= kKeys) return;
    for (int64_t i = 0; i < row_bytes; i += 64) prefetch((const char*)rows[row] + i);
  }
};

// scores[r * kKeys + key] = queries[r] . keys[key], added up from the first dimension to the last.
template <int Rows>
void score_tile(const float* queries, const float* turned, int64_t head_dim, Ahead ahead,
                float* scores) {
  for (int first = 0; first < kKeyVectors; first += kTileVectors) {
    Floats sums[Rows][kTileVectors] = {};
    for (int64_t d = 0; d < head_dim; ++d) {
      Floats keys[kTileVectors];
      for (int v = 0; v < kTileVectors; ++v)
        keys[v] = load<Floats>(turned + d * kKeys + (first + v) * kLanes);
      for (int v = 0; v < kTileVectors; ++v) keep_in_register(&keys[v]);
      if (first == 0) ahead.fetch(d);
      for (int r = 0; r < Rows; ++r) {
        Floats query = splat(queries[r * head_dim + d]);
        for (int v = 0; v < kTileVectors; ++v)
          sums[r][v] = multiply_add(query, keys[v], sums[r][v]);
      }
    }
    for (int r = 0; r < Rows; ++r)
      for (int v = 0; v < kTileVectors; ++v)
        store(scores + r * kKeys + (first + v) * kLanes, sums[r][v]);
  }
}

// to[r] += weights[r][key] * values[key] for each key of `list`, in its order.
template <int Rows, int Vectors, typename Value>
LR_INLINE void value_tile(const float* weights, const Value* const* values, int64_t first,
                          const uint8_t* list, int num_listed, Ahead ahead, float* to,
                          int64_t stride) {
  Floats sums[Rows][Vectors];
  for (int r = 0; r < Rows; ++r)
    for (int v = 0; v < Vectors; ++v) sums[r][v] = load<Floats>(to + r * stride + v * kLanes);
  for (int i = 0; i < num_listed; ++i) {
    int64_t key = list[i];
    Floats value[Vectors];
    load_value(values[key] + first, value);
    for (int v = 0; v < Vectors; ++v) keep_in_register(&value[v]);
    ahead.fetch(i);
    for (int r = 0; r < Rows; ++r) {
      Floats weight = splat(weights[r * kKeys + key]);
      for (int v = 0; v < Vectors; ++v) sums[r][v] = multiply_add(weight, value[v], sums[r][v]);
    }
  }
  for (int r = 0; r < Rows; ++r)
    for (int v = 0; v < Vectors; ++v) store(to + r * stride + v * kLanes, sums[r][v]);
}

template <int Rows, typename Value>
void add_values(const float* weights, const Value* const* values, int64_t dim,
                const uint8_t* list, int num_listed, Ahead ahead, float* to) {
  constexpr int kSmall = sizeof(Value) == 2 ? 2 : 1;
  int64_t d = 0;
  for (; d + kTileVectors * kLanes <= dim; d += kTileVectors * kLanes)
    value_tile<Rows, kTileVectors>(weights, values, d, list, num_listed,
                                   d == 0 ? ahead : Ahead{}, to + d, dim);
  for (; d < dim; d += kSmall * kLanes)
    value_tile<Rows, kSmall>(weights, values, d, list, num_listed, Ahead{}, to + d, dim);
}

// Lanes whose bit is not set become -infinity.
LR_INLINE Floats keep_seen(Floats scores, uint64_t bits) {
  const Floats nothing = splat(-__builtin_inff());
#if defined(LR_AVX512)
  return (Floats)_mm512_mask_mov_ps((__m512)nothing, (__mmask16)bits, (__m512)scores);
#else
  float kept[kLanes];
  store(kept, scores);
  for (int i = 0; i < kLanes; ++i)
    if ((bits >> i & 1) == 0) kept[i] = nothing[i];
  return load<Floats>(kept);
#endif
}

// soft_cap * tanh(x / soft_cap), as 1 - 2 / (exp(2 |x|) + 1) with the sign put back.
LR_INLINE Floats capped(Floats scores, float soft_cap) {
  Floats ratio = scores / splat(soft_cap);
  Words sign = as_words(ratio) & 0x80000000u;
  Floats size = as_floats(as_words(ratio) ^ sign);
  Floats bent = splat(1.0f) - splat(2.0f) / (exponential(size * 2.0f) + 1.0f);
  return as_floats(as_words(bent) | sign) * soft_cap;
}

inline bool has_nan(const Floats (&scores)[kKeyVectors]) {
  for (const Floats& score : scores)
    for (int i = 0; i < kLanes; ++i)
      if (score[i] != score[i]) return true;
  return false;
}

// One row and one block: scores become weights, and the row's state moves to the new maximum.
// False when the row sees nothing here (or only -infinity): its state is as before.
inline bool soften(float* scores, uint64_t bits, float soft_cap, float* maximum, float* sum,
                   float* values, int64_t padded_dim) {
  Floats score[kKeyVectors];
  Floats largest = splat(-__builtin_inff());
  for (int v = 0; v < kKeyVectors; ++v) {
    score[v] = load<Floats>(scores + v * kLanes);
    if (soft_cap > 0.0f) score[v] = capped(score[v], soft_cap);
    if (bits != ~(uint64_t)0) score[v] = keep_seen(score[v], bits >> (v * kLanes));
    largest = larger(score[v], largest);
  }
  float before = *maximum;
  float after = max_of(largest);
  if (after == -__builtin_inff()) {
    if (!has_nan(score)) return false;
    after = 0.0f;  // any will do: the row becomes NaN, as it should
  }
  if (after > before) {
    *maximum = after;
    Floats shrink = exponential_bounded(splat(before - after));
    store(sum, load<Floats>(sum) * shrink);
    for (int64_t d = 0; d < padded_dim; d += kLanes)
      store(values + d, load<Floats>(values + d) * shrink);
  } else {
    after = before;
  }
  Floats total[kKeyVectors];
  for (int v = 0; v < kKeyVectors; ++v) {
    total[v] = exponential_bounded(score[v] - splat(after));
    store(scores + v * kLanes, total[v]);
  }
  for (int width = kKeyVectors / 2; width > 0; width /= 2)
    for (int v = 0; v < width; ++v) total[v] = total[v] + total[v + width];
  store(sum, load<Floats>(sum) + total[0]);
  return true;
}

}  // namespace lr
