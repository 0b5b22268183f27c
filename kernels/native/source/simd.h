// One vector width per build, written with the compilers' vector types, so that the same source
// serves AVX-512, AVX2, NEON and plain scalar machines; intrinsics only where they pay.
#pragma once

#include <cstdint>
#include <cstring>

#if defined(__x86_64__) || defined(__i386__)
#include <immintrin.h>
#endif
#if defined(__ARM_NEON)
#include <arm_neon.h>
#endif

#if defined(__AVX512F__) && defined(__AVX512BW__) && defined(__AVX512VL__) && defined(__AVX512DQ__)
#define LR_AVX512 1
constexpr int kLanes = 16;
#elif defined(__AVX2__) && defined(__FMA__)
#define LR_AVX2 1
constexpr int kLanes = 8;
#else
constexpr int kLanes = 4;
#endif

#define LR_EXPORT __attribute__((visibility("default")))
#define LR_INLINE inline __attribute__((always_inline))

namespace lr {

typedef float Floats __attribute__((vector_size(kLanes * 4)));
typedef int32_t Ints __attribute__((vector_size(kLanes * 4)));
typedef uint32_t Words __attribute__((vector_size(kLanes * 4)));
typedef uint16_t Halves __attribute__((vector_size(kLanes * 2)));
typedef uint8_t Bytes __attribute__((vector_size(kLanes)));

template <typename Vector>
LR_INLINE Vector load(const void* from) {
  Vector value;
  std::memcpy(&value, from, sizeof(Vector));
  return value;
}

template <typename Vector>
LR_INLINE void store(void* to, Vector value) {
  std::memcpy(to, &value, sizeof(Vector));
}

LR_INLINE Floats splat(float value) { return value - Floats{}; }  // x - 0 is x, also for -0
LR_INLINE Words splat(uint32_t value) { return Words{} + value; }
LR_INLINE Ints splat(int32_t value) { return Ints{} + value; }

LR_INLINE Floats as_floats(Words bits) { return (Floats)bits; }
LR_INLINE Words as_words(Floats value) { return (Words)value; }

// a * b + c. The build forbids contraction, so a fused product stands exactly where it is written:
// a row must come out of a tile of one row as it comes out of a tile of six.
LR_INLINE Floats multiply_add(Floats a, Floats b, Floats c) {
#if defined(LR_AVX512)
  return (Floats)_mm512_fmadd_ps((__m512)a, (__m512)b, (__m512)c);
#elif defined(LR_AVX2)
  return (Floats)_mm256_fmadd_ps((__m256)a, (__m256)b, (__m256)c);
#elif defined(__ARM_NEON) && defined(__aarch64__)
  return (Floats)vfmaq_f32((float32x4_t)c, (float32x4_t)a, (float32x4_t)b);
#else
  return a * b + c;
#endif
}

// Element-wise; NaN in `a` gives `b`. For NaN-proof maxima of magnitudes compare bits instead.
LR_INLINE Floats larger(Floats a, Floats b) {
#if defined(LR_AVX512)
  return (Floats)_mm512_max_ps((__m512)a, (__m512)b);
#elif defined(LR_AVX2)
  return (Floats)_mm256_max_ps((__m256)a, (__m256)b);
#else
  return a > b ? a : b;
#endif
}

LR_INLINE Floats smaller(Floats a, Floats b) {
#if defined(LR_AVX512)
  return (Floats)_mm512_min_ps((__m512)a, (__m512)b);
#elif defined(LR_AVX2)
  return (Floats)_mm256_min_ps((__m256)a, (__m256)b);
#else
  return a < b ? a : b;
#endif
}

LR_INLINE Ints larger(Ints a, Ints b) { return a > b ? a : b; }

// Halving tree: the order depends on the lane only.
LR_INLINE float sum_of(Floats value) {
#if defined(LR_AVX512)
  return _mm512_reduce_add_ps((__m512)value);
#else
  float lanes[kLanes];
  store(lanes, value);
  for (int width = kLanes / 2; width > 0; width /= 2)
    for (int i = 0; i < width; ++i) lanes[i] += lanes[i + width];
  return lanes[0];
#endif
}

LR_INLINE float max_of(Floats value) {
#if defined(LR_AVX512)
  return _mm512_reduce_max_ps((__m512)value);
#else
  float lanes[kLanes];
  store(lanes, value);
  for (int width = kLanes / 2; width > 0; width /= 2)
    for (int i = 0; i < width; ++i)
      lanes[i] = lanes[i] > lanes[i + width] ? lanes[i] : lanes[i + width];
  return lanes[0];
#endif
}

LR_INLINE int32_t sum_of(Ints value) {
#if defined(LR_AVX512)
  return _mm512_reduce_add_epi32((__m512i)value);
#else
  int32_t sum = 0;
  for (int i = 0; i < kLanes; ++i) sum += value[i];
  return sum;
#endif
}

LR_INLINE int32_t max_of(Ints value) {
#if defined(LR_AVX512)
  return _mm512_reduce_max_epi32((__m512i)value);
#else
  int32_t lanes[kLanes];
  store(lanes, value);
  for (int width = kLanes / 2; width > 0; width /= 2)
    for (int i = 0; i < width; ++i)
      lanes[i] = lanes[i] > lanes[i + width] ? lanes[i] : lanes[i + width];
  return lanes[0];
#endif
}

// Loaded once and kept, where the compiler would rather load it again for each use.
LR_INLINE void keep_in_register(Floats* value) {
#if defined(__x86_64__)
  asm("" : "+v"(*value));
#elif defined(__aarch64__)
  asm("" : "+w"(*value));
#else
  (void)value;
#endif
}

LR_INLINE void prefetch(const void* address) { __builtin_prefetch(address, 0, 2); }

// exp(x) for x <= 88: Cody-Waite reduction by ln 2 and a polynomial of degree 6 on
// [-ln2/2, ln2/2]; relative error below 3e-7. Below -87.3 the result is 0; NaN stays NaN.
LR_INLINE Floats exponential_bounded(Floats x) {
  const Floats shift = splat(12582912.0f);  // 1.5 * 2^23: adding it rounds to an integer
  const Floats low = splat(-87.3f);
  Floats clamped = larger(low, x);  // x if it is NaN
  Floats shifted = multiply_add(clamped, splat(1.44269504f), shift);
  Floats whole = shifted - shift;
  Floats rest = multiply_add(whole, splat(-0.693359375f), clamped);
  rest = multiply_add(whole, splat(2.12194440e-4f), rest);
  Floats sum = splat(1.38888889e-3f);
  sum = multiply_add(sum, rest, splat(8.33333333e-3f));
  sum = multiply_add(sum, rest, splat(4.16666667e-2f));
  sum = multiply_add(sum, rest, splat(1.66666667e-1f));
  sum = multiply_add(sum, rest, splat(0.5f));
  sum = multiply_add(sum, rest, splat(1.0f));
  sum = multiply_add(sum, rest, splat(1.0f));
  Words exponent = (as_words(shifted) << 23) + (uint32_t)0x3f800000u;
  Floats result = sum * as_floats(exponent);
  return x < low ? splat(0.0f) : result;
}

// exp(x); infinite above 88.3.
LR_INLINE Floats exponential(Floats x) {
  const Floats high = splat(88.3f);
  Floats result = exponential_bounded(smaller(high, x));  // x if it is NaN
  return x > high ? splat(__builtin_inff()) : result;
}

}  // namespace lr
