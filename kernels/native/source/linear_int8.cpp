// y = sum over groups of (q . w) * s, times t. A row of w is int8 with one scale t; a row of x is
// int8 with a scale s for each kGroup neighbours, so that an outlier coarsens only its own. (One
// scale a row costs SmolLM2-135M 3.5 % of perplexity, these 0.8 %, of which the weights are 0.6 %.)
// The sums of a group are int32 and exact, and the groups are added in their order, two roundings
// each: a row's result depends on nothing but the row, not on the tile it falls into, the other
// rows, the threads or the instruction set.
#include "linear_int8.h"

#include "pool.h"
#include "simd.h"
#include "values.h"

namespace lr {
namespace {

constexpr int64_t kGroup = 64;
// Columns of a panel; its weights lie as [K / 4][kPanel][4], one contiguous stream.
constexpr int kVectors = 4;
constexpr int kPanel = kVectors * kLanes;
constexpr int kTileRows = kLanes == 16 ? 6 : 2;
constexpr float kRounding = 12582912.0f;  // 1.5 * 2^23: adding it rounds to an integer
constexpr float kTiny = 1e-34f;           // a group of smaller numbers is zero
constexpr int64_t kLineBytes = 64;
constexpr int64_t kAheadBytes = 4096;
constexpr int64_t kRowsQuantizedAlone = 32;
constexpr int64_t kMacsPerRange = 200000;  // below this a hand-over costs more than it saves

// Four products a lane, added to int32. VNNI multiplies unsigned by signed: weights carry an
// offset there, which the start of a group's sum, -kOffset times the sum of its q, takes out.
#if (defined(LR_AVX512) && defined(__AVX512VNNI__)) || (defined(LR_AVX2) && defined(__AVXVNNI__))
#define LR_VNNI 1
constexpr int32_t kOffset = 128;
#else
constexpr int32_t kOffset = 0;
#endif

LR_INLINE Ints dot4(Ints sum, Ints w, Ints x) {
#if defined(LR_VNNI) && defined(LR_AVX512)
  return (Ints)_mm512_dpbusd_epi32((__m512i)sum, (__m512i)w, (__m512i)x);
#elif defined(LR_VNNI)
  return (Ints)_mm256_dpbusd_avx_epi32((__m256i)sum, (__m256i)w, (__m256i)x);
#elif defined(LR_AVX2)
  // |x| * sign(x) w: pairs stay below 2 * 127 * 127 < 2^15, so the saturating sum never saturates.
  __m256i pairs = _mm256_maddubs_epi16(_mm256_abs_epi8((__m256i)x),
                                       _mm256_sign_epi8((__m256i)w, (__m256i)x));
  __m256i fours = _mm256_madd_epi16(pairs, _mm256_set1_epi16(1));
  return (Ints)_mm256_add_epi32((__m256i)sum, fours);
#elif defined(__ARM_FEATURE_DOTPROD)
  return (Ints)vdotq_s32((int32x4_t)sum, (int8x16_t)w, (int8x16_t)x);
#else
  // Arithmetic shifts take the signed bytes out of each lane.
  sum += ((x << 24) >> 24) * ((w << 24) >> 24);
  sum += ((x << 16) >> 24) * ((w << 16) >> 24);
  sum += ((x << 8) >> 24) * ((w << 8) >> 24);
  return sum + (x >> 24) * (w >> 24);
#endif
}

LR_INLINE int64_t padded_to(int64_t value, int64_t multiple) {
  return (value + multiple - 1) / multiple * multiple;
}

// A group of a row of x.
struct Group {
  float scale;
  int32_t start;  // -kOffset times the sum of its q
};

// Rows of x as the kernel wants them.
struct Quantized {
  int8_t* values;  // [rows][stride], zeros behind k
  Group* groups;   // [rows][num_groups]
  int64_t stride, num_groups;
};

// Whole numbers near zero → their low bytes.
LR_INLINE void store_bytes(int8_t* to, Ints whole) {
#if defined(LR_AVX512)
  _mm_storeu_si128((__m128i*)to, _mm512_cvtepi32_epi8((__m512i)whole));
#else
  store(to, __builtin_convertvector((Words)whole & 0xffu, Bytes));
#endif
}

// q of kGroup numbers: x * (127 / size) to the nearest integer, halves to even. Magnitudes are
// compared as bit patterns, where NaN is the largest and so reaches the scale.
template <typename Element>
LR_INLINE Group quantize_group(const Element* x, int8_t* to) {
  constexpr int kParts = kGroup / kLanes;
  Floats value[kParts];
  Ints largest = {};
  for (int i = 0; i < kParts; ++i) {
    value[i] = load_floats(x + i * kLanes);
    largest = larger(largest, (Ints)(as_words(value[i]) & 0x7fffffffu));
  }
  int32_t bits = max_of(largest);
  float size;
  std::memcpy(&size, &bits, 4);
  const Floats steps = splat(size < kTiny ? 0.0f : 127.0f / size);
  Words total = {};
  for (int i = 0; i < kParts; ++i) {
    Words whole = as_words(value[i] * steps + splat(kRounding)) - 0x4b400000u;
    store_bytes(to + i * kLanes, (Ints)whole);
    total += whole;
  }
  return Group{size * (1.0f / 127.0f), -kOffset * sum_of((Ints)total)};
}

template <typename Element>
void quantize_row(const Element* x, int64_t k, int8_t* to, Group* groups) {
  for (; k >= kGroup; k -= kGroup, x += kGroup, to += kGroup) *groups++ = quantize_group(x, to);
  if (k == 0) return;
  Element padded[kGroup] = {};
  std::memcpy(padded, x, (size_t)k * sizeof(Element));
  *groups = quantize_group(padded, to);
}

template <typename Element>
void quantize_rows(const Int8Call& call, const Quantized& to) {
  int64_t k = call.weight->k;
  int64_t grain = call.rows < kRowsQuantizedAlone ? call.rows : 8;
  parallel_ranges(call.rows, grain, [&](int64_t begin, int64_t end) {
    for (int64_t row = begin; row < end; ++row) {
      quantize_row((const Element*)call.x + row * call.x_stride, k, to.values + row * to.stride,
                   to.groups + row * to.num_groups);
    }
  });
}

// Four values of each row; meanwhile `Ahead` lines from `ahead` on are fetched.
template <int Rows, int Ahead>
LR_INLINE void multiply_step(const int8_t* panel, const int8_t* x, int64_t x_stride,
                             const int8_t* ahead, Ints (&sums)[Rows][kVectors]) {
  Ints w[kVectors];
  for (int v = 0; v < kVectors; ++v) w[v] = load<Ints>(panel + v * kLanes * 4);
  for (int line = 0; line < Ahead; ++line) prefetch(ahead + line * kLineBytes);
  for (int r = 0; r < Rows; ++r) {
    int32_t four;
    std::memcpy(&four, x + r * x_stride, 4);
    Ints spread = splat(four);
    for (int v = 0; v < kVectors; ++v) sums[r][v] = dot4(sums[r][v], w[v], spread);
  }
}

template <typename Element>
LR_INLINE void write_vector(const Int8Call& call, int64_t row, int64_t column, Floats sum) {
  const Int8Weight& weight = *call.weight;
  int64_t room = weight.n - column;
  if (room <= 0) return;
  Floats value = sum * load<Floats>(weight.scales + column);
  Element* to = (Element*)call.out + row * call.out_stride + column;
  if (room >= kLanes) {
    if (call.bias != nullptr) value = value + load<Floats>(call.bias + column);
    return store_floats(to, value);
  }
  if (call.bias != nullptr) value = value + load_some(call.bias + column, room);
  store_some(to, value, room);
}

template <int Rows, int Ahead>
LR_INLINE void multiply_tile(const Quantized& given, const int8_t* panel, int64_t row,
                             const int8_t* ahead, int64_t all_steps,
                             Floats (&totals)[Rows][kVectors]) {
  const int8_t* x = given.values + row * given.stride;
  const Group* groups = given.groups + row * given.num_groups;
  for (; all_steps > 0; all_steps -= kGroup / 4, ++groups) {
    Ints sums[Rows][kVectors];
    for (int r = 0; r < Rows; ++r)
      for (int v = 0; v < kVectors; ++v) sums[r][v] = splat(groups[r * given.num_groups].start);
    const int8_t* end = x + 4 * (all_steps < kGroup / 4 ? all_steps : kGroup / 4);
    for (; x < end; x += 4, panel += kPanel * 4, ahead += Ahead * kLineBytes)
      multiply_step<Rows, Ahead>(panel, x, given.stride, ahead, sums);
    for (int r = 0; r < Rows; ++r) {
      Floats scale = splat(groups[r * given.num_groups].scale);
      for (int v = 0; v < kVectors; ++v)
        totals[r][v] = totals[r][v] + __builtin_convertvector(sums[r][v], Floats) * scale;
    }
  }
}

template <int Rows, int Ahead, typename Element>
void run_tile(const Int8Call& call, const Quantized& given, int64_t row, int64_t panel_index,
              const int8_t* ahead) {
  int64_t steps = padded_to(call.weight->k, 4) / 4;
  const int8_t* panel = call.weight->packed + panel_index * steps * kPanel * 4;
  Floats totals[Rows][kVectors] = {};
  multiply_tile<Rows, Ahead>(given, panel, row, ahead, steps, totals);
  for (int r = 0; r < Rows; ++r)
    for (int v = 0; v < kVectors; ++v)
      write_vector<Element>(call, row + r, panel_index * kPanel + v * kLanes, totals[r][v]);
}

template <int Ahead, typename Element>
void run_rows(const Int8Call& call, const Quantized& given, int64_t row, int64_t rows,
              int64_t panel, const int8_t* ahead) {
  switch (rows) {
    case 1: return run_tile<1, Ahead, Element>(call, given, row, panel, ahead);
    case 2: return run_tile<2, Ahead, Element>(call, given, row, panel, ahead);
#if defined(LR_AVX512)
    case 3: return run_tile<3, Ahead, Element>(call, given, row, panel, ahead);
    case 4: return run_tile<4, Ahead, Element>(call, given, row, panel, ahead);
    case 5: return run_tile<5, Ahead, Element>(call, given, row, panel, ahead);
    case 6: return run_tile<6, Ahead, Element>(call, given, row, panel, ahead);
#endif
  }
}

// Every row for one panel before the next one: weights come from memory once. A single tile
// fetches a little ahead of itself; of several, the first ones share fetching the next panel.
template <typename Element>
void run_panels(const Int8Call& call, const Quantized& given, int64_t begin, int64_t end) {
  constexpr int kLines = kPanel * 4 / kLineBytes;  // of a step
  int64_t num_tiles = (call.rows + kTileRows - 1) / kTileRows;
  int64_t panel_bytes = padded_to(call.weight->k, 4) * kPanel;
  for (int64_t panel = begin; panel < end; ++panel) {
    const int8_t* here = call.weight->packed + panel * panel_bytes;
    const int8_t* next = here + panel_bytes;
    int64_t row = 0;
    for (int64_t tile = 0; tile < num_tiles; ++tile) {
      int64_t rows = (call.rows - row + (num_tiles - tile) - 1) / (num_tiles - tile);
      if (num_tiles == 1)
        run_rows<kLines, Element>(call, given, row, rows, panel, here + kAheadBytes);
      else if (num_tiles < kLines && tile < 2)
        run_rows<kLines / 2, Element>(call, given, row, rows, panel, next + tile * panel_bytes / 2);
      else if (num_tiles >= kLines && tile < kLines)
        run_rows<1, Element>(call, given, row, rows, panel, next + tile * panel_bytes / kLines);
      else
        run_rows<0, Element>(call, given, row, rows, panel, nullptr);
      row += rows;
    }
  }
}

}  // namespace
}  // namespace lr

