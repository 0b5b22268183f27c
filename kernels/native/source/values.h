// Numbers as tensors hold them: float32 or bfloat16 in memory, float32 in registers.
#pragma once

#include <cstdint>
#include <cstring>

#include "simd.h"

namespace lr {

struct BFloat16 {
  uint16_t bits;
};

// What Python passes for a tensor's dtype.
enum Kind : int32_t { kFloat32 = 0, kBFloat16 = 1 };

LR_INLINE float to_float(float value) { return value; }
LR_INLINE float to_float(BFloat16 value) {
  uint32_t bits = (uint32_t)value.bits << 16;
  float result;
  std::memcpy(&result, &bits, 4);
  return result;
}

// Round half to even; NaN stays a (quiet) NaN.
LR_INLINE void assign(float* to, float value) { *to = value; }
LR_INLINE void assign(BFloat16* to, float value) {
  uint32_t bits;
  std::memcpy(&bits, &value, 4);
  uint32_t rounded = bits + 0x7fffu + ((bits >> 16) & 1u);
  to->bits = (uint16_t)(value == value ? rounded >> 16 : (bits >> 16) | 0x40u);
}

LR_INLINE Floats load_floats(const float* from) { return load<Floats>(from); }
LR_INLINE Floats load_floats(const BFloat16* from) {
#if defined(LR_AVX512)
  // The compilers widen a vector in two halves and four shuffles.
  return as_floats((Words)_mm512_cvtepu16_epi32((__m256i)load<Halves>(from)) << 16);
#elif defined(LR_AVX2)
  return as_floats((Words)_mm256_cvtepu16_epi32((__m128i)load<Halves>(from)) << 16);
#else
  return as_floats(__builtin_convertvector(load<Halves>(from), Words) << 16);
#endif
}

// 2 kLanes numbers without a shuffle: those at even places, then those at odd ones.
LR_INLINE void load_even_odd(const BFloat16* from, Floats* even, Floats* odd) {
  Words pairs = load<Words>(from);
  *even = as_floats(pairs << 16);
  *odd = as_floats(pairs & 0xffff0000u);
}

// bfloat16 in the low half of each word.
LR_INLINE Words rounded_to_bfloat16(Floats value) {
  Words bits = as_words(value);
  Words rounded = bits + 0x7fffu + ((bits >> 16) & 1u);
  return value == value ? rounded >> 16 : (bits >> 16) | 0x40u;
}

LR_INLINE void store_floats(float* to, Floats value) { store(to, value); }
LR_INLINE void store_floats(BFloat16* to, Floats value) {
  store(to, __builtin_convertvector(rounded_to_bfloat16(value), Halves));
}

LR_INLINE void store_even_odd(BFloat16* to, Floats even, Floats odd) {
  store(to, rounded_to_bfloat16(even) | rounded_to_bfloat16(odd) << 16);
}
LR_INLINE void store_even_odd(float* to, Floats even, Floats odd) {
  for (int i = 0; i < kLanes; ++i) {
    to[2 * i] = even[i];
    to[2 * i + 1] = odd[i];
  }
}

// The first `count` < kLanes elements; the others are zero.
template <typename Element>
LR_INLINE Floats load_some(const Element* from, int64_t count) {
  Element padded[kLanes] = {};
  std::memcpy(padded, from, (size_t)count * sizeof(Element));
  return load_floats(padded);
}

template <typename Element>
LR_INLINE void store_some(Element* to, Floats value, int64_t count) {
  Element padded[kLanes];
  store_floats(padded, value);
  std::memcpy(to, padded, (size_t)count * sizeof(Element));
}

}  // namespace lr
