// y = (high . w + low . w / 254) * s * t: rows of w are int8 with a scale t each. A row of x is held
// in two digits of int8: high = round(x / s), and low = what that leaves, 254 times as fine. One
// digit alone would cost language models a few percent of perplexity, and the second rides along
// while the weights come from memory. The sums are int32 and exact, so a row's result depends on
// nothing but the row: not on the tile it falls into, the other rows, the threads or the
// instruction set.
#include <cmath>

#include "pool.h"
#include "simd.h"
#include "values.h"

namespace lr {
namespace {

// Columns of a panel; its weights lie as [K / 4][kPanel][4], one contiguous stream.
constexpr int kVectors = 4;
constexpr int kPanel = kVectors * kLanes;
constexpr int kTileRows = kLanes == 16 ? 3 : 1;  // of x, so twice as many of digits
constexpr float kLowDigits = 254.0f;  // 2 * 127: a rest of half a step is the largest digit
constexpr float kRounding = 12582912.0f;  // 1.5 * 2^23: adding it rounds to an integer
constexpr int64_t kRowsQuantizedAlone = 32;
constexpr int64_t kMacsPerRange = 200000;  // below this a hand-over costs more than it saves

// Four products a lane, added to int32. VNNI multiplies unsigned by signed: activations carry an
// offset there, which `offsets` (-kOffset times a column's sum) takes out again.
#if (defined(LR_AVX512) && defined(__AVX512VNNI__)) || (defined(LR_AVX2) && defined(__AVXVNNI__))
#define LR_VNNI 1
constexpr int32_t kOffset = 128;
#else
constexpr int32_t kOffset = 0;
#endif

LR_INLINE Ints dot4(Ints sum, Ints x, Ints w) {
#if defined(LR_VNNI) && defined(LR_AVX512)
  return (Ints)_mm512_dpbusd_epi32((__m512i)sum, (__m512i)x, (__m512i)w);
#elif defined(LR_VNNI)
  return (Ints)_mm256_dpbusd_avx_epi32((__m256i)sum, (__m256i)x, (__m256i)w);
#elif defined(LR_AVX2)
  // |x| * sign(x) w: pairs stay below 2 * 127 * 127 < 2^15, so the saturating sum never saturates.
  __m256i pairs = _mm256_maddubs_epi16(_mm256_abs_epi8((__m256i)x),
                                       _mm256_sign_epi8((__m256i)w, (__m256i)x));
  __m256i fours = _mm256_madd_epi16(pairs, _mm256_set1_epi16(1));
  return (Ints)_mm256_add_epi32((__m256i)sum, fours);
#elif defined(__ARM_FEATURE_DOTPROD)
  return (Ints)vdotq_s32((int32x4_t)sum, (int8x16_t)x, (int8x16_t)w);
#else
  // Arithmetic shifts take the signed bytes out of each lane.
  sum += ((x << 24) >> 24) * ((w << 24) >> 24);
  sum += ((x << 16) >> 24) * ((w << 16) >> 24);
  sum += ((x << 8) >> 24) * ((w << 8) >> 24);
  return sum + (x >> 24) * (w >> 24);
#endif
}

// sums[r][v] for `Rows` rows and one panel. `next` is read ahead, four lines a step, if not null.
template <int Rows>
LR_INLINE void multiply_tile(const int8_t* panel, const int8_t* x, int64_t x_stride, int64_t steps,
                             const int8_t* next, Ints (&sums)[Rows][kVectors]) {
  for (int64_t step = 0; step < steps; ++step) {
    Ints w[kVectors];
    for (int v = 0; v < kVectors; ++v)
      w[v] = load<Ints>(panel + (step * kVectors + v) * kLanes * 4);
    if (next != nullptr)
      for (int v = 0; v < kVectors; ++v) prefetch(next + (step * kVectors + v) * kLanes * 4);
    for (int r = 0; r < Rows; ++r) {
      int32_t four;
      std::memcpy(&four, x + r * x_stride + step * 4, 4);
      Ints spread = splat(four);
      for (int v = 0; v < kVectors; ++v) sums[r][v] = dot4(sums[r][v], spread, w[v]);
    }
  }
}

}  // namespace

// As Python's ctypes structure has it. Arrays are padded with zeros to whole panels.
struct Int8Weight {
  const int8_t* packed;    // [panels][k_padded / 4][kPanel][4]
  const float* scales;     // [panels * kPanel]
  const int32_t* offsets;  // [panels * kPanel]
  int64_t n;
  int64_t k;
};

namespace {

LR_INLINE int64_t padded_to(int64_t value, int64_t multiple) {
  return (value + multiple - 1) / multiple * multiple;
}

// The largest magnitude, found on bit patterns: NaN is larger than infinity there and so survives.
template <typename Element>
float largest_magnitude(const Element* x, int64_t k) {
  Ints best = {};
  int64_t i = 0;
  for (; i + kLanes <= k; i += kLanes)
    best = larger(best, (Ints)(as_words(load_floats(x + i)) & 0x7fffffffu));
  if (i < k) best = larger(best, (Ints)(as_words(load_some(x + i, k - i)) & 0x7fffffffu));
  int32_t bits = max_of(best);
  float result;
  std::memcpy(&result, &bits, 4);
  return result;
}

// Integers as floats → bytes, kOffset added.
LR_INLINE Bytes digits(Floats whole) {
  return __builtin_convertvector((as_words(whole + splat(kRounding)) + (uint32_t)kOffset) & 0xffu,
                                 Bytes);
}

// Both digits of x / scale, each to the nearest integer, halves to even.
LR_INLINE void quantize(Floats x, Floats scale, Bytes* high, Bytes* low) {
  Floats steps = smaller(splat(127.0f), larger(splat(-127.0f), x / scale));
  Floats whole = steps + splat(kRounding) - splat(kRounding);
  *high = digits(whole);
  *low = digits((steps - whole) * splat(kLowDigits));
}

// Writes two rows of k bytes, each with zero or more of padding (whose weights are zero); returns
// the row's scale.
template <typename Element>
float quantize_row(const Element* x, int64_t k, int8_t* to) {
  float scale = largest_magnitude(x, k) / 127.0f;
  Floats divisor = splat(scale == 0.0f ? 1.0f : scale);
  int8_t* to_low = to + padded_to(k, 4);
  Bytes high, low;
  int64_t i = 0;
  for (; i + kLanes <= k; i += kLanes) {
    quantize(load_floats(x + i), divisor, &high, &low);
    store(to + i, high);
    store(to_low + i, low);
  }
  if (i < k) {
    quantize(load_some(x + i, k - i), divisor, &high, &low);
    std::memcpy(to + i, &high, (size_t)(padded_to(k, 4) - i));
    std::memcpy(to_low + i, &low, (size_t)(padded_to(k, 4) - i));
  }
  return scale;
}

struct Call {
  const Int8Weight* weight;
  const int8_t* x;  // [rows][2][x_stride]: digits, high and low
  const float* x_scales;
  int64_t x_stride;
  const float* bias;
  void* out;
  int64_t out_stride;  // elements
  int64_t rows;
};

template <typename Element>
LR_INLINE void write_vector(const Call& call, int64_t row, int64_t column, Ints high, Ints low) {
  const Int8Weight& weight = *call.weight;
  int64_t room = weight.n - column;
  if (room <= 0) return;
  Floats sum = __builtin_convertvector(low, Floats) * splat(1.0f / kLowDigits);
  sum = sum + __builtin_convertvector(high, Floats);
  Floats value = sum * splat(call.x_scales[row]) * load<Floats>(weight.scales + column);
  Element* to = (Element*)call.out + row * call.out_stride + column;
  if (room >= kLanes) {
    if (call.bias != nullptr) value = value + load<Floats>(call.bias + column);
    return store_floats(to, value);
  }
  if (call.bias != nullptr) value = value + load_some(call.bias + column, room);
  store_some(to, value, room);
}

template <int Rows, typename Element>
void run_tile(const Call& call, int64_t row, int64_t panel_index, const int8_t* next) {
  const Int8Weight& weight = *call.weight;
  int64_t steps = padded_to(weight.k, 4) / 4;
  const int8_t* panel = weight.packed + panel_index * steps * kPanel * 4;
  Ints sums[2 * Rows][kVectors];
  for (int v = 0; v < kVectors; ++v) {
    Ints start = load<Ints>(weight.offsets + panel_index * kPanel + v * kLanes);
    for (int r = 0; r < 2 * Rows; ++r) sums[r][v] = start;
  }
  const int8_t* x = call.x + 2 * row * call.x_stride;
  multiply_tile<2 * Rows>(panel, x, call.x_stride, steps, next, sums);
  for (int r = 0; r < Rows; ++r)
    for (int v = 0; v < kVectors; ++v)
      write_vector<Element>(call, row + r, panel_index * kPanel + v * kLanes, sums[2 * r][v],
                            sums[2 * r + 1][v]);
}

template <typename Element>
void run_rows(const Call& call, int64_t row, int64_t rows, int64_t panel, const int8_t* next) {
  switch (rows) {
    case 1: return run_tile<1, Element>(call, row, panel, next);
#if defined(LR_AVX512)
    case 2: return run_tile<2, Element>(call, row, panel, next);
    case 3: return run_tile<3, Element>(call, row, panel, next);
#endif
  }
}

// Every row for one panel before the next one: weights come from memory once. While the first
// tile waits for memory the later ones have theirs in cache, so they fetch the next panel.
template <typename Element>
void run_panels(const Call& call, int64_t begin, int64_t end) {
  int64_t num_tiles = (call.rows + kTileRows - 1) / kTileRows;
  int64_t panel_bytes = padded_to(call.weight->k, 4) * kPanel;
  for (int64_t panel = begin; panel < end; ++panel) {
    const int8_t* following = call.weight->packed + (panel + 1) * panel_bytes;
    int64_t row = 0;
    for (int64_t tile = 0; tile < num_tiles; ++tile) {
      int64_t rows = (call.rows - row + (num_tiles - tile) - 1) / (num_tiles - tile);
      const int8_t* next = tile == 1 && panel + 1 < end ? following : nullptr;
      run_rows<Element>(call, row, rows, panel, next);
      row += rows;
    }
  }
}

template <typename Element>
void quantize_rows(const Element* x, int64_t stride, int64_t rows, int64_t k, int8_t* to,
                   float* scales) {
  int64_t grain = rows < kRowsQuantizedAlone ? rows : 8;
  parallel_ranges(rows, grain, [=](int64_t begin, int64_t end) {
    for (int64_t row = begin; row < end; ++row)
      scales[row] = quantize_row(x + row * stride, k, to + 2 * row * padded_to(k, 4));
  });
}

}  // namespace
}  // namespace lr

