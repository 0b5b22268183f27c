// What other ops of this library need to multiply by an int8 weight.
#pragma once

#include <cstdint>

#include "simd.h"

namespace lr {

// As Python's ctypes structure has it. Arrays are padded to whole panels.
struct Int8Weight {
  const int8_t* packed;  // [panels][k_padded / 4][kPanel][4], kOffset added to each
  const float* scales;   // [panels * kPanel]
  int64_t n;
  int64_t k;
};

// As Python packs it. Kinds are lr::Kind, strides count elements.
struct Int8Call {
  const Int8Weight* weight;
  const void* x;      // [rows, k]
  const float* bias;  // [n] or null
  void* out;          // [rows, n]
  int64_t rows, x_stride, out_stride;
  int32_t x_kind, out_kind;
};

}  // namespace lr

// 0, or 1 without memory. Uses the scratch slots kQuantized and kRowScales.
extern "C" LR_EXPORT int32_t lr_linear_int8(const lr::Int8Call* given);