using namespace lr;

extern "C" LR_EXPORT int32_t lr_int8_panel() { return kPanel; }

// w [n, k] int8 with the given row stride → `packed`.
extern "C" LR_EXPORT void lr_pack_int8(const int8_t* w, int64_t stride, int64_t n, int64_t k,
                                       int8_t* packed) {
  int64_t padded = padded_to(k, 4);
  parallel_ranges(n, 64, [=](int64_t begin, int64_t end) {
    for (int64_t column = begin; column < end; ++column) {
      int8_t* panel = packed + column / kPanel * padded * kPanel + column % kPanel * 4;
      for (int64_t i = 0; i < padded; ++i)
        panel[i / 4 * kPanel * 4 + i % 4] =
            (int8_t)((i < k ? w[column * stride + i] : 0) + kOffset);
    }
  });
}

// 0, or 1 without memory.
extern "C" LR_EXPORT int32_t lr_linear_int8(const Int8Call* given) {
  const Int8Call& call = *given;
  int64_t k = call.weight->k, num_groups = (k + kGroup - 1) / kGroup;
  Quantized x{(int8_t*)scratch(kQuantized, call.rows * num_groups * kGroup),
              (Group*)scratch(kRowScales, call.rows * num_groups * (int64_t)sizeof(Group)),
              num_groups * kGroup, num_groups};
  if (x.values == nullptr || x.groups == nullptr) return 1;
  if (call.x_kind == kBFloat16)
    quantize_rows<BFloat16>(call, x);
  else
    quantize_rows<float>(call, x);
  int64_t panels = (call.weight->n + kPanel - 1) / kPanel;
  int64_t grain = kMacsPerRange / (k * kPanel * (call.rows < 4 ? 4 : call.rows)) + 1;
  int64_t fair = panels / (num_threads() * 4);
  if (fair > grain) grain = fair;
  parallel_ranges(panels, grain, [&](int64_t begin, int64_t end) {
    if (call.out_kind == kBFloat16)
      run_panels<BFloat16>(call, x, begin, end);
    else
      run_panels<float>(call, x, begin, end);
  });
  return 0;
}