using namespace lr;

extern "C" LR_EXPORT int32_t lr_int8_panel() { return kPanel; }

// w [n, k] int8 with the given row stride → `packed` and `offsets` (zeroed by the caller).
extern "C" LR_EXPORT void lr_pack_int8(const int8_t* w, int64_t stride, int64_t n, int64_t k,
                                       int8_t* packed, int32_t* offsets) {
  int64_t steps = padded_to(k, 4) / 4;
  parallel_ranges(n, 64, [=](int64_t begin, int64_t end) {
    for (int64_t column = begin; column < end; ++column) {
      int8_t* panel = packed + column / kPanel * steps * kPanel * 4 + column % kPanel * 4;
      int32_t total = 0;
      for (int64_t i = 0; i < k; ++i) {
        panel[i / 4 * kPanel * 4 + i % 4] = w[column * stride + i];
        total += w[column * stride + i];
      }
      offsets[column] = -kOffset * total;
    }
  });
}

// As Python packs it. Kinds are lr::Kind, strides count elements.
struct Int8Call {
  const Int8Weight* weight;
  const void* x;  // [rows, k]
  const float* bias;  // [n] or null
  void* out;  // [rows, n]
  int64_t rows, x_stride, out_stride;
  int32_t x_kind, out_kind;
};

