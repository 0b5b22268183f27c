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
  return as_floats(__builtin_convertvector(load<Halves>(from), Words) << 16);
}

LR_INLINE void store_floats(float* to, Floats value) { store(to, value); }
LR_INLINE void store_floats(BFloat16* to, Floats value) {
  Words bits = as_words(value);
  Words rounded = bits + 0x7fffu + ((bits >> 16) & 1u);
  Words quiet = (bits >> 16) | 0x40u;
  Words kept = value == value ? rounded >> 16 : quiet;
  store(to, __builtin_convertvector(kept, Halves));
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
