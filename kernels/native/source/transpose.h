// kLanes rows of kLanes 32-bit words, turned: word j of row i becomes word i of row j.
#pragma once

#include "simd.h"

namespace lr {

#if defined(LR_AVX512)

LR_INLINE void transpose(Words (&rows)[16]) {
  __m512i a[16], b[16];
  for (int i = 0; i < 8; ++i) {  // pairs of rows, word by word
    a[2 * i] = _mm512_unpacklo_epi32((__m512i)rows[2 * i], (__m512i)rows[2 * i + 1]);
    a[2 * i + 1] = _mm512_unpackhi_epi32((__m512i)rows[2 * i], (__m512i)rows[2 * i + 1]);
  }
  for (int i = 0; i < 4; ++i) {  // fours of rows; b[4 i + j]: word j of each 128-bit part
    b[4 * i] = _mm512_unpacklo_epi64(a[4 * i], a[4 * i + 2]);
    b[4 * i + 1] = _mm512_unpackhi_epi64(a[4 * i], a[4 * i + 2]);
    b[4 * i + 2] = _mm512_unpacklo_epi64(a[4 * i + 1], a[4 * i + 3]);
    b[4 * i + 3] = _mm512_unpackhi_epi64(a[4 * i + 1], a[4 * i + 3]);
  }
  for (int j = 0; j < 4; ++j) {  // parts 0 and 2, then 1 and 3, of all four
    __m512i even_low = _mm512_shuffle_i32x4(b[j], b[4 + j], 0x88);
    __m512i even_high = _mm512_shuffle_i32x4(b[8 + j], b[12 + j], 0x88);
    __m512i odd_low = _mm512_shuffle_i32x4(b[j], b[4 + j], 0xdd);
    __m512i odd_high = _mm512_shuffle_i32x4(b[8 + j], b[12 + j], 0xdd);
    rows[j] = (Words)_mm512_shuffle_i32x4(even_low, even_high, 0x88);
    rows[8 + j] = (Words)_mm512_shuffle_i32x4(even_low, even_high, 0xdd);
    rows[4 + j] = (Words)_mm512_shuffle_i32x4(odd_low, odd_high, 0x88);
    rows[12 + j] = (Words)_mm512_shuffle_i32x4(odd_low, odd_high, 0xdd);
  }
}

#elif defined(LR_AVX2)

LR_INLINE void transpose(Words (&rows)[8]) {
  __m256i a[8], b[8];
  for (int i = 0; i < 4; ++i) {
    a[2 * i] = _mm256_unpacklo_epi32((__m256i)rows[2 * i], (__m256i)rows[2 * i + 1]);
    a[2 * i + 1] = _mm256_unpackhi_epi32((__m256i)rows[2 * i], (__m256i)rows[2 * i + 1]);
  }
  for (int i = 0; i < 2; ++i) {
    b[4 * i] = _mm256_unpacklo_epi64(a[4 * i], a[4 * i + 2]);
    b[4 * i + 1] = _mm256_unpackhi_epi64(a[4 * i], a[4 * i + 2]);
    b[4 * i + 2] = _mm256_unpacklo_epi64(a[4 * i + 1], a[4 * i + 3]);
    b[4 * i + 3] = _mm256_unpackhi_epi64(a[4 * i + 1], a[4 * i + 3]);
  }
  for (int j = 0; j < 4; ++j) {
    rows[j] = (Words)_mm256_permute2x128_si256(b[j], b[4 + j], 0x20);
    rows[4 + j] = (Words)_mm256_permute2x128_si256(b[j], b[4 + j], 0x31);
  }
}

#else

LR_INLINE void transpose(Words (&rows)[kLanes]) {
  uint32_t words[kLanes][kLanes], turned[kLanes][kLanes];
  std::memcpy(words, rows, sizeof(words));
  for (int i = 0; i < kLanes; ++i)
    for (int j = 0; j < kLanes; ++j) turned[j][i] = words[i][j];
  std::memcpy(rows, turned, sizeof(words));
}

#endif

}  // namespace lr