// 0, or 1 without memory.
extern "C" LR_EXPORT int32_t lr_linear_int8(const Int8Call* given) {
  const Int8Weight& weight = *given->weight;
  int64_t rows = given->rows, k = weight.k, padded = padded_to(k, 4);
  auto* x = (int8_t*)scratch(kQuantized, 2 * rows * padded);
  auto* scales = (float*)scratch(kRowScales, rows * (int64_t)sizeof(float));
  if (x == nullptr || scales == nullptr) return 1;
  if (given->x_kind == kBFloat16)
    quantize_rows((const BFloat16*)given->x, given->x_stride, rows, k, x, scales);
  else
    quantize_rows((const float*)given->x, given->x_stride, rows, k, x, scales);
  Call call{&weight, x, scales, padded, given->bias, given->out, given->out_stride, rows};
  int64_t panels = (weight.n + kPanel - 1) / kPanel;
  int64_t grain = kMacsPerRange / (k * kPanel * (rows < 4 ? 4 : rows)) + 1;
  int64_t fair = panels / (num_threads() * 4);
  if (fair > grain) grain = fair;
  parallel_ranges(panels, grain, [&](int64_t begin, int64_t end) {
    if (given->out_kind == kBFloat16)
      run_panels<BFloat16>(call, begin, end);
    else
      run_panels<float>(call, begin, end);
  });
  return 0;
}
