// The largest of a row of numbers, and where it stands.
#pragma once

#include <algorithm>
#include <cmath>

#include "simd.h"

namespace lr {

constexpr int64_t kBlock = 512;

// The largest number; those that are none are passed over.
inline float largest(const float* x, int64_t count) {
  Floats best[2] = {splat(-INFINITY), splat(-INFINITY)};
  int64_t i = 0;
  for (; i + 2 * kLanes <= count; i += 2 * kLanes)
    for (int j = 0; j < 2; ++j) best[j] = larger(load<Floats>(x + i + j * kLanes), best[j]);
  float result = max_of(larger(best[0], best[1]));
  for (; i < count; ++i)
    if (x[i] > result) result = x[i];
  return result;
}

inline int64_t first_equal(const float* x, int64_t count, float wanted) {
  for (int64_t begin = 0; begin < count; begin += kBlock) {
    int64_t end = std::min(begin + kBlock, count);
    int found = 0;
    for (int64_t i = begin; i < end; ++i) found |= x[i] == wanted;
    for (int64_t i = begin; found && i < end; ++i)
      if (x[i] == wanted) return i;
  }
  return 0;
}

}  // namespace lr
